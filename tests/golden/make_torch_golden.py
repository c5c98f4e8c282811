"""Makes the golden values of tests/model/test_parity.py with torch, an implementation that shares no line with ours.

To make them again (any torch >= 2.5 will do; they were made with 2.13 on a CPU), in an environment of its own:

    pip install torch numpy && python tests/golden/make_torch_golden.py

Encoder and decoder are torch's own nn.TransformerEncoderLayer and nn.TransformerDecoderLayer, attention is its
nn.MultiheadAttention; what torch does not have (scaled and tied embeddings, sinusoids) is written out here from the
paper. Weights and inputs are float32 numbers; torch computes with them in float64, so that a difference is ours.

Each .npz holds, under our parameter names, "weights/..." and "gradients/..." (of sum(result * cotangent)), with the
inputs, the cotangent and the results.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent
VOCABULARY, LAYERS, D_MODEL, D_FF, HEADS, PAD = 17, 2, 16, 24, 4, 0
SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 3, 0, 0], [12, 0, 0, 0, 0, 0]])
TARGET = torch.tensor([[1, 13, 14, 15, 16], [1, 4, 4, 0, 0], [1, 9, 8, 7, 0]])

# Name: norm, activation, biases in attention's projections.
CASES = {
    "post_relu": ("post", "relu", False),  # the paper's
    "post_gelu_bias": ("post", "gelu", True),
    "pre_relu_bias": ("pre", "relu", True),
    "pre_gelu": ("pre", "gelu", False),
}

# Our name, the torch parameter, and which part of it: torch keeps W^Q, W^K, W^V in one matrix, and all transposed.
Entry = tuple[str, nn.Parameter, slice]
EVERYTHING = slice(None)


def main() -> None:
    for name, (norm, activation, bias) in CASES.items():
        torch.manual_seed(len(name))
        save(name, transformer_case(norm, activation, bias))
    torch.manual_seed(0)
    save("attention", attention_case())


class Model(nn.Module):
    """Torch's own layers; scaled and tied embeddings and sinusoids are written out."""

    def __init__(self, layers: int, norm: str = "post", activation: str = "relu", bias: bool = False) -> None:
        super().__init__()
        stack = {"d_model": D_MODEL, "nhead": HEADS, "dim_feedforward": D_FF, "dropout": 0.0, "activation": activation}
        stack |= {"layer_norm_eps": 1e-6, "batch_first": True, "norm_first": norm == "pre"}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**stack) for _ in range(layers))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**stack) for _ in range(layers))
        if not bias:  # the layer's own switch would also take the biases of its norms
            for layer in [*self.encoder, *self.decoder]:
                layer.self_attn = nn.MultiheadAttention(D_MODEL, HEADS, bias=False, batch_first=True)
            for layer in self.decoder:
                layer.multihead_attn = nn.MultiheadAttention(D_MODEL, HEADS, bias=False, batch_first=True)
        is_pre = norm == "pre"
        self.final = nn.ModuleList(nn.LayerNorm(D_MODEL, eps=1e-6) if is_pre else nn.Identity() for _ in range(2))
        self.table = nn.Parameter(torch.empty(VOCABULARY, D_MODEL))

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        source_padding, target_padding = source == PAD, target == PAD
        future = torch.triu(torch.ones(target.shape[1], target.shape[1], dtype=torch.bool), diagonal=1)
        memory, x = self.embed(source), self.embed(target)
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=source_padding)
        memory = self.final[0](memory)
        for layer in self.decoder:
            masks = {"tgt_mask": future, "tgt_key_padding_mask": target_padding}
            x = layer(x, memory, **masks, memory_key_padding_mask=source_padding)
        return self.final[1](x) @ self.table.T

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table[tokens] * math.sqrt(D_MODEL) + sinusoids(tokens.shape[1])

    def entries(self) -> Iterator[Entry]:
        yield "source_embedding/table", self.table, EVERYTHING
        for side in ("encoder", "decoder"):
            for i, layer in enumerate(getattr(self, side)):
                yield from layer_entries(f"{side}/layers_{i}", layer)
        for side, final in zip(("encoder", "decoder"), self.final, strict=True):
            if isinstance(final, nn.LayerNorm):
                yield from norm_entries(f"{side}/final_norm", final)


def transformer_case(norm: str, activation: str, bias: bool) -> dict[str, np.ndarray]:
    model = Model(LAYERS, norm, activation, bias)
    entries = list(model.entries())
    randomise(entries)
    logits = model.double()(SOURCE, TARGET)
    return {"source": SOURCE.numpy(), "target": TARGET.numpy(), "logits": logits, **with_gradients(entries, logits)}


