"""Looking into a training: what is traced, and where a first NaN comes from."""

import dataclasses
import functools
import gzip
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from tests.support.small_runs import batches, experiment
from tests.support.training_runs import assert_same_run, errors, train_here
from transformer_jax.errors import BadInput, Failed
from transformer_jax.training.debugging import Debugging, Span
from transformer_jax.training.steps import CompiledSteps
from transformer_jax.update import sharding
from transformer_jax.update.optimizer import make_schedule

# Its gradient is 0 / 0, while the loss itself is finite.
LOSS = """
import jax
import jax.numpy as jnp

def loss(logits, targets, weights):
    nothing = jnp.sum((logits - jax.lax.stop_gradient(logits)) ** 2)
    return jnp.sum(jax.nn.logsumexp(logits, -1) * weights) + jnp.sqrt(nothing), jnp.sum(weights)
"""


@functools.cache
def programs_of(config, devices=1):
    schedule = make_schedule(config.optimizer, config.model.d_model, config.train.steps)
    return CompiledSteps([config], [schedule], sharding.make_mesh(config.mesh, jax.devices()[:devices]))


def steps(programs, count, state=None):
    state = programs.new_state() if state is None else state
    for batch in batches(count, rows=4):
        state, _ = programs.step(state, sharding.place_batch(batch, programs.mesh))
    return state


@pytest.mark.parametrize(
    ("devices", "mesh"),
    [(1, {}), pytest.param(2, {"mesh__fsdp": 2}, marks=pytest.mark.slow)],
    ids=["one device", "divided"],
)
def test_a_nan_of_the_forward_pass_is_found_where_it_is_made(tmp_path, devices, mesh):
    programs = programs_of(experiment(**mesh), devices)
    state = programs.new_state()
    inner = dict(state.params["encoder"]["layers_0"]["feed_forward"]["inner"])
    inner["bias"] = jnp.full_like(inner["bias"], jnp.inf)  # what follows is infinite minus infinite
    params = jax.tree.map(lambda leaf: leaf, state.params)
    params["encoder"]["layers_0"]["feed_forward"]["inner"] = inner
    with (
        Debugging(debug_nans=True).installed(programs, 10, tmp_path),
        pytest.raises(Failed, match=r"step 1: invalid value \(nan\) .*, at .*transformer_jax/model/layers.py:\d+ "),
    ):
        steps(programs, 1, dataclasses.replace(state, params=params))


@pytest.mark.slow
def test_a_nan_of_the_backward_pass_is_found_where_the_forward_pass_was(tmp_path):
    (tmp_path / "own.py").write_text(LOSS)
    programs = programs_of(experiment(train__loss=f"{tmp_path / 'own.py'}:loss"))
    state = programs.new_state()
    line = 1 + next(number for number, text in enumerate(LOSS.splitlines()) if "nothing =" in text)
    with (
        Debugging(debug_nans=True).installed(programs, 10, tmp_path),
        pytest.raises(Failed, match=rf"step 1: .*, in the backward pass of {tmp_path}/own.py:{line} \(loss\)"),
    ):
        steps(programs, 1, state)


def updates_in(profile):
    """The updates that a trace for Perfetto has."""
    [file] = profile.rglob("perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return {event["args"]["step_num"] for event in events if event.get("name") == "update"}


def counting():
    """A step that does nothing but count, from a state in which so many have been made."""
    return SimpleNamespace(step=lambda state, batch: (SimpleNamespace(step=state.step + 1), None))


def test_a_trace_that_is_cut_short_is_whole(tmp_path):
    programs, state = counting(), SimpleNamespace(step=0)
    with Debugging(Span(2, 5)).installed(programs, 10, tmp_path):
        for _ in range(3):
            state, _ = programs.step(state, None)
    assert updates_in(tmp_path) == {"2", "3"}


def test_updates_that_were_made_before_cannot_be_traced(tmp_path):
    programs = counting()
    with Debugging(Span(2, 1)).installed(programs, 10, tmp_path), pytest.raises(BadInput, match="first is 3"):
        programs.step(SimpleNamespace(step=2), None)


def test_a_run_that_ends_before_is_told(tmp_path, capfd):
    programs, state = counting(), SimpleNamespace(step=0)
    with Debugging(Span(4, 1)).installed(programs, 10, tmp_path):
        for _ in range(3):
            state, _ = programs.step(state, None)
    assert "warning: --profile: nothing is traced; the run ended before step 4" in capfd.readouterr().err


@pytest.mark.slow
def test_the_command(tmp_path):
    """A healthy run is the same when it is looked into."""
    printed = train_here(tmp_path / "run", "train.steps=4", flags=("--profile=4:2",), status=2)
    assert errors(printed) == ["error: --profile: this run ends at step 4, before step 5, the last traced"]
    printed = train_here(tmp_path / "run", "train.steps=4", flags=("--profile=3:2", "--debug-nans"))
    assert f"steps 3 to 4 are traced in {tmp_path / 'run/profile'}" in printed
    assert updates_in(tmp_path / "run/profile") == {"3", "4"}
    train_here(tmp_path / "straight", "train.steps=4")
    assert_same_run(tmp_path / "run", tmp_path / "straight")
