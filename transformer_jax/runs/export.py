"""A run's weights without its optimizer state: read from checkpoints, averaged, exported.

An exported folder is self-contained: `model.safetensors` (one array for each parameter, by path), `config.json`, the
tokenizer files, and `weights.json`, which records where the weights come from.
"""

import contextlib
import itertools
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import jax
import numpy as np
from flax import traverse_util

from transformer_jax import config as configuration
from transformer_jax.config import ExperimentConfig, MeshConfig
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput, Failed
from transformer_jax.files.atomic import UNFINISHED, explained, locked, write_atomically, write_record
from transformer_jax.files.digests import file_sha256, sha256
from transformer_jax.files.paths import inside
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_typed
from transformer_jax.model.transformer import abstract_params
from transformer_jax.runs.checkpoint import Checkpoints, DamagedCheckpoint, differences, regular, shapes
from transformer_jax.runs.code import CodeSnapshots
from transformer_jax.runs.folder import ORIGIN, WEIGHTS, RunFolder
from transformer_jax.runs.metrics import Criterion, metrics_lines
from transformer_jax.update.optimizer import averaged_params, optimizer_of
from transformer_jax.update.sharding import make_mesh
from transformer_jax.update.step import TrainState


class Origin(TypedDict):
    """The content of weights.json."""

    steps: list[int]
    tokenizers: dict[str, str]
    sha256: dict[str, str]


class Weights(NamedTuple):
    """A set of parameters, with its config, tokenizers and custom code."""

    config: ExperimentConfig
    params: Any
    tokenizers: dict[str, Path]  # the files, by side; only "source" if both sides share one
    steps: list[int]
    code: CodeSnapshots | None = None


class SavedWeights:
    """The weights in a run's checkpoints, as numpy arrays; with `ema` their moving averages."""

    def __init__(self, folder: RunFolder, ema: bool = False):
        self._folder, self.config, self._ema = folder, folder.load_config(), ema
        if ema and self.config.optimizer.ema is None:
            raise BadInput(f"{folder.path}: was trained without optimizer.ema, so it has no weights called ema")
        folder.warn_of_changed_config()
        if not folder.saved_steps():
            raise BadInput(f"{folder.path}: has no checkpoints yet; transformer-jax train makes them")
        self._checkpoints = Checkpoints(folder.checkpoints, read_only=True)
        self._wanted = _abstract(self.config)

    def newest(self) -> Weights:
        """The weights of the newest checkpoint that is not damaged."""
        for step in reversed(self._checkpoints.steps):
            try:
                return self._weights([step], self._params(step))
            except DamagedCheckpoint as problem:
                tell(f"warning: the checkpoint of step {step} is damaged ({problem}); looking for an earlier one")
        raise BadInput(f"{self._checkpoints.directory}: every checkpoint is damaged")

    def average(self, steps: Sequence[int]) -> Weights:
        """The mean of these checkpoints (section 6.1), summed in float64."""
        if len(steps) == 1:
            return self._weights(steps, self._undamaged(steps[0]))
        total: Any = None
        for step in steps:
            params = jax.tree.map(lambda leaf: leaf.astype(np.float64), self._undamaged(step))
            total = params if total is None else jax.tree.map(np.add, total, params)
        return self._weights(steps, jax.tree.map(lambda leaf: (leaf / len(steps)).astype(np.float32), total))

    def _undamaged(self, step: int) -> Any:
        if step not in self._checkpoints.steps:
            known = ", ".join(map(str, self._checkpoints.steps))
            raise BadInput(f"{self._checkpoints.directory}: has no checkpoint of step {step}; there are: {known}")
        try:
            return self._params(step)
        except DamagedCheckpoint as problem:
            # A disk that does not return a file is not the user's mistake.
            kind = Failed if isinstance(problem.__cause__, OSError) else BadInput
            raise kind(f"{self._checkpoints.directory / str(step)}: is damaged ({problem})") from None

    def _params(self, step: int) -> Any:
        with self._reading(step):
            state, _ = self._checkpoints.restore(step, self._wanted)
        decay = self.config.optimizer.ema
        if self._ema and decay is not None and int(state.updates):
            return averaged_params(state.optimizer, decay)
        return jax.device_get(state.params)

    @contextlib.contextmanager
    def _reading(self, step: int) -> Iterator[None]:
        try:
            yield
        except DamagedCheckpoint:
            if not self._checkpoints.is_deleted(step):
                raise
            place = self._checkpoints.directory / str(step)
            raise Failed(f"{place}: training deleted it while it was being read; try again") from None

    def _weights(self, steps: Sequence[int], params: Any) -> Weights:
        """The weights, with a warning where the run's data is not what the last checkpoint was trained on."""
        prepared = Prepared.open(self._folder.data(self.config))
        with contextlib.suppress(DamagedCheckpoint):
            if self._checkpoints.record(steps[-1])["notes"]["data"] != prepared.fingerprint:
                tell(
                    f"warning: {prepared.directory} is not the data that the checkpoint of step {steps[-1]} was "
                    "trained on: if its tokenizer is another one, translations and scores are meaningless"
                )
        return Weights(self.config, params, prepared.tokenizer_files, list(steps), self._folder.code)

    @property
    def regular_steps(self) -> list[int]:
        """All but those where the run was stopped between the others and resumed."""
        return regular(self._checkpoints.steps, self.config.train.checkpoint_every)

    def last_steps(self, count: int) -> list[int]:
        return self._enough(self.regular_steps, count)[-count:]

    def best_steps(self, count: int) -> list[int]:
        """The steps of the highest validation scores by train.best_metric, best first; of equal scores the earlier."""
        steps = self._checkpoints.steps
        notes = self._notes()
        lines = itertools.chain(notes.get("validations", ()), metrics_lines(self._folder.metrics))
        scores = Criterion(**notes["best"]).scores(lines, steps[-1])
        known = {step: score for step in steps if (score := scores.get(step)) is not None}
        return self._enough(sorted(known, key=lambda step: (-known[step], step)), count)[:count]

    def _notes(self) -> dict[str, Any]:
        """The notes of the newest checkpoint that is not damaged."""
        for step in reversed(self._checkpoints.steps):
            with contextlib.suppress(DamagedCheckpoint), self._reading(step):
                return self._checkpoints.record(step)["notes"]
        raise BadInput(f"{self._checkpoints.directory}: every checkpoint is damaged")

    def _enough(self, steps: list[int], count: int) -> list[int]:
        if count > len(steps):
            raise BadInput(
                f"{self._checkpoints.directory}: {count} checkpoints were asked for, there are {len(steps)} (the best "
                "have a score); train.keep_latest and train.keep_best say how many are kept"
            )
        return steps


