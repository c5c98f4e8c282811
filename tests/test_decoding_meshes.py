"""Where things lie changes no translation: the same texts and scores on every mesh, of a prime number of sentences."""

import jax
import pytest
from translating_runs import make_run, sentence

from transformer_jax import load_run
from transformer_jax.config import MeshConfig
from transformer_jax.decoding import translate

pytestmark = pytest.mark.slow

TEXTS = [sentence(number) for number in range(17)]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))


def small_run(folder):
    return make_run(folder, d_model=16, num_heads=2)


def on_one_device(folder):
    with pytest.MonkeyPatch.context() as patch:
        devices = jax.local_devices()[:1]
        patch.setattr(jax, "local_devices", lambda: devices)
        return decoded(folder, MeshConfig())


def decoded(folder, mesh):
    """Texts and scores by greedy and by beam search, and the log-probabilities of given translations."""
    run = load_run(folder, "averaged", mesh=mesh)
    found = [translation for beam in (1, 4) for translation in run.translations(TEXTS, beam=beam)]
    texts, scores = zip(*((one.text, one.hypotheses[0].score) for one in found), strict=True)
    return texts, scores, [score.log_probability for score in run.score(PAIRS)]


def assert_decoded_alike(ours, theirs):
    assert ours[0] == theirs[0] and len(set(ours[0])) > 10
    assert ours[1] == pytest.approx(theirs[1], abs=1e-4)
    assert ours[2] == pytest.approx(theirs[2], abs=1e-3)


def test_the_same_translations_on_eight_devices_as_on_one(tmp_path, monkeypatch):
    """Of a mesh of all three axes; the others are in drills/test_every_mesh.py. The last go on without the others."""
    monkeypatch.setattr(translate, "FEWEST_IN_TAIL", 1)
    assert translate.tail_of(32, devices=4) == translate.Tail(8, shares=4)
    folder = small_run(tmp_path / "run")
    assert_decoded_alike(decoded(folder, MeshConfig(fsdp=2, tensor=2)), on_one_device(folder))
