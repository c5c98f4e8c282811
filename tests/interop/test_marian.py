"""Models that Hugging Face wrote give here what they give there: states, logits, translations, scores; and go back.

The stored values come from tests/golden/make_marian_golden.py. What only a machine with torch can tell, that an export
loads in transformers and in CTranslate2 with equal output, is benchmarks/check_marian_export.py: docs/marian.md has
what it found.
"""

import json

import jax
import numpy as np
import pytest

from tests.support.marian_folders import CASES, arrays_with, change_json, files_of, golden, texts_of, unpacked
from transformer_jax import Transformer, from_marian, load_run
from transformer_jax.cli import main
from transformer_jax.data.tokenizer import BOS, EOS, PAD
from transformer_jax.interop.marian import read_marian_model
from transformer_jax.interop.marian_vocabulary import our_ids
from transformer_jax.interop.marian_weights import WEIGHTS
from transformer_jax.model.stacks import DecoderLayer, EncoderLayer
from transformer_jax.runs.export import stored_arrays

every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    """Its name, its folder, and the model."""
    folder = unpacked(request.param, tmp_path_factory.mktemp("marian") / request.param)
    return request.param, folder, from_marian(folder)


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """A model imported by the command."""
    place = tmp_path_factory.mktemp("imported")
    folder, run = unpacked("shared", place / "folder"), place / "run"
    assert main(["import", "marian", str(folder), f"--workdir={run}"]) == 0
    return folder, run


@every_case
def test_states_of_every_layer_and_logits_need_no_sentencepiece_files(name, tmp_path):
    """Their ids in, their logits out."""

    def is_layer(module, method):
        return isinstance(module, (EncoderLayer, DecoderLayer)) and method == "__call__"

    folder = unpacked(name, tmp_path / name)
    for path in folder.glob("*.spm"):
        path.unlink()
    found = read_marian_model(folder)
    pad = json.loads((folder / "config.json").read_text())["pad_token_id"]
    their_target_BT = np.insert(golden(name, "sequences")[:4, :7], 0, pad, axis=1)
    source_BS = found.ids.our_source(golden(name, "input_ids")[:4])
    target_BT = found.ids.our_target(their_target_BT)
    assert (target_BT[:, 0] == BOS).all() and BOS not in target_BT[:, 1:] and BOS not in source_BS
    logits_BTN, made = jax.jit(
        lambda params: Transformer(found.config).apply(
            {"params": params}, source_BS, target_BT, capture_intermediates=is_layer, mutable=["intermediates"]
        )
    )(found.params)
    their_logits_BTN = golden(name, "logits")
    difference = np.abs(found.ids.marian_logits(logits_BTN) - their_logits_BTN)[target_BT != PAD]
    assert difference.max() < 1e-4 and np.abs(their_logits_BTN).max() > 1
    assert (np.asarray(logits_BTN)[..., PAD] < -90).all()
    for stack, tokens in (("encoder", source_BS), ("decoder", target_BT)):
        layers = made["intermediates"][stack]
        states = [layers[f"layers_{i}"]["__call__"][0] for i in range(len(layers))]
        theirs = golden(name, f"{stack}_states")[1:]  # the first is what the first layer was given
        for ours, their_BSD in zip(states, theirs, strict=True):
            our_BSD = ours if stack == "encoder" else ours[0]
            assert np.abs(our_BSD - their_BSD)[tokens != PAD].max() < 1e-4


def test_texts_are_cut_into_the_same_tokens(case):
    name, _, model = case
    texts = texts_of(name, "texts")
    for text, tokens, theirs in zip(texts, model.tokenizer.encode_batch(texts), golden(name, "input_ids"), strict=True):
        end = list(theirs).index(0)
        assert [*tokens, EOS] == our_ids(model.tokenizer.tokens)[theirs[: end + 1]].tolist(), text
        assert tokens == model.tokenizer.encode(text)


