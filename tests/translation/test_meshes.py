"""Where things lie changes no translation: the same texts and scores on every mesh, of a prime number of sentences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.accelerators import hlo
from tests.support.devices import one_device
from tests.support.small_models import built
from tests.support.translating_runs import make_run, sentence
from transformer_jax import load_run
from transformer_jax.config import DecodeConfig, MeshConfig
from transformer_jax.search import beam
from transformer_jax.translation import translate
from transformer_jax.update.sharding import make_mesh, param_shardings

TEXTS = [sentence(number) for number in (1, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 21, 22, 23, 25, 26)]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))


def small_run(folder):
    return make_run(folder, d_model=16, num_heads=2)


def on_one_device(folder, beams=(1, 4)):
    with one_device():
        return decoded(folder, MeshConfig(), beams)


def decoded(folder, mesh, beams=(1, 4)):
    """Texts and scores by searches with these beams, all texts in one batch, and log-probabilities of given texts."""
    run = load_run(folder, "averaged", mesh=mesh)
    return *searched(run, beams), [score.log_probability for score in run.score(PAIRS)]


def searched(run, beams):
    found = [one for beam in beams for one in run.translations(TEXTS, beam=beam, tokens_per_batch=4096)]
    texts, scores = zip(*((one.text, one.hypotheses[0].score) for one in found), strict=True)
    return texts, scores


def assert_decoded_alike(ours, theirs):
    assert ours[0] == theirs[0] and len(set(ours[0])) > 10
    assert ours[1] == pytest.approx(theirs[1], abs=1e-4)
    assert ours[2] == pytest.approx(theirs[2], abs=1e-3)


@pytest.mark.drill
def test_the_same_translations_on_a_mesh_of_all_three_axes(tmp_path, monkeypatch):
    """drills/test_every_mesh.py has the others."""
    folder = small_run(tmp_path / "run")
    monkeypatch.setattr(translate, "MIN_TAIL", 100)
    one = on_one_device(folder, beams=(4,))
    assert_decoded_alike(decoded(folder, MeshConfig(fsdp=2, tensor=2), beams=(4,)), one)


def test_the_same_translations_on_eight_devices_as_on_one(tmp_path, monkeypatch):
    """Where sentences that are over leave their device."""
    folder, taken, run_stages = small_run(tmp_path / "run"), [], beam.run_stages
    monkeypatch.setattr(translate, "MIN_TAIL", 100)
    with one_device():
        one = searched(load_run(folder, "averaged"), beams=(4,))
    monkeypatch.setattr(translate, "MIN_TAIL", 1)
    monkeypatch.setattr(
        beam, "run_stages", lambda *given: taken.append((len(given[0].last_BK), given[-1])) or run_stages(*given)
    )
    texts, scores = searched(load_run(folder, "averaged", mesh=MeshConfig(fsdp=2)), beams=(4,))
    assert texts == one[0] and len(set(texts)) > 10 and scores == pytest.approx(one[1], abs=1e-4)
    assert taken == [(4, 1)]  # a quarter of the sentences of each device


def test_activations_are_captured_and_changed_on_several_devices_as_on_one(run, averaged_run):
    """In searches, whose rows the devices divide, in scores, and in what a changed run captures."""
    changes = {
        "encoder/layers_0/residual": lambda x_BSD, at: jnp.where(at[..., None] == 1, 0.5, x_BSD),
        "decoder/layers_0/self_attention_residual": lambda x_BTD, at: jnp.where(at[..., None] == 2, -0.5, x_BTD),
        "decoder/layers_0/cross_attention/heads": lambda x_BTHV, _: x_BTHV.at[:, :, 0].set(0.0),
    }
    unchanged = run.capture(*PAIRS[0])
    found = []
    for each in (run, load_run(averaged_run, "averaged", mesh=MeshConfig(fsdp=2, tensor=2))):
        changed = each.patched(changes)
        scores = [score.log_probability for score in changed.score(PAIRS[:5])]
        found.append((changed.translate(TEXTS[:5], beam=1), scores, changed.capture(*PAIRS[0])))
    (texts, scores, activations), (theirs, their_scores, their_activations) = found
    assert texts == theirs and scores == pytest.approx(their_scores, abs=1e-3)
    assert activations.keys() == unchanged.keys()
    for name, activation in activations.items():
        np.testing.assert_allclose(activation, their_activations[name], atol=1e-4)
    assert np.abs(activations["logits"] - unchanged["logits"]).max() > 0.1


def compiled_search(sizes, tail=None, **model_options):
    """The text of a search of 32 sentences with a beam of 2, each device's results left where they are."""
    model, variables = built(**model_options)
    mesh = make_mesh(MeshConfig(*sizes), jax.local_devices())
    rows = translate.Rows(np.full((32, 4), 5, np.int32), np.full(32, 9, np.int32), np.arange(32, dtype=np.int32))
    options = {"mesh": mesh, "model": model.config, "decode": DecodeConfig(beam=2), "max_length": 12, "tail": tail}
    params = variables["params"]
    params = jax.device_put(params, param_shardings(params, mesh, model.config))
    searched = jax.jit(functools.partial(translate.search_on, **options))
    return searched.lower(params, jax.device_put(rows, translate.rows_sharding(mesh))).compile().as_text()


@pytest.mark.drill
def test_devices_that_have_the_whole_model_send_nothing():
    # Only who asks for all results where each device is has them sent, once, at the end.
    assert hlo.Program(compiled_search((8, 1, 1), tail=1)).collectives() == []


@pytest.mark.drill
def test_parameters_are_gathered_before_the_search_and_nothing_is_sent_meanwhile():
    sent = hlo.Program(compiled_search((2, 2, 2), tail=1)).collectives()
    assert {(message.kind, message.in_loop) for message in sent} == {("all-gather", False)}
