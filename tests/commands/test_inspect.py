"""inspect: the resolved config first, then every parameter and what a token costs."""

import json
import re

import pytest

from tests.support.places import ROOT
from transformer_jax import ModelConfig, cli
from transformer_jax.model.size import parameter_counts

BASE = f"--config={ROOT / 'configs/base.py'}"
SMALL = ["--config.model.d_model=8", "--config.model.d_ff=12", "--config.model.num_heads=2"]


@pytest.fixture
def inspect(capsys):
    def inspect(*arguments):
        assert cli.main(["inspect", BASE, *arguments]) == 0
        config, parameters, cost = capsys.readouterr().out.split("\n\n")
        return config, parameters, cost

    return inspect


def test_the_resolved_config_comes_first(inspect):
    config, _, _ = inspect("--config.model.num_heads=16")
    assert config.startswith("  seed ")
    assert "\n  model.d_model                          512\n" in config
    assert "\n* model.num_heads                        16   (default 8)\n" in config


def test_every_parameter_is_listed_and_the_sum_is_the_models(inspect):
    _, parameters, cost = inspect()
    assert "target token 82.7 MFLOP forward" in cost
    header, *rows, total = parameters.splitlines()
    assert header.split() == ["parameters", "shape", "layers", "total"]
    sums = [int(row.split()[-1].replace(",", "")) for row in [*rows, total]]
    assert sum(sums[:-1]) == sums[-1] == sum(parameter_counts(ModelConfig.base()).values()) == 63_045_632
    assert "  source_embedding/table                                37000 x 512            18,944,000" in rows
    assert "  encoder/layers_N/self_attention/query/kernel            512 x 512     x 6     1,572,864" in rows


def test_the_padding_of_batches_is_that_of_the_configs_mesh(tmp_path, capsys):
    """Whose devices need not be here."""
    options = [f"--config.data.{name}" for name in ("corpus=copy", "tokenizer=words", f"directory={tmp_path / 'data'}")]
    assert cli.main(["prepare", BASE, *options, "--config.data.task.train_size=99", f"--workdir={tmp_path}"]) == 0
    shares = []
    for mesh in ("1", "64"):
        capsys.readouterr()
        assert cli.main(["inspect", BASE, *options, "--data", f"--config.mesh.data={mesh}"]) == 0
        printed = capsys.readouterr().out
        shares.append(float(re.search(r"not padding: ([\d.]+)", printed)[1]))
        rows = {row[0]: row[1:] for row in map(str.split, printed.splitlines()) if row}
        assert rows["buckets"][-1] == f"{shares[-1]}%" and rows["packing"][0] == "1"
    assert shares[1] < shares[0] - 10


def test_data_that_happens_to_be_here_is_not_the_configs(monkeypatch, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["inspect", BASE, "--data"]) == 2
    assert "--data needs --workdir=RUN or --config.data.directory=FOLDER" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--json", "--data"], ["--program=p.txt", "--data"], ["--compile-for=H100", "--options"]]
)
def test_a_flag_without_effect_is_an_error(arguments, capsys):
    assert cli.main(["inspect", BASE, *arguments]) == 2
    assert arguments[0].partition("=")[0] in capsys.readouterr().err


def test_a_custom_module_is_shown_as_built_and_marked_as_outside_the_formula(inspect, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from flax import linen as nn\n"
        "from transformer_jax.model.layers import FeedForward\n"
        "class Mine(FeedForward):\n"
        "    @nn.compact\n"
        "    def __call__(self, x_BTD, deterministic=True):\n"
        "        return x_BTD * self.param('gain', nn.initializers.ones, ())\n"
    )
    _, parameters, cost = inspect(*SMALL, f"--config.model.parts.feed_forward={file}:Mine")
    assert "encoder/layers_N/feed_forward/gain" in parameters
    assert "feed_forward/inner" not in parameters
    assert "(counted with the built-in feed_forward)" in cost


def test_the_compiled_program_and_its_memory(tmp_path, capsys):
    file = tmp_path / "step.txt"
    layers = ["--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1"]
    size = [*SMALL, *layers, "--config.model.vocab_size=1000", "--config.data.tokens_per_batch=64"]
    assert cli.main(["inspect", BASE, *size, f"--program={file}", "--json"]) == 0
    assert file.read_text().startswith("HloModule jit_step")
    model = ModelConfig(vocab_size=1000, d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    parameters = sum(parameter_counts(model).values()) * 4
    found = json.loads(capsys.readouterr().out)
    assert found["memory"]["state"] == pytest.approx(3 * parameters, rel=0.05), "parameters and two moments"
    assert found["memory"]["temporary"] > parameters, "the gradient at least"
    assert (found["capacity"], found["flops_ms"]) == (None, None), "no data sheet"


def test_options_without_a_config_file_are_answered(capsys, tmp_path):
    assert cli.main(["inspect", f"--workdir={tmp_path}", "--config.seed=3"]) == 2
    assert "--config.NAME=VALUE changes a config file: give --config=FILE.py, too" in capsys.readouterr().err
