"""inspect: the resolved config first, then every parameter, what a token costs and what each device needs."""

import re

import pytest

from tests.support.places import ROOT
from transformer_jax import ModelConfig, cli
from transformer_jax.commands.inspect import moments_of, parameter_groups, work_of
from transformer_jax.config import from_config_dict
from transformer_jax.model.size import parameter_counts, training_flops

BASE = f"--config={ROOT / 'configs/base.py'}"
SMALL = ["--config.model.d_model=8", "--config.model.d_ff=12", "--config.model.num_heads=2"]


@pytest.fixture
def inspect(capsys):
    def inspect(*arguments):
        assert cli.main(["inspect", BASE, *arguments]) == 0
        config, parameters, cost, devices = capsys.readouterr().out.split("\n\n")
        return config, parameters, cost + devices

    return inspect


def test_the_resolved_config_comes_first(inspect):
    config, _, _ = inspect()
    assert config.startswith("  seed ")
    assert "\n  model.d_model                          512\n" in config


def test_every_parameter_is_listed_and_the_sum_is_the_models(inspect):
    _, parameters, _ = inspect()
    header, *rows, total = parameters.splitlines()
    assert header.split() == ["parameters", "shape", "layers", "total"]
    sums = [int(row.split()[-1].replace(",", "")) for row in [*rows, total]]
    assert sum(sums[:-1]) == sums[-1] == sum(parameter_counts(ModelConfig.base()).values()) == 63_045_632
    assert "  source_embedding/table                                37000 x 512            18,944,000" in rows
    assert "  encoder/layers/self_attention/query/kernel              512 x 512     x 6     1,572,864" in rows


@pytest.mark.parametrize(
    ("positions", "row"),
    [
        ("learned", ("decoder/positions/table", (1024, 8), 1)),
        ("relative", ("decoder/positions/keys", (33, 4), 6)),
        ("t5", ("encoder/positions/table", (32, 2), 1)),
    ],
)
def test_tables_of_positions_are_counted_as_often_as_there_are(positions, row):
    groups = parameter_groups(ModelConfig(vocab_size=9, d_model=8, d_ff=12, num_heads=2, positions=positions))
    assert row in [tuple(group) for group in groups]


def test_what_each_device_holds_and_sends(inspect):
    """Of a mesh that need not be here; slices of parameters, and twice as much of Adam's moments."""
    _, _, devices = inspect("--config.mesh.data=4", "--config.mesh.fsdp=2")
    assert "On each device of data 4 x fsdp 2 x tensor 1, in rows of 32 + 32 tokens" in devices
    assert ": parameters 126 MB, optimizer 252 MB, gradients 126 MB, gathered 152 MB, " in devices
    assert "sent in an update: data 189 MB, fsdp 340 MB, tensor 0 bytes" in devices


PREDICTED = re.findall(
    r"^\| (base|big) \| (\d+) \| ([\d,]+) \| (.*?) \|$", (ROOT / "docs/scaling.md").read_text(), re.MULTILINE
)
assert len(PREDICTED) == 10, "the guide's table has another form"


