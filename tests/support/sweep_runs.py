"""What the tests of sweeps share: a tiny experiment, and the command in a separate process."""

import math
import os
import subprocess
import sys
from pathlib import Path

from tests.support.training_runs import TINY
from transformer_jax.files.atomic import write_json
from transformer_jax.runs.folder import identifying_versions
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.sweeps.checks import validate
from transformer_jax.sweeps.resolved import ResolvedSweep, resolve
from transformer_jax.sweeps.run import SweepRun, digest

BASE = TINY | {"train": TINY["train"] | {"steps": 12}, "decode": {"beam": 1, "extra_length": 2}}
FOUR = Variant("h = 4", {"model.num_heads": 4})


def sweep(*variants: Variant, **changes) -> Sweep:
    """Of the base and some variants; changes to the Sweep by name."""
    return Sweep(
        **{
            "name": "tiny",
            "question": "Do heads matter?",
            "base": BASE,
            "seeds": 1,
            "variants": [Variant("base"), *variants],
            **changes,
        }
    )


def defined(*variants: Variant, overrides=(), **changes) -> ResolvedSweep:
    """A sweep that was validated and resolved."""
    definition = sweep(*variants, **changes)
    validate(definition, "file.py", overrides)
    return resolve(definition, "file.py", None, overrides)


def experiment_file(directory: Path, *variants: str, seeds: int = 1, before: str = "", **options) -> Path:
    """An experiment file; each variant as its source text."""
    path = directory / "experiment.py"
    path.write_text(
        f"from transformer_jax.sweeps import Sweep, Variant\n{before}\n"
        f"BASE = {BASE!r}\n"
        "def get_sweep():\n"
        f"    variants = [Variant('base'), {', '.join(variants)}]\n"
        f"    return Sweep('tiny', 'Do heads matter?', BASE, variants, seeds={seeds}, **{options!r})\n"
    )
    return path


def command(directory: Path, *arguments: str) -> list[str]:
    cache = f"--config.train.compile_cache={directory / 'cache'}"
    return [sys.executable, "-m", "transformer_jax.cli", "sweep", str(directory / "experiment.py"), cache, *arguments]


def run(directory: Path, *arguments: str, status: int = 0, **environment: str) -> subprocess.CompletedProcess:
    """`transformer-jax sweep` of the directory's experiment file, to its end."""
    env = {**os.environ, "XLA_FLAGS": os.environ["XLA_FLAGS_OF_COMMANDS"], "TF_CPP_MIN_LOG_LEVEL": "2", **environment}
    done = subprocess.run(command(directory, *arguments), env=env, capture_output=True, text=True, cwd=directory)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def pretend_finished(
    run: SweepRun,
    loss: float = 1.0,
    flops: float = 1e9,
    seconds: float = 1.0,
    together: int = 1,
    devices: str = "",
) -> None:
    """Leaves a result as a worker would."""
    run.path.mkdir(parents=True, exist_ok=True)
    result = {
        "config_digest": digest(run.experiment),
        "steps": 12,
        "valid": {"loss": loss, "perplexity": math.exp(loss)},
        "tests": {
            split: {
                "bleu": 50.0,
                "perplexity_per_token": 1.25,
                "exact_match": {"right": 1, "total": 5},
                "custom_metrics": {"count": 7.0},
                "file": f"translations/{split}.latest.json",
                "test_set_sha256": "0",
                "steps": [12],
            }
            for split in run.tests
        },
        "code": {},
        "versions": identifying_versions(),
        "training_flops": flops,
        "train_seconds": seconds,
        "target_tokens": 1000,
        "tokens_per_second": 1000 / seconds,
        "together": together,
        "devices": devices,
    }
    record = {
        "test_set": "test",
        "test_set_sha256": "0",
        "n": 5,
        "weights": "latest",
        "steps": [12],
        "decode": {},
        "measures": {"bleu": {"score": 50.0}},
        "perplexity": {"per_token": 1.25},
    }
    for split in run.tests:
        (run.path / "translations").mkdir(exist_ok=True)
        write_json(run.path / "translations" / f"{split}.latest.json", record)
    write_json(run.path / "result.json", result)
