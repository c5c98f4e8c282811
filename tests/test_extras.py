"""The library without its optional dependencies: what must work, and what says how to install the rest."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.support.places import ROOT
from transformer_jax.extras import MODULES, MissingPackages, require

# A process in which no optional dependency can be imported.
LIGHT = f"import sys; sys.modules |= dict.fromkeys({sorted(set().union(*MODULES.values()))})\n"
USE = """
import jax, jax.numpy as jnp
from transformer_jax import ModelConfig, MultiHeadAttention, SearchRules, Transformer, causal_mask, greedy_search
from transformer_jax import label_smoothed_cross_entropy, sinusoidal_positions

def use(tokens):
    model = Transformer(ModelConfig(vocab_size=11, d_model=8, d_ff=8, num_encoder_layers=1, num_decoder_layers=1))
    logits, variables = model.init_with_output(jax.random.key(0), tokens, tokens)
    x = sinusoidal_positions(3, 8)[None]
    MultiHeadAttention(num_heads=2).init(jax.random.key(0), x, x, mask=causal_mask(3))
    greedy_search(lambda tokens, cache: (logits[:, 0], cache), {}, SearchRules(1, 4, bos_id=1, eos_id=2, pad_id=0))
    return label_smoothed_cross_entropy(logits, tokens, tokens > 0, 0.1)

jax.eval_shape(use, jnp.array([[3, 4, 0]]))  # traces everything and compiles nothing
"""


def in_light_python(code):
    return subprocess.run([sys.executable, "-c", LIGHT + code], capture_output=True, text=True)


def test_the_model_its_loss_and_the_searches_need_jax_flax_and_numpy_only():
    ended = in_light_python(USE)
    assert ended.returncode == 0, ended.stderr


def test_what_needs_more_says_how_to_install_it():
    ended = in_light_python("""
from transformer_jax import cli
for name in ("load_run", "from_marian"):
    try:
        exec(f"from transformer_jax import {name}")
    except ImportError as error:
        print(error)
for line in ("prepare", "report", "train", "plot"):
    command = {"report": ["SWEEP"], "plot": ["positions", "--output=a.png"]}
    config = ["--config=preset:demo", "--workdir=run"]
    print(cli.main([line, *command.get(line, config)]), flush=True)
for line in ("--help", "sweep --help"):
    try:
        cli.main(line.split())
    except SystemExit as done:
        assert done.code == 0
""")
    assert ended.returncode == 0, ended.stderr
    data = "ml_collections, sentencepiece, tqdm, zstandard: pip install 'transformer_jax[data]'"
    report = "jinja2, markupsafe, matplotlib, scipy, tqdm: pip install 'transformer_jax[report]'"
    train = "ml_collections, optax, orbax, sacrebleu, .*: pip install 'transformer_jax\\[train\\]'"
    both = "jinja2, .*, zstandard: pip install 'transformer_jax\\[train,report\\]'"
    first, second, *rest = ended.stdout.splitlines()
    assert re.fullmatch(f"transformer_jax.load_run needs {train}", first)
    assert re.fullmatch(f"transformer_jax.from_marian needs {train}", second)
    assert rest[:4] == ["2"] * 4
    lines = ended.stderr.splitlines()
    assert lines[:2] == [
        f"error: transformer-jax prepare needs {data}",
        f"error: transformer-jax report needs {report}",
    ]
    assert re.fullmatch(f"error: transformer-jax train needs {train}", lines[2])
    assert re.fullmatch(f"error: transformer-jax plot needs {both}", lines[3])
    assert len(lines) == 4, "one line each"


@pytest.mark.parametrize("extra", MODULES)
def test_the_modules_are_those_of_the_packages_in_pyproject(extra):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = [re.match(r"[\w-]+(\[\w+\])?", requirement)[0] for requirement in extras[extra]]
    if "transformer_jax[data]" in packages:
        packages = [name for name in (*packages, *extras["data"]) if name != "transformer_jax[data]"]
    names = sorted(re.split("[>=]", name.lower().replace("-", "_"))[0] for name in packages)
    modules = sorted(module.lower() for module in MODULES[extra])
    assert [name.removesuffix("_checkpoint") for name in names] == modules


def test_what_is_installed_is_not_refused():
    require("anything", "data", "tfds", "train", "report")


def test_a_missing_package_is_an_import_error_and_bad_input():
    assert issubclass(MissingPackages, ImportError) and issubclass(MissingPackages, ValueError)
