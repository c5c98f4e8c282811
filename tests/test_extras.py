"""The library without its optional dependencies: what must work, and what says how to install the rest."""

import re
import subprocess
import sys
import tomllib

import pytest

from tests.support.finished_sweeps import make_sweep
from tests.support.places import ROOT
from transformer_jax.extras import MODULES

OPTIONAL = set().union(*MODULES.values())
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


def in_light_python(code, extra=None):
    """Runs code where no optional dependency can be imported, but for those of an extra."""
    hidden = sorted(OPTIONAL - set(MODULES.get(extra, ())))
    hide = f"import sys; sys.modules |= dict.fromkeys({hidden})\n"
    return subprocess.run([sys.executable, "-c", hide + code], capture_output=True, text=True)


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
config = "--config=preset:demo --workdir=run"
for line in (f"prepare {config}", "report SWEEP", f"train {config}", "plot positions --output=a.png"):
    assert cli.main(line.split()) == 2
for line in ("--help", "sweep --help"):
    try:
        cli.main(line.split())
    except SystemExit as done:
        assert done.code == 0
""")
    assert ended.returncode == 0, ended.stderr
    errors = [*ended.stdout.splitlines()[:2], *ended.stderr.splitlines()]
    extras = [re.search(r" needs .*pip install 'transformer_jax\[(.*)\]'", line)[1] for line in errors]
    assert extras == ["train", "train", "data", "report", "train", "train,report"]


def test_reports_need_their_extra_only(tmp_path):
    folder = make_sweep(tmp_path, sentences=20)
    ended = in_light_python(
        f"from transformer_jax import cli; sys.exit(cli.main(['report', {str(folder)!r}]))", "report"
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("extra", MODULES)
def test_the_modules_are_those_of_the_packages_in_pyproject(extra):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = [re.match(r"[\w-]+(\[\w+\])?", requirement)[0] for requirement in extras[extra]]
    if "transformer_jax[data]" in packages:
        packages = [name for name in (*packages, *extras["data"]) if name != "transformer_jax[data]"]
    names = sorted(re.split("[>=]", name.lower().replace("-", "_"))[0] for name in packages)
    modules = sorted(module.lower() for module in MODULES[extra])
    assert [name.removesuffix("_checkpoint") for name in names] == modules
