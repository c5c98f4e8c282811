"""The results of a sweep's run, reported besides result.json: to TensorBoard's HParams and to the run's tracker."""

from collections.abc import Mapping
from typing import Any

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.errors import BadInput
from transformer_jax.files.progress import tell
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.tracking import Labels
from transformer_jax.sweeps.run import SweepRun
from transformer_jax.sweeps.spec import Definition


def labels(run: SweepRun, definition: Definition) -> Labels:
    """What the run is called where its metrics are reported: runs are grouped by variant."""
    return Labels(definition.sweep.name, run.variant, run.name)


def publish(run: SweepRun, definition: Definition, config: ExperimentConfig, result: Mapping[str, Any]) -> None:
    """Reports the scores of a finished run. What fails here is a warning: result.json has them already."""
    scores = {f"{split}/{name}": value for split, test in result["tests"].items() for name, value in _numbers(test)}
    scores |= {f"valid/{name}": value for name, value in _numbers(result["valid"])}
    try:
        if config.train.tensorboard:
            _write_hparams(run, definition, config, scores)
        tracking = RunFolder(run.path, labels=labels(run, definition)).tracking(config)
        if tracking is not None:
            tracking.log(result["steps"], scores)
            tracking.finish()
    except (OSError, BadInput) as problem:
        tell(f"warning: {run.name}: {problem}; its scores are in result.json")


def _numbers(values: Mapping[str, Any]) -> list[tuple[str, float]]:
    return [(name, value) for name, value in values.items() if isinstance(value, (int, float))]


def _write_hparams(
    run: SweepRun, definition: Definition, config: ExperimentConfig, scores: Mapping[str, float]
) -> None:
    """The options that differ between the variants of the sweep, and the scores, for the HPARAMS tab."""
    from tensorboardX import SummaryWriter  # here, because it loads slowly

    changed = dict.fromkeys(path for variant in definition.sweep.variants for path in variant.changes)
    options: dict[str, Any] = {"variant": run.variant, "seed": run.seed}
    for path in changed:
        value = schema.value_at(config, path)
        options[path] = value if isinstance(value, (bool, int, float, str)) else str(value)
    with SummaryWriter(str(run.path / "tensorboard")) as writer:
        writer.add_hparams(options, dict(scores), name="results")
