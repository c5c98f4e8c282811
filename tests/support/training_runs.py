"""What the tests of whole trainings share: `transformer-jax train` on the copy task, in this process or in another."""

import contextlib
import copy
import dataclasses
import functools
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

from transformer_jax import cli, schema
from transformer_jax.config import ExperimentConfig, TrainConfig, from_config_dict
from transformer_jax.model_config import PartsConfig
from transformer_jax.runs.folder import RunFolder
from transformer_jax.training import train as train_module
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.update.optimizer import ends_with_the_run

# Names in metrics.jsonl that depend on the clock; all others are the same for every run of the same config.
CLOCK = ("time", "seconds", "source_tokens_per_second", "target_tokens_per_second", "data_wait", "mfu", "memory_peak")

# A tiny experiment, of seconds.
TASK = {"train_size": 300, "valid_size": 30, "test_size": 10, "alphabet": 8}
TINY: dict[str, dict[str, Any]] = {
    "data": {"corpus": "copy", "tokenizer": "words", "task": TASK, "tokens_per_batch": 256, "num_shapes": 1},
    "model": {"d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "optimizer": {"warmup_steps": 4, "learning_rate": 3e-3},
    "train": {"steps": 24, "log_every": 5, "eval_every": 6, "checkpoint_every": 6, "keep_latest": 2}
    | {"tensorboard": False, "peak_flops": 1e12},
}
CONFIG = f"""
from transformer_jax.config import default_config

def get_config():
    config = default_config()
    config.update({TINY})
    return config
"""


def command(workdir: Path, *options: str) -> list[str]:
    """`transformer-jax train`, on a config beside the workdir and the compile cache of all tests."""
    config = workdir.parent / "config.py"
    config.write_text(CONFIG)
    cache = f"--config.train.compile_cache={os.environ['CACHE_OF_TESTS']}"
    train = [sys.executable, "-m", "transformer_jax.cli", "train", f"--config={config}", f"--workdir={workdir}"]
    return [*train, cache, *(f"--config.{option}" for option in options)]


def environment(devices: int = 1) -> dict[str, str]:
    """What a command finds that has some devices; a single one gets as many threads as there are cores."""
    flags = os.environ.get("XLA_FLAGS_OF_COMMANDS", "")
    own = {"XLA_FLAGS": flags, "PJRT_NPROC": ""}
    many = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} {flags}"}
    return {**os.environ, **(many if devices > 1 else own), "TF_CPP_MIN_LOG_LEVEL": "2"}


known_steps: dict[Any, CompiledRuns] = {}


def _of_steps(config: ExperimentConfig) -> ExperimentConfig:
    """The part of a config that its compiled programs depend on."""
    values = dataclasses.asdict(config)
    numeric = [option for option in schema.options(TrainConfig) if option.affects in ("result", "computation")]
    values["train"] = {option.path: values["train"][option.path] for option in numeric}
    return from_config_dict({name: values[name] for name in ("seed", "model", "optimizer", "mesh", "train")})


def _shared(configs: Sequence[ExperimentConfig], schedules: Any, mesh: Any, params: Any = None) -> CompiledRuns:
    config = configs[0]
    custom = config.train.loss is not None or config.model.parts != PartsConfig()
    if params is not None or custom or (len(configs) == 1 and ends_with_the_run(config.optimizer)):
        return CompiledRuns(configs, schedules, mesh, params)
    key = (tuple(configs) if len(configs) > 1 else (_of_steps(config),), mesh)
    if key not in known_steps:
        known_steps[key] = CompiledRuns(key[0], schedules, mesh)
        known_steps[key].new_states = _once(known_steps[key].new_states)
    steps = copy.copy(known_steps[key])
    steps.configs, steps.schedules = configs, schedules
    return steps


def _once(new_states: Callable[[], Any]) -> Callable[[], Any]:
    """The same states, initialized once: a training gives its states away."""

    @functools.cache
    def known() -> tuple[Any, Any]:
        states = new_states()
        return jax.device_get(states), jax.tree.map(lambda leaf: leaf.sharding, states)

    return lambda: jax.device_put(*known(), may_alias=False)


@contextlib.contextmanager
def shared_programs() -> Iterator[None]:
    """Trainings with the same programs trace and compile them once in this process. Not for custom modules."""
    with mock.patch.object(train_module, "CompiledRuns", _shared):
        yield


def train_here(workdir: Path, *options: str, devices: int = 1, status: int = 0, flags: Sequence[str] = ()) -> str:
    """Trains in this process, on some of its simulated devices; returns what was written to stderr.

    Programs are compiled without optimizations, so the numbers are not to the last bit those of `train`.
    """
    arguments = command(workdir, *options)
    some, stderr = jax.devices()[:devices], io.StringIO()
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    try:
        with (
            mock.patch.object(jax, "devices", return_value=some),
            contextlib.redirect_stderr(stderr),
            shared_programs(),
        ):
            found = cli.main([*arguments[arguments.index("train") :], *flags])
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()
    assert found == status, stderr.getvalue()
    return stderr.getvalue()


def train(workdir: Path, *options: str, devices: int = 1, status: int = 0) -> str:
    """Trains in a process of its own; returns what it wrote to stderr."""
    return _ended(command(workdir, *options), environment(devices), status)


def run(*arguments: str, env: dict[str, str], status: int = 0) -> str:
    """Any command of transformer-jax; what it wrote to stderr."""
    return _ended([sys.executable, "-m", "transformer_jax.cli", *arguments], env, status)


def _ended(arguments: list[str], env: dict[str, str], status: int) -> str:
    done = subprocess.run(arguments, env=env, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr


def metrics(workdir: Path) -> list[dict]:
    """metrics.jsonl without what the clock has a part in."""
    lines = (json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


def weights(workdir: Path) -> dict[str, np.ndarray]:
    """The parameters of the newest checkpoint, by path."""
    from transformer_jax.runs.export import SavedWeights, flat

    return flat(SavedWeights(RunFolder(workdir)).newest().params)


def errors(stderr: str) -> list[str]:
    """The error message that a user sees."""
    return [line for line in stderr.splitlines() if line.startswith(("error:", "failed:", "warning:"))]


def assert_same_run(ours: Path, theirs: Path) -> None:
    """To the bit."""
    assert metrics(ours) == metrics(theirs)
    ours_now, theirs_now = weights(ours), weights(theirs)
    assert ours_now.keys() == theirs_now.keys()
    for name, array in theirs_now.items():
        np.testing.assert_array_equal(ours_now[name], array, err_msg=name)


NOISE = ("Traceback", "Exception ignored", "Error in", "coroutine", "absl", "WARNING")


def assert_quiet(stderr: str) -> None:
    """Nothing but our own lines."""
    assert not [line for line in stderr.splitlines() if any(noise in line for noise in NOISE)], stderr
