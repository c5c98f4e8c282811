"""Looking into a training: what is traced, and where a first NaN comes from."""

import gzip
import json
from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from tests.support.small_runs import Trainer, batches, experiment
from transformer_jax.errors import Failed
from transformer_jax.training.debugging import Debugging
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update import sharding

# Its gradient is 0 / 0, while the loss itself is finite.
LOSS = """
import jax
import jax.numpy as jnp

def loss(logits, targets, weights):
    nothing = jnp.sum((logits - jax.lax.stop_gradient(logits)) ** 2)
    return jnp.sum(jax.nn.logsumexp(logits, -1) * weights) + jnp.sqrt(nothing), jnp.sum(weights)
"""


def look(config, devices=1, spoiled=lambda params: params):
    """One step that is looked into, from spoiled parameters."""
    run = Trainer(config, devices)
    programs = CompiledSteps([config], [lambda count: 1e-3], run.mesh)
    state = run.new()
    with Debugging(debug_nans=True).installed(programs, 10, None):
        batch = sharding.place_batch(batches(1, rows=4)[0], run.mesh)
        programs.train_step(state.replace(params=spoiled(state.params)), batch)


def test_a_nan_of_the_forward_pass_is_found_where_it_is_made():
    """On two devices, each of which has a shard of the parameters."""

    def spoiled(params):
        inner = params["encoder"]["layers_0"]["feed_forward"]["inner"]
        inner["bias"] = jnp.full_like(inner["bias"], jnp.inf)  # what follows is infinite minus infinite
        return params

    with pytest.raises(Failed, match=r"step 1: invalid value \(nan\) .*, at .*transformer_jax/model/layers.py:\d+ "):
        look(experiment(mesh__fsdp=2), 2, spoiled)


@pytest.mark.slow
def test_a_nan_of_the_backward_pass_is_found_where_the_forward_pass_was(tmp_path):
    (tmp_path / "own.py").write_text(LOSS)
    line = 1 + next(number for number, text in enumerate(LOSS.splitlines()) if "nothing =" in text)
    place = rf"step 1: .*, in the backward pass of {tmp_path}/own.py:{line} \(loss\)"
    with pytest.raises(Failed, match=place):
        look(experiment(train__loss=f"{tmp_path / 'own.py'}:loss"))


def updates_in(profile):
    """The updates that a trace for Perfetto has."""
    [file] = profile.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {event["args"]["step_num"] for event in events if event.get("name") == "update"}


def three_steps_from(step, tmp_path, profile):
    """Of a step that does nothing but count."""
    programs = SimpleNamespace(train_step=lambda state, batch: (SimpleNamespace(step=state.step + 1), None))
    state = SimpleNamespace(step=step)
    with Debugging(profile).installed(programs, 10, tmp_path):
        for _ in range(3):
            state, _ = programs.train_step(state, None)


def test_a_trace_that_is_cut_short_is_whole(tmp_path):
    three_steps_from(0, tmp_path, (2, 5))
    assert updates_in(tmp_path) == {"2", "3"}


@pytest.mark.parametrize("first", [2, 6], ids=["before this start", "after the end"])
def test_steps_that_were_not_made_are_told(first, tmp_path, capfd):
    three_steps_from(2, tmp_path, (first, 1))
    assert f"warning: --profile: nothing is traced: step {first}" in capfd.readouterr().err
