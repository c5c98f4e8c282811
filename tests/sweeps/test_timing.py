"""The parts of a run, timed by the actual programs in a process of their own."""

from tests.support.sweep_runs import defined
from transformer_jax.sweeps import estimate


def test_every_part_is_timed(folder, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    definition = defined()
    (run,) = folder.runs(definition)
    (work,) = estimate.left([run], {"base": 12})
    parts = estimate.timed(folder, work, definition, estimate.slots(1))
    assert parts.pop("lengths") == "sampled"
    assert all(seconds > 0 for seconds in parts.values()), parts
    assert parts["cached"] < parts["compile"] and parts["update"] < parts["compile"]
    slow = estimate.timed(folder, work._replace(flops=1e18), definition, estimate.slots(1))
    assert slow.keys() == {"start", "rate"}, "its updates would take too long"
    assert not folder.path.exists()
