"""What makes the examples of the documentation fast: models are compiled as a whole, a run is loaded only once."""

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax.linen.module import _global_interceptor_stack

from tests.support.devices import one_device
from transformer_jax.translation import load


@pytest.fixture(autouse=True, scope="module")
def _compiled_once():
    with pytest.MonkeyPatch.context() as patch, one_device():
        for name in ("init", "init_with_output", "apply"):
            patch.setattr(nn.Module, name, _compiled(getattr(nn.Module, name)))
        patch.setattr(load, "load_run", functools.cache(load.load_run))  # each page's runs/demo is the same run
        yield


@pytest.fixture
def ipython(monkeypatch):
    """What the cells of notebooks import of IPython."""
    display = SimpleNamespace(Image=lambda path: Path(path).read_bytes(), HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(9, 0)))  # matplotlib looks at it
    monkeypatch.setitem(sys.modules, "IPython.display", display)


def _compiled(method):
    """A method of small models that does what it did, as one program."""

    @functools.lru_cache(maxsize=100)
    def program(module, tree, static):
        def call(arrays):
            remaining = iter(arrays)
            leaves = [next(remaining) if leaf is None else leaf[0] for leaf in static]
            args, options = jax.tree.unflatten(tree, leaves)
            return method(module, *args, **options)

        return jax.jit(call)

    @functools.wraps(method)
    def run(module, *args, **options):
        leaves, tree = jax.tree.flatten((args, options))
        static = tuple(None if isinstance(leaf, jax.Array | np.ndarray) else (leaf,) for leaf in leaves)
        arrays = [leaf for leaf, known in zip(leaves, static, strict=True) if known is None]
        try:
            # What interceptors see must not stay inside another program.
            compiled = program(module, tree, static) if _is_shallow(module) and not _global_interceptor_stack else None
        except TypeError:  # not hashable
            compiled = None
        return method(module, *args, **options) if compiled is None else compiled(arrays)

    return run


def _is_shallow(module):
    """Whether a module is a model of few layers: many equal layers share their compiled operations, not their part of
    a whole program."""
    return getattr(getattr(module, "config", None), "num_encoder_layers", 9) <= 2
