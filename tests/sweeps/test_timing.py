"""The parts of a run, timed by the actual programs in a process of their own."""

from tests.support.sweep_runs import defined
from transformer_jax.sweeps import estimate


def test_every_part_is_timed(folder, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    definition = defined()
    (run,) = folder.runs(definition)
    parts = estimate.timed(folder, run, definition, estimate.slots(1))
    assert parts.pop("lengths") == "sampled"
    assert all(seconds > 0 for seconds in parts.values()), parts
    assert parts["cached"] < parts["compile"] and parts["update"] < parts["compile"]
    assert not folder.path.exists()
