"""The folder of all cases, and the results of undisturbed runs, which those of disturbed ones must equal."""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.children import Child, Ended, answer, command, run
from tests.chaos.tally import check
from tests.support.training_runs import CONFIG, metrics, weights
from transformer_jax.experiment import prepared_data
from transformer_jax.runs.folder import RunFolder

SMALLER = {"'d_model': 16": "'d_model': 8", "'d_ff': 32": "'d_ff': 8", "'train_size': 300": "'train_size': 120"}
# What is trained; each another path through the code.
VARIANTS = {
    "plain": (),
    "accumulate": ("train.accumulate=2",),
    "packing": ("data.batching=packing", "data.max_length=24"),
    "tensorboard": ("train.tensorboard=true", "train.keep_best=1"),
    "validating": ("train.eval_every=1", "decode.bleu_sentences=8"),
    "often": ("train.checkpoint_every=2", "train.eval_every=2"),
}
# How much of the first training's time the next ones take, which find its programs compiled.
WARM = 0.4


class Place:
    """A directory with a config, a compile cache, and reference runs that are made when they are first wanted."""

    def __init__(self, root: Path, variants: Sequence[str] = tuple(VARIANTS)):
        self.root, self.variants = root, list(variants)
        root.mkdir(parents=True, exist_ok=True)
        self.config = root / "config.py"
        text = CONFIG
        for old, new in SMALLER.items():
            assert old in text
            text = text.replace(old, new)
        self.config.write_text(text)
        self._numbers = itertools.count()
        self._references: dict[str, tuple[Path, dict[str, str]]] = {}
        self.seconds = 0.0  # of an undisturbed training
        # The same of trainings of several processes; see several.py.
        self.of_several: dict[str, tuple[dict[str, str], float]] = {}

    def new(self, name: str) -> Path:
        """A path that nothing has used yet."""
        return self.root / f"{next(self._numbers):04d}-{name}"

    def train(self, variant: str, workdir: Path, *options: str) -> list[str]:
        """The command that trains a variant."""
        own = [f"--config.{option}" for option in (*VARIANTS[variant], *options)]
        cache = f"--config.train.compile_cache={self.root / 'cache'}"
        return ["train", f"--config={self.config}", f"--workdir={workdir}", cache, *own]

    def reference(self, variant: str) -> tuple[Path, dict[str, str]]:
        """An undisturbed run's folder, and what it comes to."""
        if variant not in self._references:
            workdir, begin = self.new(f"reference-{variant}"), time.monotonic()
            ended = run(self.train(variant, workdir))
            check(ended.status == 0, ended.err)
            self.seconds = WARM * (time.monotonic() - begin)
            self._references[variant] = workdir, fingerprint(workdir)
        return self._references[variant]

    def finished(self) -> Path:
        """A run with everything that commands leave in a folder."""
        workdir, _ = self.reference("plain")
        if not (workdir / "exported").exists():
            for arguments in (
                ["average", f"--workdir={workdir}", "--last=2"],
                ["evaluate", f"--workdir={workdir}", "--beam=1"],
                ["export", f"--workdir={workdir}", f"--output={workdir / 'exported'}"],
            ):
                check(run(arguments).status == 0, arguments)
        return workdir

    def done(self, variant: str, workdir: Path, *options: str) -> Ended:
        """Trains to the end, and compares with the undisturbed run."""
        ended = run(self.train(variant, workdir, *options))
        check(ended.status == 0, f"not resumable:\n{ended.err[-2000:]}")
        self.compare(variant, workdir)
        return ended

    def compare(self, variant: str, workdir: Path) -> None:
        reference, wanted = self.reference(variant)
        found = fingerprint(workdir)
        check(found == wanted, f"{workdir} is another run than {reference}:\n{found}\n{wanted}")

    def start(self, variant: str, workdir: Path) -> Child:
        return command(self.train(variant, workdir))


def fingerprint(workdir: Path) -> dict[str, str]:
    """A run's parameters to the bit, and its metrics but for the clock."""
    return json.loads(answer(lambda: json.dumps({"weights": _digest(workdir), "metrics": str(metrics(workdir))})))


def prepared_bytes(directory: Path) -> dict[str, str]:
    """The content of prepared data, by file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"
        for path in sorted(directory.iterdir())
    }


def _digest(workdir: Path) -> str:
    found = hashlib.sha256()
    for name, array in sorted(weights(workdir).items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    folder = RunFolder(workdir)
    found.update(prepared_data(folder.load_config(), folder).fingerprint.encode())
    return found.hexdigest()
