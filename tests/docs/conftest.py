"""What makes the examples of the documentation fast: models are compiled as a whole, a run is loaded only once."""

import functools

import pytest

from tests.support.compiled import compile_modules
from transformer_jax.translation import load


@pytest.fixture(autouse=True, scope="module")
def _compiled_once():
    with pytest.MonkeyPatch.context() as patch:
        compile_modules(patch)
        patch.setattr(load, "load_run", functools.cache(load.load_run))  # each page's runs/demo is the same run
        yield
