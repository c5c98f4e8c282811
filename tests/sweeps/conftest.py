"""What the tests of sweeps share: an empty sweep folder, and a sweep whose workers ran."""

import contextlib
import signal

import pytest

from tests.support.devices import one_device
from tests.support.sweep_runs import experiment_file
from transformer_jax.sweeps import resolved
from transformer_jax.sweeps.folder import SweepFolder
from transformer_jax.sweeps.shielded import SIGNALS
from transformer_jax.sweeps.worker import Worker

FUNCTIONS = """
def words(run, config, tests):
    return {"title": "Words", "score": [len(text.split()) for text in tests["test"].sources]}

def count(hypotheses, references, sources):
    return len(hypotheses)
"""


@pytest.fixture
def folder(tmp_path):
    return SweepFolder(tmp_path / "sweep")


def work(folder, definition, *run_ids):
    """What a worker process does with these runs, here; returns its exit status."""
    handlers = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGINT)}
    try:
        return Worker(folder, definition, [folder.by_id(definition)[run_id] for run_id in run_ids]).work()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def worked(tmp_path_factory):
    """A sweep of three runs: one should train with one whose folder is corrupt; in the third a file is a folder.

    Returns (folder, definition, {run_id: exit status}).
    """
    place = tmp_path_factory.mktemp("worked")
    path = experiment_file(
        place,
        "Variant('dropout', {'model.dropout': 0.3})",
        "Variant('h = 4', {'model.num_heads': 4})",
        before=FUNCTIONS,
        analyses={"words": f"{place / 'experiment.py'}:words"},
        primary="count",
    )
    folder = SweepFolder(place / "sweep")
    corrupt, blocked = folder.path / "runs/dropout/seed-0", folder.path / "runs/h-=-4/seed-0"
    (corrupt / "checkpoints/6").mkdir(parents=True)
    (corrupt / "config.json").write_text("{ damaged")
    (blocked / "config.json").mkdir(parents=True)
    overrides = [("train.compile_cache", "none"), ("decode.metrics", f"{path}:count")]
    folder.save(resolved.load(str(path), overrides=overrides))
    definition = folder.load()
    with contextlib.chdir(place), one_device():
        together = work(folder, definition, "dropout/seed-0", "base/seed-0")
        alone = work(folder, definition, "h-=-4/seed-0")
    return folder, definition, {"base/seed-0": together, "dropout/seed-0": together, "h-=-4/seed-0": alone}
