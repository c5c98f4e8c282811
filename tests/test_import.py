"""Importing the package is light: nothing is loaded before it is used, no work is done."""

import json
import subprocess
import sys

import transformer_jax
from transformer_jax.extras import MODULES


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_the_package_and_its_command_line_load_neither_jax_nor_anything_optional():
    heavy = sorted({"jax", "flax", "numpy"}.union(*MODULES.values()))
    loaded = in_fresh_python(
        "import sys, json, transformer_jax, transformer_jax.cli, transformer_jax.commands.train\n"
        f"print(json.dumps([name for name in {heavy} if name in sys.modules]))"
    )
    assert json.loads(loaded) == []


def test_a_module_of_the_model_adds_few_modules_to_flax():
    # A count and not a time: benchmarks/first_step.py prints the seconds.
    added = in_fresh_python(
        "import sys, jax, flax.linen; n = len(sys.modules)\n"
        "from transformer_jax import Transformer, beam_search, label_smoothed_cross_entropy\n"
        "print(len(sys.modules) - n)"
    )
    assert int(added) < 50


def test_every_public_name_is_there():
    assert set(transformer_jax.__all__) <= set(dir(transformer_jax))
    assert all(getattr(transformer_jax, name) is not None for name in transformer_jax.__all__)
