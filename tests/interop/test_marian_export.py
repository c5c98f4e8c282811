"""Runs as Marian folders: what comes back from one computes the same; what Marian cannot hold is refused."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from tests.support.translating_runs import make_run, sentence
from transformer_jax import ModelConfig, Transformer, from_marian, load_run
from transformer_jax.cli import main
from transformer_jax.config import PartsConfig
from transformer_jax.data.tokenizer import BOS, EOS, PAD, train_symbols
from transformer_jax.errors import BadInput, ConfigError
from transformer_jax.interop.marian import export_marian
from transformer_jax.interop.marian_weights import WEIGHTS
from transformer_jax.runs.export import stored_arrays

TEXTS = [sentence(number) for number in range(7)]
TABLES = [f"model.{stack}.embed_positions.weight" for stack in ("decoder", "encoder")]


MODELS = {
    "paper": {},
    "learned": {"positions": "learned", "max_length": 60, "activation": "gelu", "attention_bias": True}
    | {"ffn_bias": False, "tie_embeddings": "target", "target_vocab_size": 290},
    "untied": {"sinusoids": "halves", "tie_embeddings": "none", "target_vocab_size": 300, "output_bias": True}
    | {"activation": "swish", "scale_embeddings": False, "norm_epsilon": 1e-5},
}


@pytest.fixture(scope="module", params=MODELS)
def both(request, tmp_path_factory):
    """A run of ours, and what was exported from it and imported again."""
    place = tmp_path_factory.mktemp("export")
    run, folder = make_run(place / "run", **MODELS[request.param]), place / "marian"
    assert main(["export", f"--workdir={run}", "--weights=averaged", f"--output={folder}", "--format=marian"]) == 0
    return load_run(run, "averaged"), from_marian(folder), folder


def tokens(model):
    """Sources and decoder inputs of TEXTS, in one array each."""
    rows = [[*ids, EOS] for ids in model.tokenizer.encode_batch(TEXTS)]
    targets = [[BOS, *ids] for ids in model.target_tokenizer.encode_batch(TEXTS)]
    return [np.array([row + [0] * (24 - len(row)) for row in side]) for side in (rows, targets)]


def test_what_comes_back_computes_the_same(both):
    ours, theirs, _ = both
    source_BS, target_BT = tokens(ours)
    for mine, again in zip((source_BS, target_BT), tokens(theirs), strict=True):
        assert ((mine == 0) == (again == 0)).all()
    logits = {}
    for name, model in (("ours", ours), ("theirs", theirs)):
        of = jax.jit(Transformer(model.config.model).apply)({"params": model.params}, *tokens(model))
        pieces = model.target_tokenizer.pieces(range(4, model.target_tokenizer.vocab_size))
        # <eos> and <unk>, then the pieces by name: their order may have changed.
        logits[name] = np.asarray(of)[:, :, [EOS, 3, *(4 + i for i in np.argsort(pieces))]]
    assert np.abs(logits["ours"] - logits["theirs"])[target_BT != PAD].max() < 1e-4


def test_targets_begin_from_zeros_and_the_first_position_says_with_what_ours_begin(both):
    ours, theirs, folder = both
    table = theirs.params["source_embedding" if "target_embedding" not in theirs.params else "target_embedding"]
    assert not np.asarray(table["table"][BOS]).any()
    assert TABLES[0] in stored_arrays(folder / WEIGHTS)
    assert (TABLES[1] in stored_arrays(folder / WEIGHTS)) == (ours.config.model.sinusoids == "interleaved")
    assert json.loads((folder / "generation_config.json").read_text())["renormalize_logits"] is True


def test_what_will_differ_there_is_told(both, tmp_path):
    ours, _, _ = both
    message = "\n".join(exported(tmp_path / "again", ours, ours.config.model))
    assert "decode.length_penalty = gnmt does not exist there" in message
    assert "positions are written as tables" in message
    assert ("model.norm_epsilon = 1e-06 is 1e-05 there" in message) == (ours.config.model.norm_epsilon == 1e-6)


def exported(folder, run, model):
    config = dataclasses.replace(run.config, model=model)
    return export_marian(folder, config, run.params, run.tokenizer, run.target_tokenizer)


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "pre", "activation": "swiglu", "norm_kind": "rms", "share_layers": True, "positions": "rotary"},
        {"num_key_value_heads": 1, "qk_norm": True, "attention_softcap": 50.0, "d_k": 4, "d_v": 5},
        {"mup_base_d_model": 8, "norm_epsilon": 1e-3, "parts": PartsConfig(attention="my.py:Mine")},
    ],
    ids=",".join,
)
def test_what_marian_cannot_hold_is_refused_with_every_reason(changes, both, tmp_path):
    ours, _, _ = both
    model = ModelConfig(vocab_size=300, d_model=16, num_heads=2, **changes)
    with pytest.raises(ConfigError) as error:
        exported(tmp_path / "refused", ours, model)
    named = [problem.partition("model.")[2].split()[0].rstrip(":") for problem in error.value.problems]
    assert sorted(named) == sorted(changes)
    assert not list(tmp_path.iterdir())


def test_heads_that_do_not_fill_the_width_are_refused(both, tmp_path):
    model = ModelConfig(vocab_size=300, d_model=15, num_heads=2, d_k=7, d_v=7, positions="learned", max_length=8)
    with pytest.raises(ConfigError, match=r"d_model = 15: Marian's is a multiple of 2 and of model.num_heads = 2"):
        exported(tmp_path / "refused", both[0], model)


def test_a_tokenizer_without_sentencepiece_is_refused(both, tmp_path):
    ours, _, _ = both
    words = train_symbols(TEXTS, "words")
    with pytest.raises(BadInput, match="the tokenizer of this run is not a SentencePiece model"):
        export_marian(tmp_path / "refused", ours.config, ours.params, words, words)
