"""plot coordinates: what it prints and draws, and what it refuses."""

import numpy as np
import pytest

from tests.commands.conftest import messages
from transformer_jax import cli
from transformer_jax.training import coordinates
from transformer_jax.training.coordinates import Sizes


def command(output, *options):
    return [
        "plot",
        "coordinates",
        "--config=preset:demo",
        "--config.train.compile_cache=none",
        f"--output={output}",
        *options,
    ]


def test_slopes_and_the_verdict_are_printed_and_the_picture_is_written(monkeypatch, tmp_path, capsys):
    asked = {}

    def check(config, widths, batches, report):
        asked.update(widths=widths, updates=len(batches), rows=len(batches[0].source))
        sizes = np.outer(widths, [1.0, 1.0, 1.0]) ** 0.5
        return {"encoder layer 1": Sizes(sizes, sizes * [0, 1, 2]), "logits": Sizes(sizes, sizes * [0, 1, np.inf])}

    monkeypatch.setattr(coordinates, "coordinate_check", check)
    output = tmp_path / "check.svg"
    assert cli.main(command(output, "--widths=128,64,128", "--updates=2")) == 0
    printed = capsys.readouterr()
    assert asked == {"widths": [64, 128], "updates": 2, "rows": coordinates.ROWS}
    assert "2 updates at each of 2 widths, on random tokens" in printed.err
    assert "encoder layer 1                            0.50    0.50" in printed.out
    assert "diverged: logits is not finite" in printed.out
    drawn = output.read_text()
    assert "standard parametrisation: diverged" in drawn and "encoder layer 1: change" in drawn


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--widths=64", "--widths=64: at least two are needed"),
        ("--widths=64,wide", "--widths=64,wide: must be whole numbers, such as 64,128,256"),
        ("--widths=64,101", "--widths=64,101: num_heads = 4 does not divide d_model = 101: "),
        ("--widths=64,0", "--widths=64,0: d_model = 0: must be at least 2"),
        ("--workdir=nodir", "--workdir=nodir: there is no such folder; without --workdir tokens are random"),
        ("--updates=0", "--updates=0: must be at least 1 and at most 1,000"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_anything_is_trained(option, said, tmp_path, capsys):
    assert cli.main(command(tmp_path / "check.svg", option)) == 2
    (line,) = messages(capsys.readouterr().err)
    assert line.startswith(f"error: {said}")
