"""Which optimizer reaches a validation loss first, in updates and in seconds? Adam and Muon, tuned over the same rates.

    transformer-jax sweep experiments/optimizers.py --scale=small --workdir=runs/optimizers
    transformer-jax report runs/optimizers
    python experiments/optimizers.py runs/optimizers

Muon (Jordan et al. 2024) is for the hidden matrices; embeddings, norms and biases have Adam. Each optimizer's
learning rate is chosen on validation loss with a separate seed (`tune`). The schedule at the scale `small` is
equation 3's, which does not know when training ends, so a loss within a run is the last loss of a shorter run.

The third command prints when the runs first had a validation loss: the lowest that every run reached, or the one
on the command line, as in `python experiments/optimizers.py runs/optimizers 2.1`. Seconds are of training, without
compilation and validation; compare them only between runs that had the machine to themselves. Expected (Jordan et al.
2024): Muon needs fewer updates, each a little dearer.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from transformer_jax.errors import BadInput
from transformer_jax.extension import load_module
from transformer_jax.report.results import load_sweep
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.CONVERGED_SCALES


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    if scale == "small":
        base.train.until_flat = None
        base.train.steps = 1500
    return Sweep(
        name="optimizers",
        question="Does Muon reach a validation loss in fewer updates, and in less time, than Adam?",
        base=base,
        variants=[Variant("Adam"), Variant("Muon", {"optimizer.name": "muon"})],
        baseline="Adam",
        primary="perplexity",
        tune=(0.5, 1, 2, 4, 8),
        notes=("`python experiments/optimizers.py SWEEP` prints the updates and seconds to a validation loss.",),
    )


def updates_and_seconds(lines: Sequence[Mapping[str, Any]], loss: float) -> tuple[float, float]:
    """The first update after which the validation loss was at most `loss`, and the seconds of training up to it.

    The log has seconds for intervals of several updates: within one, all take the same.
    """
    reached = next(line["step"] for line in lines if line.get("valid_loss") is not None and line["valid_loss"] <= loss)
    seconds, last = 0.0, 0
    for line in (line for line in lines if "seconds" in line):
        share = min((reached - last) / (line["step"] - last), 1.0)
        seconds, last = seconds + share * line["seconds"], line["step"]
        if last >= reached:
            break
    return reached, seconds


def print_times(folder: str, loss: float | None = None) -> None:
    """Updates and seconds of each variant's finished runs to a validation loss: means, and each seed's."""
    sweep = load_sweep(folder)
    runs = {
        variant.name: [read_metrics(run.path / "metrics.jsonl") for run in variant.finished]
        for variant in sweep.variants
    }
    losses = [[line.get("valid_loss") for line in lines] for each in runs.values() for lines in each]
    lowest = [min((loss for loss in each if loss is not None), default=math.inf) for each in losses]
    if not lowest or max(lowest) == math.inf:
        raise BadInput(f"{folder}: no run is finished, or one never had a finite validation loss")
    if loss is None:
        loss = max(lowest)
    elif loss < max(lowest):
        raise BadInput(
            f"{loss}: not every run reached this validation loss; the lowest that all did is {max(lowest):.4f}"
        )
    print(f"to a validation loss of {loss:.4f}")
    for name, each in runs.items():
        found = [updates_and_seconds(lines, loss) for lines in each]
        for what, values in zip(("updates", "seconds"), zip(*found, strict=True), strict=False):
            print(f"{name:<10} {what} {fmean(values):>8,.0f}   ({', '.join(f'{value:,.0f}' for value in values)})")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    try:
        print_times(sys.argv[1], *map(float, sys.argv[2:]))
    except (BadInput, ValueError) as error:  # ValueError: the loss is NaN
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
