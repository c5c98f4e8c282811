"""Looking into a training: what is traced, and where a first NaN comes from."""

import gzip
import json
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.support.small_runs import Trainer, batches, experiment
from transformer_jax.errors import BadInput, Failed
from transformer_jax.training import debugging
from transformer_jax.training.compiled import CompiledRuns
from transformer_jax.training.debugging import Debugging
from transformer_jax.update import sharding

# Its gradient is 0 / 0, while the loss itself is finite.
LOSS = """
import jax
import jax.numpy as jnp

def loss(logits, targets, weights):
    nothing = jnp.sum((logits - jax.lax.stop_gradient(logits)) ** 2)
    return jnp.sum(jax.nn.logsumexp(logits, -1) * weights) + jnp.sqrt(nothing), jnp.sum(weights)
"""


@pytest.mark.drill
def test_a_nan_of_the_backward_pass_is_found_where_the_forward_pass_was(tmp_path):
    """In one step on two devices, each of which has a shard of the parameters."""
    (tmp_path / "own.py").write_text(LOSS)
    line = 1 + next(number for number, text in enumerate(LOSS.splitlines()) if "nothing =" in text)
    options = {"train__loss": f"{tmp_path / 'own.py'}:loss", "mesh__fsdp": 2}
    run = Trainer(experiment(**options, model__attention_implementation="cudnn"), devices=2)
    compiled = CompiledRuns([run.config], [lambda count: 1e-3], run.mesh)
    batch = sharding.place_batch(batches(1, rows=4)[0], run.mesh)
    place = rf"step 1: .*, in the backward pass of {tmp_path}/own.py:{line} \(loss\)"
    with Debugging(debug_nans=True).around(compiled, 10, tmp_path) as advance, pytest.raises(Failed, match=place):
        advance(run.new(), batch)


def test_a_nan_of_the_forward_pass_is_found_where_it_is_made():
    with pytest.raises(FloatingPointError) as caught, jax.debug_nans(True), jax.disable_jit():
        jnp.log(jnp.float32(-1))
    assert re.match(rf"at {__file__}:\d+ \(test_a_nan_of_the_forward_pass", debugging._place(caught.value))


def updates_in(profile):
    """The updates that a trace for Perfetto has."""
    [file] = profile.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {event["args"]["step_num"] for event in events if event.get("name") == "update"}


def three_steps_from(step, tmp_path, profile):
    """Of a step that does nothing but count."""
    programs = SimpleNamespace(advance=lambda state, batch: (SimpleNamespace(step=state.step + 1), None))
    state = SimpleNamespace(step=step)
    with Debugging(profile).around(programs, 10, tmp_path) as advance:
        for _ in range(3):
            state, _ = advance(state, None)


def test_a_trace_that_is_cut_short_is_whole(tmp_path):
    three_steps_from(0, tmp_path, (2, 5))
    assert updates_in(tmp_path) == {"2", "3"}


def test_steps_that_are_already_made_cannot_be_traced(tmp_path):
    with pytest.raises(BadInput, match="step 2 is in the past"):
        three_steps_from(2, tmp_path, (2, 1))
