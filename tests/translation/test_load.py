"""What `load_run` returns, and which weights it loads."""

import dataclasses

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.support.translating_runs import made_run
from transformer_jax import load_run
from transformer_jax.config import DecodeConfig
from transformer_jax.errors import BadInput
from transformer_jax.translation import load
from transformer_jax.translation.load import read_weights


def test_wrong_arguments_are_refused(run):
    with pytest.raises(BadInput, match="bem: no option of decoding; did you mean beam"):
        run.translate(["a"], bem=3)
    with pytest.raises(BadInput, match="n_best"):
        run.translate(["a"], n_best=5)
    with pytest.raises(TypeError, match="decode and beam"):
        run.translations(["a"], decode=DecodeConfig(), beam=3)
    with pytest.raises(TypeError, match="texts is one string"):
        run.translate("a sentence")
    assert len(run.translate(text for text in ["a", "b"])) == 2 and run.translate([]) == []
    with pytest.raises(ValueError, match="2 texts and 1 references"):
        run.translations(["a", "b"], references=["a"], eos="oracle_length")
    with pytest.raises(TypeError, match=r"texts\[1\] is None: must be a string"):
        run.translate(["a", None])
    for pairs in (["ab"], ("a", "b"), [("a", "b", "c")], [("a", float("nan"))]):
        with pytest.raises(TypeError, match=r"pairs\[0\] is .*: must be two strings"):
            run.score(pairs)
    for token in (-6, 10**6):
        with pytest.raises(BadInput, match=f"pair 2 has the id {token}: must be between 0 and "):
            run.score_tokens([[5], [5]], [[5], [5, token]])
    with pytest.raises(TypeError, match="names = 'encoder/output': must be a list"):
        run.capture("a", "b", "encoder/output")
    assert run.score(zip(["a"], ["b"], strict=True)) == run.score([("a", "b")])


@pytest.mark.parametrize("more", [-1, 1])
def test_a_tokenizer_of_another_vocabulary_is_refused(run, more):
    size = run.config.model.vocab_size
    config = dataclasses.replace(run.config, model=dataclasses.replace(run.config.model, vocab_size=size + more))
    with pytest.raises(BadInput, match=f"the model has {size + more} tokens, its tokenizer {size}"):
        load.Run(config, run.params, run.tokenizer, run.target_tokenizer, [1])


def test_weights_are_those_asked_for(averaged_run):
    run = averaged_run
    exported = load_run(run / "averaged")
    by_name, by_path = load_run(run, "averaged"), load_run(run, str(run / "averaged"))
    assert by_name.weights_sha256 == by_path.weights_sha256 == exported.weights_sha256
    assert exported.steps == [7]
    with pytest.raises(BadInput, match="was trained without optimizer"):
        read_weights(run, "ema")
    with pytest.raises(BadInput, match="--weights=newest: is neither"):
        read_weights(run, "newest")
    with pytest.raises(BadInput, match="is an exported folder"):
        read_weights(run / "averaged", "best")


def test_the_digest_of_the_weights_follows_every_number(averaged_run):
    run = load_run(averaged_run, "averaged")
    before = run.weights_sha256
    run.params["source_embedding"]["table"] = run.params["source_embedding"]["table"].at[0, 0].add(1e-3)
    assert run.weights_sha256 != before


@pytest.mark.parametrize("own", [False, True])
def test_programs_are_cached_where_the_run_says_unless_jax_has_a_cache(own, monkeypatch, tmp_path):
    used, before = [], jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(load, "use_cache", used.append)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path) if own else None)
    try:
        run = load_run(made_run(), "averaged")
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()  # which may have been made with that folder
    assert used == ([] if own else [run.config.train.compile_cache])


def test_a_changed_run_can_be_changed_again(run):
    place = "encoder/layers_0/residual"
    twice = run.patched({place: lambda x, _: x + 1}).patched({place: lambda x, _: 2 * x, "logits": lambda x, _: x * 0})
    found, clean = (each.capture("a", "b", [place, "logits"]) for each in (twice, run))
    np.testing.assert_allclose(found[place], 2 * (clean[place] + 1), rtol=1e-5)
    assert not found["logits"].any()
