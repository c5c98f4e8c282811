"""The matrix products of a compiled program, counted instruction by instruction.

`inspect` prints the closed formula (model/size.py). This is what shows that programs compute no more than that.
"""

import math
import re

import numpy as np

from transformer_jax.planning.hlo import Computation, Instruction, UnknownHlo, numbers

# Kernels of libraries that multiply matrices, as in __cublas$gemm and __onednn$matmul.
KERNEL = re.compile(r"gemm|matmul|conv|tpu_custom_call|triton", re.IGNORECASE)


def product_flops(product: Instruction, computation: Computation) -> float:
    """2 x the size of the result x the number of terms in each sum, for a matrix product or those in a kernel."""
    if product.kernel.startswith("__cudnn$fmha"):
        queries_BTHK, keys_BSHK = (computation[name].arrays[0].shape for name in product.operands[:2])
        # T x S x K for each head: scores and values; backward the scores again and four more. All keys count.
        count = 5 if "Backward" in product.kernel else 2
        return 2.0 * count * math.prod(queries_BTHK) * keys_BSHK[1]
    if KERNEL.search(product.kernel):
        raise UnknownHlo(f"the kernel {product.kernel!r} may multiply matrices, which cannot be counted")
    if product.kind not in ("dot", "convolution"):
        return 0.0
    left, right = (computation[name].arrays[0].shape for name in product.operands[:2])
    if product.kind == "dot":
        summed = numbers(product.attribute(r"rhs_contracting_dims=\{([\d,]*)\}"))
        return 2.0 * math.prod(product.arrays[0].shape) * math.prod(right[axis] for axis in summed)
    return 2.0 * _convolution_terms(product, left, right)


def _convolution_terms(product: Instruction, left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """The multiplications of a convolution, without those of padding and of the gaps of dilated operands.

    TPUs compute products with batch axes as convolutions over these axes, most of which would be padding and gaps.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", product.text)
    if not labels:
        raise UnknownHlo(f"a convolution without labels of its axes: {product.text[:80]}")
    shapes = left, right, product.arrays[0].shape
    lefts, rights, results = (dict(zip(*pair, strict=True)) for pair in zip(labels.groups(), shapes, strict=True))
    window = dict(each.split("=") for each in product.attribute(r"window=\{([^}]*)\}").split())

    def number(name: str, axis: str, default: int) -> int:
        return int(window[name].split("x")[int(axis)].partition("_")[0]) if name in window else default

    terms = results["b"] * results["f"] * rights["i"]
    for axis in filter(str.isdigit, lefts):
        outputs, taps = np.arange(results[axis])[:, None], np.arange(rights[axis])
        places = outputs * number("stride", axis, 1) - number("pad", axis, 0) + taps * number("rhs_dilate", axis, 1)
        gap = number("lhs_dilate", axis, 1)
        terms *= int(np.sum((places >= 0) & (places <= (lefts[axis] - 1) * gap) & (places % gap == 0)))
    return terms
