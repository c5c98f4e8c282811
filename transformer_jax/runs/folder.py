"""The folder of a run: its files, its lock, and whether a config describes the run there.

A folder with anything but a run is rejected before anything is written there.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, TrainConfig
from transformer_jax.errors import STRAY_BYTE, BadInput, ConfigError, Failed, visible
from transformer_jax.files import atomic, paths, remote
from transformer_jax.files.digests import sha256
from transformer_jax.files.progress import tell
from transformer_jax.files.record import read_bytes, read_object, read_typed
from transformer_jax.runs.code import CodeSnapshots, changes, code_of
from transformer_jax.runs.metrics import newest_metrics
from transformer_jax.runs.state import Versions, record_state
from transformer_jax.runs.tracking import Labels, Tracking
from transformer_jax.version import commit, source_digest

# The update at which the learning rate's schedule ends; None if it has no end.
ScheduleEnd = Callable[[TrainConfig], int] | None

PACKAGES = ("transformer_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "sentencepiece")
# Another version of these may compute other numbers.
IDENTIFYING = ("transformer_jax", "transformer_jax_sha256", "jax", "jaxlib", "flax", "optax")
# With another value of these, the same program rounds otherwise, and a resumed run is not bit for bit the same.
NUMERICS = ("xla_flags", "cores", "cpu", "devices")
MADE_BY = (*IDENTIFYING, *NUMERICS)

# Keys in versions.json: digests of config.json and of this library's source; what made earlier steps, if it was
# something else; whether the run has had a checkpoint; its last step; the run whose weights it started with.
CONFIG_DIGEST, SOURCE_DIGEST, EARLIER = "config_sha256", "transformer_jax_sha256", "earlier"
HAD_CHECKPOINT = "had_checkpoint"
LAST_STEP, INIT_FROM = "last_step", "init_from"
WEIGHTS, ORIGIN = "model.safetensors", "weights.json"  # an exported folder has both
# Files that `train`, `prepare` and a sweep's worker leave if they are killed before they write versions.json.
LEFT_BY_A_START = {".lock", "data", "data.lock", "data.partial", ".worker.lock", "log.txt"}


class RunFolder:
    """The folder of a run. With several processes the first writes, and the others read.

    With `accept_changed_code` a run is resumed although its custom code was edited, and that is recorded. A new run
    starts with the weights of `init_from`; with `must_resume` it is an error.
    """

    def __init__(
        self,
        path: str | Path,
        writes: bool = True,
        accept_changed_code: bool = False,
        labels: Labels | None = None,
        init_from: str | None = None,
        must_resume: bool = False,
    ):
        self.path, self.writes, self._labels = Path(paths.expanded(path)), writes, labels or Labels()
        self.accept_changed_code, self.init_from, self.must_resume = accept_changed_code, init_from, must_resume
        self._taken_by: Callable[[], str] = str  # the other training here, if there is one
        self.lock, self.config = self.path / ".lock", self.path / "config.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = remote.place_of(self.path / "checkpoints")
        self.averaged, self.profile = self.path / "averaged", self.path / "profile"
        self.code = CodeSnapshots(self.path)
        self._versions, self._is_noted, self._has_begun = self.path / "versions.json", False, False

    def tracking(self, config: ExperimentConfig) -> Tracking | None:
        """The tracker to which the metrics are reported, if there is one. Only the first process has it."""
        if not self.writes or not config.train.tracker:
            return None
        return Tracking(self.path, config, self._labels, has_checkpoint=bool(self.saved_steps()))

    def data(self, config: ExperimentConfig) -> Path:
        return Path(config.data.directory or self.path / "data")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Makes the folder and locks it against every other training.

        A lock of another machine is waited for a while: the machine may have died. A training that fails before it
        writes anything leaves nothing behind.
        """
        refuse_patterns(self.path)
        self._is_noted = self._has_begun = False
        with contextlib.ExitStack() as stack:
            if self.writes:
                if self.must_resume and not self.saved_steps():
                    raise Failed(f"{self.path}: has no checkpoint to resume from (--must-resume): is it mounted?")
                with atomic.explained(self.path):
                    refuse_foreign(self.path)
                    stack.enter_context(atomic.made(self.path))
                    self._lock(stack)
            try:
                yield
            except (Exception, KeyboardInterrupt) as error:
                if self._has_begun:
                    is_interrupt = isinstance(error, KeyboardInterrupt)
                    how = ("stopped", "interrupted") if is_interrupt else ("failed", visible(str(error)))
                    with contextlib.suppress(BadInput, Failed, OSError):
                        self.record_state(*how)
                raise

    def _lock(self, stack: contextlib.ExitStack) -> None:
        waits = list(atomic.WAITS)
        while True:
            try:
                self._taken_by = stack.enter_context(remote.owned(self.lock))
                return
            except atomic.Locked as holder:
                if not waits or str(holder).endswith(f" on {socket.gethostname()}"):
                    message = f"{self.path}: {holder} is training here; wait, or use another --workdir"
                    raise Failed(message) from None
                tell(f"{self.path}: {holder} is training here, or has died: waiting")
                time.sleep(waits.pop(0))

    def push(self) -> None:
        """Writes what has changed into the bucket, if the folder is the mirror of one there."""
        if self.writes:
            remote.push(self.path)

    def refuse_removed(self, cause: Exception | None = None) -> None:
        """Raises Failed if the folder of this training was removed or renamed, which may be the cause of an error."""
        try:
            self.config.stat()
        except FileNotFoundError:
            raise Failed(f"{self.path}: was removed or renamed during training; nothing more is written") from cause
        except OSError:  # the file system does not answer now
            pass

    def refuse_other_training(self) -> None:
        """Raises Failed if the folder was removed, or if another training has taken it over.

        Not every file system's locks prevent the latter.
        """
        self.refuse_removed()
        if other := self._taken_by():
            raise Failed(f"{self.path}: {other} has begun to train here, so this process ends and writes no more")

    def load_config(self) -> ExperimentConfig:
        """The config of the run, with the places where its custom code is now."""
        return self.code.found(self.stored_config(), self.config, self.versions().get("directory"))

    def stored_config(self) -> ExperimentConfig:
        if not self.config.is_file():
            raise BadInput(f"{self.path}: is not a run (it has no config.json); transformer-jax train makes one")
        try:
            return configuration.from_json(read_bytes(self.config), self.config)
        except ConfigError as error:
            raise ConfigError([f"{self.config}: {problem}" for problem in error.problems]) from None

    def versions(self) -> dict[str, Any]:
        """The content of versions.json; empty if it is missing or damaged."""
        with contextlib.suppress(BadInput):
            return dict(read_typed(self._versions, Versions))
        return {}

    def warn_of_changed_config(self) -> None:
        """Warns if config.json is not what the training wrote."""
        digest = sha256(read_bytes(self.config))
        if self.versions().get(CONFIG_DIGEST, digest) != digest:
            tell(f"warning: {self.config} was changed by hand, or is damaged; it is used as it is")

    def compare_run(
        self, config: ExperimentConfig, schedule_end: ScheduleEnd = None, unknown: Collection[str] = ()
    ) -> bool:
        """Whether the run of this config has a checkpoint here. Another run, or one without them, raises BadInput.

        The options in `unknown` are not compared.
        """
        if self._newest_step() is not None:
            self._refuse_another_run(config, schedule_end, unknown)
            return True
        if self.writes and (steps := self.saved_steps()):
            raise BadInput(
                f"{self.path}: has checkpoints up to step {max(steps):,} but no config.json, which says what run "
                "they are of: put it back, or use another --workdir"
            )
        last = next((line["step"] for line in newest_metrics(self.metrics)), 0)
        # The folder of checkpoints is made before the first line of metrics.
        is_removed = isinstance(self.checkpoints, Path) and not self.checkpoints.is_dir()
        if self.writes and last and (is_removed or self.versions().get(HAD_CHECKPOINT)):
            raise BadInput(
                f"{self.path}: its checkpoints are gone, and metrics.jsonl goes to step {last:,}: put "
                f"{self.checkpoints.name}/ back, or use another --workdir (or delete metrics.jsonl to start anew)"
            )
        return False

    def note_checkpoint(self) -> None:
        """Records that a checkpoint is complete, if one is: if there are none at a later start, they were lost."""
        if not self.writes or self._is_noted or not self.saved_steps():
            return
        self._is_noted, versions = True, self.versions()
        if versions and not versions.get(HAD_CHECKPOINT):
            with atomic.explained(self.path):
                atomic.write_record(self._versions, {**versions, HAD_CHECKPOINT: True})

    def record(self, config: ExperimentConfig, last_step: int | None = None) -> None:
        """Writes config.json and versions.json; another run raises BadInput. Only the first process writes."""
        addresses, step = list(configuration.addresses(config)), self._newest_step()
        if step is not None or not self.writes:
            self._refuse_another_run(config)
        if not self.writes:
            return
        with atomic.explained(self.path):
            code = code_of(addresses)
            # Metrics that only evaluations use have their digests there.
            noted = addresses if config.decode.bleu_sentences else configuration.training_addresses(config)
            stored = None if step is None else self.stored_config()
            text = configuration.to_json(_with_absolute_paths(config, stored)).encode()
            before, versions = self.versions() if step is not None else {}, {**installed_versions(), **numerics()}
            # The software and hardware of the steps so far, where it differs from the present.
            made_by = {name: before[name] for name in MADE_BY if name in before}
            changed = [
                f"{name} changed from {old} to {versions.get(name)}"
                for name, old in made_by.items()
                if old != versions.get(name)
            ]
            earlier = before.get(EARLIER, [])
            if changed and (not earlier or earlier[-1]["until"] != step):  # else the last start made no step
                earlier = [*earlier, {"until": step, **made_by}]
            if changed:
                tell(f"warning: {self.path}: {', '.join(changed)}: the run continues, perhaps not bit for bit")
            versions |= {EARLIER: earlier} if earlier else {}
            versions |= {HAD_CHECKPOINT: True} if step is not None else {}
            versions |= {LAST_STEP: last_step, INIT_FROM: self.init_from if step is None else before.get(INIT_FROM)}
            versions[CONFIG_DIGEST] = sha256(text)
            atomic.write_record(self._versions, versions)  # first: a folder with it is a run
            self.code.keep(addresses, code, step or 0, noted)
            atomic.write_atomically(self.config, text)
        self.record_state("running")
        self._has_begun = True

    def record_state(self, state: str, why: str = "") -> None:
        """Records that the training begins or how it ended, for `transformer-jax status`."""
        if self.writes:
            record_state(self.path, state, why)

    def notes(self) -> list[str]:
        """A warning that names steps that were made by other code."""
        lines = self.code.notes()
        versions = self.versions()
        for before in versions.get(EARLIER, []):
            known = [name for name in MADE_BY if name in before]
            changed = [f"{name} {before[name]}" for name in known if before[name] != versions.get(name)]
            if changed:
                lines.append(f"steps up to {before['until']:,} were made by {', '.join(changed)}")
        return lines

    def saved_steps(self) -> set[int]:
        """The steps of the checkpoints, damaged or not."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a bucket has no empty folders
            return {int(path.name) for path in self.checkpoints.iterdir() if path.name.isdecimal()}
        return set()

    def _newest_step(self) -> int | None:
        """The newest checkpoint, damaged or not; None if the run has not started."""
        return max(self.saved_steps(), default=None) if self.config.is_file() else None

    def _refuse_another_run(
        self, config: ExperimentConfig, schedule_end: ScheduleEnd = None, unknown: Collection[str] = ()
    ) -> None:
        old, new = with_plain_addresses(self.stored_config()), with_plain_addresses(config)
        differences = [
            f"{option.path}: {before} there, {now} here"
            for option, before, now in schema.differing(old, new)
            # Paths do not say what is in the files: the data itself is compared with the checkpoint's.
            if option.affects in ("corpus", "data", "result") and not option.is_path and option.path not in unknown
        ]
        if schedule_end and (before := schedule_end(old.train)) != (now := schedule_end(new.train)):
            schedule, until = new.optimizer.schedule, new.optimizer.same_until(before, now)
            if (self._newest_step() or 0) > until:
                differences.append(
                    f"train.steps, train.epochs: the {schedule} schedule ends at update {before} there, {now} here, "
                    f"which would change rates since update {until}"
                )
        if differences:
            self.warn_of_changed_config()
            lines = "\n  ".join(["It differs in:", *differences])
            raise BadInput(f"{self.path}: holds another run; use another --workdir, or the config of that run. {lines}")
        changed = changes(self.code.latest(), code_of(configuration.training_addresses(config)))
        if changed and not self.accept_changed_code:
            raise BadInput(
                f"{self.path}: was trained with other custom code: {'; '.join(changed)}. Restore it (a copy is in "
                f"{self.code.path}), use another --workdir, or give --accept-changed-code, which reports will mention"
            )


def refuse_foreign(path: Path) -> None:
    """Raises BadInput for a folder that is neither new nor empty nor a run, before anything is written there."""
    entries = path.iterdir() if path.is_dir() else ()
    names = {entry.name for entry in entries if not entry.name.endswith(atomic.UNFINISHED)}
    if names & {WEIGHTS, ORIGIN}:
        raise BadInput(
            f"{path}: is an exported folder, whose config.json training would replace; use another --workdir "
            f"(--init-from={path} begins with its weights)"
        )
    others = sorted(names - LEFT_BY_A_START)
    if others and not is_run(path):
        raise BadInput(
            f"{path}: is not a run of this library, and not empty (it has {', '.join(others[:5])}); "
            "use a new or empty folder"
        )


def is_run(path: Path) -> bool:
    """Whether a folder is a run of this library; some of its files may be missing or damaged."""
    # versions.json is written first, attempt.json by a sweep's worker before it trains.
    for name, field in (("versions.json", SOURCE_DIGEST), ("attempt.json", "host")):
        with contextlib.suppress(OSError, BadInput):
            if field in read_object(path / name):
                return True
    return (path / "config.json").is_file() and (path / "checkpoints").is_dir()


def refuse_patterns(path: Path) -> None:
    """Raises BadInput for a path that orbax would read as a glob pattern, or cannot read."""
    if found := set(str(path.absolute())) & set("[]*?\\"):
        raise BadInput(f"{path}: has {' '.join(found)} in its path, where no checkpoint could be read back; rename it")
    if STRAY_BYTE.search(str(path.absolute())):
        raise BadInput(f"{path}: is not UTF-8, so no checkpoint could be written there; rename it")


def _with_absolute_paths(config: ExperimentConfig, stored: ExperimentConfig | None) -> ExperimentConfig:
    """The config as it is stored. A resumed run keeps the paths of texts that are not in the current directory."""

    def absolute(option: schema.Option, text: str) -> str:
        if not text or not option.is_path:
            return text
        path = text if text.startswith(("~", paths.BUCKETS)) else str(Path(text).absolute())
        if option.affects in ("corpus", "data") and not path.startswith(paths.BUCKETS) and not os.path.exists(path):
            missing.add(option.path)
        return path

    missing: set[str] = set()
    placed = schema.with_texts(config, absolute)
    kept = {path: schema.value_at(stored, path) for path in missing} if stored else {}
    return schema.with_values(placed, kept)


def with_plain_addresses(config: ExperimentConfig) -> ExperimentConfig:
    """The config with addresses of custom code without their folders: the code itself is compared."""
    return configuration.with_addresses(config, lambda _, address: os.path.basename(address))


def identifying_versions() -> dict[str, str]:
    """The installed versions of what computes the numbers of a run."""
    return {name: version for name, version in installed_versions().items() if name in IDENTIFYING}


def installed_versions() -> dict[str, Any]:
    """The facts about this process that versions.json records."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": shlex.join(sys.argv),
        "directory": os.getcwd(),  # relative addresses in the config refer to it
    }
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    found[SOURCE_DIGEST] = source_digest()
    if made_from := commit():
        found["commit"] = made_from
    return found


def facts_of(config: ExperimentConfig) -> dict[str, Any]:
    """What makes a run: versions, options but for paths, and custom code."""
    versions = {name: version for name, version in installed_versions().items() if name in (*PACKAGES, SOURCE_DIGEST)}
    plain, declared = with_plain_addresses(config), schema.options(ExperimentConfig)
    options = {option.path: schema.value_at(plain, option.path) for option in declared if not option.is_path}
    code = {key: used.digest for key, used in code_of(configuration.addresses(config)).items()}
    return {**versions, **options, **code}


def numerics() -> dict[str, Any]:
    """The facts that affect, besides the versions, how numbers are rounded in this process."""
    import jax  # here, because it loads slowly

    from transformer_jax.processes.hardware import cores

    cpuinfo = Path("/proc/cpuinfo")
    cpu = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.exists() else None
    kinds = [device.device_kind for device in jax.devices()]
    return {
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "cores": cores(),
        "cpu": cpu[1] if cpu else platform.machine(),
        "devices": ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds)),
    }