def write_export(directory: Path, weights: Weights, replace: bool = False) -> None:
    """Writes an exported folder, completely or not at all."""
    from safetensors.numpy import save

    # safetensors would write an array that is not contiguous transposed, without an error.
    arrays = {name: np.ascontiguousarray(array) for name, array in flat(weights.params).items()}
    files = {WEIGHTS: save(arrays), "config.json": configuration.to_json(weights.config).encode()}
    names = [*files, *(path.name for path in weights.tokenizers.values())]
    if len(set(names)) < len(names):
        raise BadInput(f"{directory}: {', '.join(names)}: each file must have a name of its own there")
    files |= {path.name: path.read_bytes() for path in weights.tokenizers.values()}
    origin = {
        "steps": weights.steps,
        "tokenizers": {side: path.name for side, path in weights.tokenizers.items()},
        "sha256": {name: sha256(data) for name, data in files.items()},
    }
    with new_folder(directory, replace) as unfinished:
        for name, data in files.items():
            write_atomically(unfinished / name, data)
        if weights.code is not None and weights.code.path.is_dir():
            shutil.copytree(weights.code.path, unfinished / weights.code.path.name, symlinks=True)
        write_record(unfinished / ORIGIN, origin)


@contextlib.contextmanager
def new_folder(directory: Path, replace: bool = False) -> Iterator[Path]:
    """A folder to write into. It gets its name when it is complete."""
    exists = BadInput(f"{directory}: exists already; give another place or remove it")
    if (directory.exists() or directory.is_symlink()) and not replace:
        raise exists
    unfinished = directory.with_name(f"{directory.name}.{uuid.uuid4().hex[:8]}{UNFINISHED}")
    with explained(directory):
        try:
            unfinished.mkdir(parents=True)
            yield unfinished
            replaced = unfinished.with_suffix(f".replaced{UNFINISHED}")
            with locked(directory.with_name(f"{directory.name}.lock")):
                if directory.exists() and not replace:  # another process has made it meanwhile
                    raise exists
                with contextlib.suppress(FileNotFoundError):
                    directory.rename(replaced)
                    if not replaced.is_symlink():  # evaluations are kept: each record has the digest of its weights
                        (replaced / "translations").rename(unfinished / "translations")
                unfinished.rename(directory)
            if replaced.is_symlink():
                replaced.unlink()
            shutil.rmtree(replaced, ignore_errors=True)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def read_export(directory: Path) -> Weights:
    """Reads an exported folder, whose files are checked against their digests."""
    path = directory / ORIGIN
    origin = read_typed(path, Origin)
    if "source" not in origin["tokenizers"]:
        raise BadInput(f"{path}: is damaged: tokenizers has no source")
    if WEIGHTS not in origin["sha256"]:
        raise BadInput(f"{path}: is damaged: sha256 has no {WEIGHTS}")
    for name, digest in origin["sha256"].items():
        file = inside(directory, name, path)
        if not file.is_file() or file_sha256(file) != digest:
            raise BadInput(f"{file}: is missing, damaged or changed by hand: {ORIGIN} has another digest")
    folder = RunFolder(directory)
    config, arrays = folder.load_config(), stored_arrays(directory / WEIGHTS)
    here, wanted = (
        {name: str(list(array.shape)) for name, array in each.items()}
        for each in (arrays, flat(abstract_params(config.model)))
    )
    if others := differences(here, wanted):
        raise BadInput(f"{directory / WEIGHTS}: is of another model than config.json: {others[0]}")
    return Weights(
        config,
        traverse_util.unflatten_dict(arrays, sep="/"),
        {side: inside(directory, name, path) for side, name in origin["tokenizers"].items()},
        origin["steps"],
        folder.code,
    )


def stored_arrays(file: Path) -> dict[str, np.ndarray]:
    """Every array of a safetensors file, by its name. Such files contain no code."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays: dict[str, np.ndarray] = load_file(file)
    except (SafetensorError, OSError, AttributeError, TypeError, KeyError) as error:  # numpy has no types of 8 bits
        raise BadInput(f"{file}: is not a valid safetensors file: {error}") from None
    return arrays


def other_shapes(config: ExperimentConfig, params: Any) -> list[str]:
    """One line for each parameter whose type or shape differs from the config."""
    return differences(shapes(params), shapes(_abstract(config).params))


def flat(params: Any) -> dict[str, Any]:
    """Parameters by path: encoder/layers_0/self_attention/query/kernel."""
    return traverse_util.flatten_dict(params, sep="/")


def _abstract(config: ExperimentConfig) -> TrainState:
    """The abstract state of a config on the first device. The learning rate does not matter for shapes."""
    mesh = make_mesh(MeshConfig(data=1), jax.local_devices()[:1])
    return TrainState.abstract(config, optimizer_of(config.optimizer, lambda count: 0.0 * count), mesh)