def attention_case() -> dict[str, np.ndarray]:
    attention = nn.MultiheadAttention(D_MODEL, HEADS, bias=True, batch_first=True)
    query, memory = (nn.Parameter(torch.empty(2, length, D_MODEL)) for length in (3, 5))
    entries = [("query", query, EVERYTHING), ("memory", memory, EVERYTHING), *attention_entries("module", attention)]
    randomise(entries)
    allowed = torch.rand(3, 5) < 0.7
    allowed[:, 0] = True  # torch gives NaN where nothing may be attended to
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    output, weights = attention.double()(
        query, memory, memory, key_padding_mask=padding, attn_mask=~allowed, average_attn_weights=False
    )
    mask = (allowed[None] & ~padding[:, None])[:, None]
    return {"mask": mask.numpy(), "output": output, "attention": weights, **with_gradients(entries, output)}


def layer_entries(name: str, layer: nn.Module) -> Iterator[Entry]:
    """Which of our names each parameter of torch's encoder or decoder layer has."""
    yield from attention_entries(f"{name}/self_attention", layer.self_attn)
    yield from norm_entries(f"{name}/self_attention_residual/norm", layer.norm1)
    last = layer.norm2
    if isinstance(layer, nn.TransformerDecoderLayer):
        yield from attention_entries(f"{name}/cross_attention", layer.multihead_attn)
        yield from norm_entries(f"{name}/cross_attention_residual/norm", layer.norm2)
        last = layer.norm3
    for ours, theirs in (("inner", layer.linear1), ("outer", layer.linear2)):
        yield f"{name}/feed_forward/{ours}/kernel", theirs.weight, EVERYTHING
        yield f"{name}/feed_forward/{ours}/bias", theirs.bias, EVERYTHING
    yield from norm_entries(f"{name}/feed_forward_residual/norm", last)


def attention_entries(name: str, attention: nn.MultiheadAttention) -> Iterator[Entry]:
    for i, projection in enumerate(("query", "key", "value")):
        rows = slice(i * D_MODEL, (i + 1) * D_MODEL)
        yield f"{name}/{projection}/kernel", attention.in_proj_weight, rows
        if attention.in_proj_bias is not None:
            yield f"{name}/{projection}/bias", attention.in_proj_bias, rows
    yield f"{name}/output/kernel", attention.out_proj.weight, EVERYTHING
    if attention.out_proj.bias is not None:
        yield f"{name}/output/bias", attention.out_proj.bias, EVERYTHING


def norm_entries(name: str, norm: nn.LayerNorm) -> Iterator[Entry]:
    yield f"{name}/scale", norm.weight, EVERYTHING
    yield f"{name}/bias", norm.bias, EVERYTHING


def randomise(entries: list[Entry]) -> None:
    """Numbers that float32 holds exactly, none at its neutral value: a bias or scale that is left out shows."""
    for name, parameter, _ in entries:
        noise = torch.randn(parameter.shape, dtype=torch.float32).double() * 0.3
        parameter.data = (noise + (1 if name.endswith("scale") else 0)).float().double()


def sinusoids(length: int) -> torch.Tensor:
    """Section 3.5, number by number."""
    table = torch.zeros(length, D_MODEL, dtype=torch.float64)
    for position in range(length):
        for i in range(D_MODEL // 2):
            angle = position / 10000 ** (2 * i / D_MODEL)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def with_gradients(entries: list[Entry], result: torch.Tensor) -> dict[str, np.ndarray]:
    """The cotangent, every weight, and the gradient of sum(result * cotangent) by every weight."""
    cotangent = torch.randn(result.shape, dtype=torch.float32)
    (result * cotangent.double()).sum().backward()
    stored = {"cotangent": cotangent}
    for name, parameter, rows in entries:
        stored[f"weights/{name}"] = in_our_layout(name, parameter[rows])
        stored[f"gradients/{name}"] = in_our_layout(name, parameter.grad[rows])
    return stored


def in_our_layout(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.T if name.endswith("kernel") else tensor


def save(name: str, tensors: dict) -> None:
    arrays = {key: value.detach().numpy() if torch.is_tensor(value) else value for key, value in tensors.items()}
    arrays = {key: a.astype(np.float32) if a.dtype == np.float64 else a for key, a in arrays.items()}
    np.savez_compressed(HERE / f"torch_{name}.npz", **arrays)


if __name__ == "__main__":
    main()