@pytest.mark.parametrize("row", PREDICTED, ids=lambda row: " ".join(row[:3]))
def test_what_is_predicted_of_a_cluster_is_what_the_guide_shows(row, capsys):
    name, devices, tokens, row = row
    memory, _, sent, _, *others = row.split(" | ")  # without the columns of compiled programs
    given = (f"--config={ROOT / 'configs' / name}.py", "--config.model.dtype=bfloat16")
    batch = f"--config.data.tokens_per_batch={tokens.replace(',', '')}"
    assert cli.main(["inspect", *given, batch, f"--cluster={devices}xH100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"Predicted, not measured: {devices} devices of 989 TFLOP/s, used at 40%, and 80 GB;")
    best = out.split("target tokens/s\n")[1].splitlines()[0].split()
    assert best[:4] == [devices, "1", "1", "1"]  # all to data, in one part
    assert " ".join(best[4:]) == " ".join([memory, sent, *others]).replace(" %", "%")
    assert out.splitlines()[-1].startswith(f"--config.mesh.data={devices} --config.mesh.fsdp=1 ")


def test_a_peak_of_another_type_than_the_configs_is_mentioned(capsys):
    message = []
    for given in ((), ("--config.model.dtype=bfloat16",)):
        assert cli.main(["inspect", BASE, *given, "--cluster=8xH100"]) == 0
        message.append("That peak is bfloat16's, this config computes in float32" in capsys.readouterr().out)
    assert message == [True, False]


def test_a_cluster_that_is_not_described_is_refused(capsys):
    assert cli.main(["inspect", BASE, "--cluster=64xH10"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_guides_cluster_of_numbers_is_the_known_one(capsys):
    [numbers] = re.findall(r"--cluster=(64,\S+)", (ROOT / "docs/scaling.md").read_text())
    message = []
    for cluster in (numbers, "64xH100"):
        assert cli.main(["inspect", BASE, "--config.model.dtype=bfloat16", f"--cluster={cluster}"]) == 0
        message.append(capsys.readouterr().out)
    assert message[0] == message[1]


def test_a_cluster_that_is_too_small_is_reported(capsys):
    assert cli.main(["inspect", BASE, "--cluster=2xH100,memory=1"]) == 0
    assert capsys.readouterr().out.endswith("\nNone fits: use more devices, or a smaller model or batch\n")


def test_one_thing_is_shown_at_a_time(tmp_path, capsys):
    assert cli.main(["inspect", BASE, "--cluster=8xH100", f"--program={tmp_path / 'step.txt'}"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


def test_the_cost_of_a_batch_is_the_formulas(inspect):
    _, _, cost = inspect("--config.data.tokens_per_batch=1000")
    trained = training_flops(ModelConfig.base(), 32, 32)
    assert f"a target token 82.7 MFLOP forward, {trained.target_token / 1e6:.1f} trained" in cost
    assert f"a batch of 1,000 + 1,000 tokens {trained.of(1000, 1000) / 1e12:.3g} TFLOP trained" in cost


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
    assert "encoder/layers/feed_forward/gain" in parameters
    assert "feed_forward/inner" not in parameters
    assert "(counted with the built-in feed_forward)" in cost


def test_an_unfit_part_is_bad_input(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine: pass")
    assert cli.main(["inspect", BASE, f"--config.model.parts.attention={file}:Mine"]) == 2
    assert "Mine: is not a class derived from flax.linen.Module" in capsys.readouterr().err


def test_the_compiled_program_and_its_memory(tmp_path, capsys):
    file = tmp_path / "step.txt"
    layers = ["--config.model.num_encoder_layers=1", "--config.model.num_decoder_layers=1"]
    size = [*SMALL, *layers, "--config.model.vocab_size=1000", "--config.data.tokens_per_batch=64"]
    assert cli.main(["inspect", BASE, *size, f"--program={file}"]) == 0
    assert file.read_text().startswith("HloModule jit_update")
    message = capsys.readouterr().out
    assert message.startswith(f"{file}: the train step for 8 rows of 32 + 32 tokens")  # 2, but each device needs one
    model = ModelConfig(vocab_size=1000, d_model=8, d_ff=12, num_heads=2, num_encoder_layers=1, num_decoder_layers=1)
    parameters, moments = sum(parameter_counts(model).values()), 2
    state, temporary = (float(text) for text in re.findall(r"([\d.]+) kB of", message))
    assert state == pytest.approx((1 + moments) * 4 * parameters / 1e3, rel=0.05)
    assert temporary > 4 * parameters / 1e3, "the gradient at least"


@pytest.mark.parametrize(
    ("data", "work"),
    [
        ({"batching": "buckets", "max_length": 100}, (32, 32, 32, 1, False)),
        ({"batching": "packing", "max_length": 100}, (10, 100, 100, 1, True)),
        ({"batching": "buckets", "tokens_per_batch": 16}, (1, 16, 16, 1, False)),
    ],
)
def test_an_update_has_rows_of_32_tokens_or_packed_ones(data, work):
    assert work_of(from_config_dict({"data": {"tokens_per_batch": 1024, **data}})) == (*work, "auto")


def test_the_optimizers_moments_are_an_average_over_the_parameters():
    """Muon has one for each number of a hidden matrix, and Adam two for each of the others."""
    size = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 64, "d_ff": 256, "vocab_size": 500}
    experiment = from_config_dict({"model": size, "optimizer": {"name": "muon"}})
    hidden, parameters = 12 * 64**2 + 4 * 64 * 256, sum(parameter_counts(experiment.model).values())
    assert moments_of(experiment) == round(2 - hidden / parameters, 1) == 1.2
