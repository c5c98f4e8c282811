"""Importing the package is light: nothing heavy is loaded, no work is done."""

import json
import subprocess
import sys

HEAVY = ["tensorflow", "tensorflow_datasets", "sentencepiece", "matplotlib", "orbax", "tensorboardX", "sacrebleu"]


def in_fresh_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_loads_nothing_heavy():
    # flax.linen itself may load some of them (orbax comes with flax's own checkpoint helpers): only what we add counts.
    loaded = json.loads(
        in_fresh_python(
            "import sys, json, jax, flax.linen; before = set(sys.modules)\n"
            "import transformer_jax, transformer_jax.data.tokenizer; transformer_jax.ModelConfig()\n"
            f"print(json.dumps([name for name in {HEAVY} if name in set(sys.modules) - before]))"
        )
    )
    assert loaded == []


def test_import_adds_few_modules():
    # A count and not a time: benchmarks/first_step.py prints the seconds.
    added = in_fresh_python(
        "import sys, jax, flax.linen; n = len(sys.modules); import transformer_jax; print(len(sys.modules) - n)"
    )
    assert int(added) < 50


def test_every_public_name_is_there():
    import transformer_jax

    assert all(getattr(transformer_jax, name) is not None for name in transformer_jax.__all__)