@pytest.mark.parametrize(
    "case", ["separate", *(pytest.param(name, marks=pytest.mark.drill) for name in ("shared", "untied"))], indirect=True
)
def test_beam_search_finds_the_same_tokens_scores_and_texts(case):
    name, _, model = case
    found = model.translations(texts_of(name, "texts"))
    theirs = our_ids(model.target_tokenizer.tokens)[golden(name, "sequences")]
    for translation, tokens, score in zip(found, theirs, golden(name, "scores"), strict=True):
        best = translation.hypotheses[0]
        np.testing.assert_array_equal(best.tokens, tokens[tokens != BOS])  # their padding
        assert best.score == pytest.approx(float(score), abs=1e-4)
    assert [translation.text for translation in found] == texts_of(name, "translations")
    assert len(set(texts_of(name, "translations"))) > 1


def test_the_search_is_that_of_generation_config(case):
    _, folder, model = case
    theirs, decode = json.loads((folder / "generation_config.json").read_text()), model.config.decode
    assert (decode.beam, decode.alpha) == (theirs["num_beams"], theirs.get("length_penalty", 1.0))
    assert (decode.length_penalty, decode.renormalize) == ("average", theirs.get("renormalize_logits", False))
    assert (decode.max_length, decode.min_length) == (theirs["max_length"] - 1, theirs.get("min_length", 0))


def test_weights_in_16_bits_are_read(tmp_path):
    folder = unpacked("shared", tmp_path / "half")
    arrays_with(lambda arrays: arrays.update({name: each.astype(np.float16) for name, each in arrays.items()}))(folder)
    change_json(folder / "config.json", torch_dtype="float16")
    assert from_marian(folder).params["source_embedding"]["table"].dtype == np.float32


def test_older_folders_have_the_search_in_config_json(tmp_path):
    folder = unpacked("shared", tmp_path / "old")
    (folder / "generation_config.json").unlink()
    change_json(folder / "config.json", num_beams=5, max_length=33, bad_words_ids=[[109]], length_penalty=0.5)
    decode = from_marian(folder).config.decode
    assert (decode.beam, decode.max_length, decode.alpha) == (5, 32, 0.5)


@every_case
def test_import_export_import_is_exact(name, tmp_path):
    folder = unpacked(name, tmp_path / "folder")
    first, exported, second = (tmp_path / place for place in ("first", "exported", "second"))
    assert main(["import", "marian", str(folder), f"--workdir={first}"]) == 0
    assert main(["export", f"--workdir={first}", f"--output={exported}", "--format=marian"]) == 0
    assert main(["import", "marian", str(exported), f"--workdir={second}"]) == 0
    assert files_of(first) == files_of(second)
    theirs, written = stored_arrays(folder / WEIGHTS), stored_arrays(exported / WEIGHTS)
    for name, array in theirs.items():
        np.testing.assert_array_equal(written[name], array.astype(np.float32))


def test_an_imported_run_translates(imported, capsys, tmp_path):
    _, run = imported
    text = tmp_path / "in.txt"
    text.write_text(texts_of("shared", "texts")[0] + "\n")
    capsys.readouterr()
    assert main(["translate", f"--workdir={run}", str(text)]) == 0
    assert capsys.readouterr().out.splitlines() == texts_of("shared", "translations")[:1]


def test_a_language_code_is_one_token_at_the_beginning_alone(imported):
    tokenizer = load_run(imported[1]).tokenizer
    code, *rest = tokenizer.encode(">>deu<< he is sad .")
    assert tokenizer.pieces([code]) == [">>deu<<"]
    assert rest == tokenizer.encode("he is sad .")
    assert code not in tokenizer.encode("he is >>deu<< sad .")


def test_the_command_reports_problems_in_one_line(tmp_path, capsys):
    folder = unpacked("shared", tmp_path / "folder")
    assert main(["import", "marian", str(folder), f"--workdir={tmp_path}"]) == 2
    assert "exists already" in capsys.readouterr().err
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    for place in (folder, tmp_path / "none"):
        assert main(["import", "marian", str(place), f"--workdir={tmp_path / 'run'}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {place}: is not a Marian folder") and "docs/marian.md" in line
