"""Folders that are damaged, of something else, or meant to harm: each is refused in one line that names the place."""

import json
import pickle
import re
import struct

import numpy as np
import pytest

from tests.support.marian_folders import change_json, header_of, unpacked, write_with_header
from transformer_jax import from_marian
from transformer_jax.cli import main
from transformer_jax.errors import BadInput

WEIGHTS, CONFIG, SEARCH = "model.safetensors", "config.json", "generation_config.json"
ONE = "model.encoder.layers.0.fc1.weight"


class Ran:
    """A pickle that would tell if it were opened."""

    ever = False

    def __reduce__(self):
        return (setattr, (Ran, "ever", True))


def header_with(**changes):
    """Changes what the header says of one array; None takes the array out of it."""

    def damage(folder):
        header, numbers = header_of(folder / WEIGHTS)
        if changes:
            header[ONE] |= changes
        else:
            del header[ONE]
        write_with_header(folder / WEIGHTS, header, numbers)

    return damage


def arrays_with(change):
    """Rewrites the file, well-formed, with other arrays."""

    def damage(folder):
        from safetensors.numpy import load_file, save_file

        arrays = load_file(folder / WEIGHTS)
        change(arrays)
        save_file(arrays, folder / WEIGHTS)

    return damage


def bytes_with(name, change):
    def damage(folder):
        (folder / name).write_bytes(change((folder / name).read_bytes()))

    return damage


def json_with(name, **changes):
    return lambda folder: change_json(folder / name, **changes)


def without(*names):
    return lambda folder: [(folder / name).unlink() for name in names]


def pickled(folder):
    (folder / WEIGHTS).write_bytes(pickle.dumps(Ran()))


def only_a_bin(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Ran()))


def index_of(places):
    def damage(folder):
        (folder / WEIGHTS).rename(folder / "part.safetensors")
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": places}))

    return damage


def other_tokens(folder):
    """As many tokens, but none that this folder's SentencePiece yields."""
    tokens = json.loads((folder / "vocab.json").read_text())
    renamed = {name if name[0] == "<" else f"zz{number}": number for name, number in tokens.items()}
    (folder / "vocab.json").write_text(json.dumps(renamed))


def tokens_with(change):
    def damage(folder):
        tokens = json.loads((folder / "vocab.json").read_text())
        change(tokens)
        (folder / "vocab.json").write_text(json.dumps(tokens))

    return damage


def give(arrays, name, array):
    arrays[name] = array


HUGE = {"dtype": "F32", "shape": [2**40, 2**40]}
FULL = {"dtype": "F32", "shape": [24, 16], "data_offsets": [0, 1536]}
DAMAGES = {
    "a missing weight": (arrays_with(lambda a: a.pop(ONE)), f"has no {ONE}, which config.json needs ([24, 16])"),
    "a missing table": (arrays_with(lambda a: a.pop("model.shared.weight")), "has no model.shared.weight"),
    "a wrong shape": (
        arrays_with(lambda a: give(a, ONE, a[ONE][:, :8].copy())),
        f"{ONE} is [24, 8], but [24, 16] in config.json",
    ),
    "an extra weight": (
        arrays_with(lambda a: give(a, "model.encoder.layers.9.fc1.weight", a[ONE])),
        "model.encoder.layers.9.fc1.weight is an unknown array for this config.json",
    ),
    "two tables that should be one": (
        arrays_with(lambda a: give(a, "lm_head.weight", a["model.shared.weight"] + 1)),
        "model.shared.weight and lm_head.weight differ",
    ),
    "numbers that are none": (arrays_with(lambda a: a[ONE].fill(np.nan)), f"{ONE} has non-finite numbers"),
    "another type": (
        arrays_with(lambda a: give(a, ONE, a[ONE].astype(np.int8))),
        f"{ONE}: has the type I8; must be F32, F16, BF16",
    ),
    "a pickle under another name": (pickled, "model.safetensors: is a pickle under another name"),
    "a .bin": (only_a_bin, "pytorch_model.bin: is a pickle, which can run code, and is not opened. Where"),
    "a truncated file": (
        bytes_with(WEIGHTS, lambda b: b[:-100]),
        "model.safetensors: is not a valid safetensors file: Error while deserializing header: incomplete metadata",
    ),
    "a truncated header": (
        bytes_with(WEIGHTS, lambda b: b[:100]),
        "model.safetensors: is not a valid safetensors file: ",
    ),
    "an empty file": (bytes_with(WEIGHTS, lambda b: b""), "model.safetensors: is not a valid safetensors file: "),
    "a huge header": (
        bytes_with(WEIGHTS, lambda b: struct.pack("<Q", 2**62) + b[8:]),
        "is not a valid safetensors file: Error while deserializing header: header too large",
    ),
    "a huge shape": (header_with(**HUGE), "model.safetensors: is not a valid safetensors file: "),
    "an array beyond the end": (
        header_with(shape=[2**20, 2**20], data_offsets=[0, 2**42]),
        "is not a valid safetensors file: Error while deserializing header: invalid",
    ),
    "a negative shape": (header_with(shape=[-24, -16]), "invalid value: integer `-24`, expected usize"),
    "arrays in one place": (
        header_with(**FULL),
        "is not a valid safetensors file: Error while deserializing header: invalid",
    ),
    "an array left out": (header_with(), "is not a valid safetensors file: Error while deserializing header: invalid"),
    "a path in the index": (
        index_of({ONE: "../../../etc/passwd"}),
        "'../../../etc/passwd' is not the name of a file in this",
    ),
    "an absolute path in the index": (index_of({ONE: "/tmp/x.safetensors"}), "is not the name of a file"),
    "an index of nothing": (index_of({"x": "part.safetensors"}), "which is not so"),
    "no weights": (without(WEIGHTS), "is not a Marian folder (it has no model.safetensors)"),
    "no config": (without(CONFIG), "config.json: there is no such file"),
    "no vocabulary": (without("vocab.json"), "vocab.json: there is no such file"),
    "no SentencePiece": (without("target.spm"), "target.spm: there is no such file"),
    "bad JSON": (bytes_with(CONFIG, lambda b: b[:-10]), "is not JSON"),
    "JSON of something else": (bytes_with(CONFIG, lambda b: b"[1, 2]"), "is a JSON list; must be an object"),
    "JSON without an end": (bytes_with(CONFIG, lambda b: b"[" * 200_000), "config.json: is not JSON: it is nested too"),
    "a name twice": (
        bytes_with(CONFIG, lambda b: b'{"d_model": 512,' + b[1:]),
        "config.json: is not JSON: 'd_model' is there twice",
    ),
    "another model": (json_with(CONFIG, model_type="bart"), "model_type = 'bart': is not a Marian model"),
    "an unknown field": (
        json_with(CONFIG, rotary_dim=8),
        "rotary_dim = 8: is an unknown field, which may change the model",
    ),
    "a norm elsewhere": (
        json_with(CONFIG, normalize_before=True),
        "normalize_before = true: is not supported; false is",
    ),
    "a norm of embeddings": (
        json_with(CONFIG, normalize_embedding=True),
        "normalize_embedding = true: is not supported",
    ),
    "an activation": (json_with(CONFIG, activation_function="tanh"), 'activation_function = "tanh": is not supported'),
    "two numbers of heads": (json_with(CONFIG, decoder_attention_heads=4), "decoder_attention_heads = 4: is not"),
    "two widths": (json_with(CONFIG, decoder_ffn_dim=48), "decoder_ffn_dim = 48: is not supported; 24 is"),
    "layers left out": (json_with(CONFIG, encoder_layerdrop=0.1), "encoder_layerdrop = 0.1: is not supported; 0 is"),
    "heads that do not fit": (
        json_with(CONFIG, encoder_attention_heads=3, decoder_attention_heads=3),
        "num_heads = 3 does not divide d_model",
    ),
    "another beginning": (json_with(CONFIG, decoder_start_token_id=0), "decoder_start_token_id = 0: is not supported"),
    "no width": (json_with(CONFIG, d_model=...), "config.json: has no d_model"),
    "a width that is none": (json_with(CONFIG, d_model="16"), 'd_model = "16": must be int'),
    "a billion layers": (
        json_with(CONFIG, encoder_layers=10**9),
        "encoder_layers = 1000000000: must be at least 1 and",
    ),
    "a huge vocabulary": (
        json_with(CONFIG, vocab_size=10**12),
        "vocab_size = 1000000000000: must be at least 1 and at",
    ),
    "untied but shared": (json_with(CONFIG, tie_word_embeddings=False), "tie_word_embeddings = false: with shared"),
    "another dropout": (json_with(CONFIG, dropout=1.5), "dropout = 1.5: must be at least 0 and below 1"),
    "sampling": (json_with(SEARCH, do_sample=True), "generation_config.json: do_sample = true: is not supported"),
    "early stopping": (json_with(SEARCH, early_stopping=True), "early_stopping = true: is not supported; false or"),
    "bad words": (json_with(SEARCH, bad_words_ids=[[7]]), "bad_words_ids = [[7]]: is not supported; [[109]] is"),
    "no repetition": (json_with(SEARCH, no_repeat_ngram_size=3), "no_repeat_ngram_size = 3: is not supported; 0 is"),
    "a search to come": (json_with(SEARCH, dola_layers="high"), 'dola_layers = "high": is an unknown field'),
    "no beams": (json_with(SEARCH, num_beams=0), "generation_config.json: beam = 0: must be at least 1"),
    "another model's tokens": (other_tokens, "vocab.json: has only 0% of the pieces of source.spm: are they from"),
    "a token too few": (
        tokens_with(lambda t: t.pop(next(reversed(t)))),
        "has 109 tokens, and config.json 110",
    ),
    "a number twice": (
        tokens_with(lambda t: t.update({next(iter(t)): 5})),
        "has the number 5; must be 0 to 109, each",
    ),
    "a number that is none": (
        tokens_with(lambda t: t.update({"<unk>": True})),
        "'<unk>' has the number True; must be 0 to",
    ),
    "half a character": (
        tokens_with(lambda t: t.update({"\ud800": t.pop(next(name for name in t if name[0] != "<"))})),
        "is not valid text",
    ),
    "padding elsewhere": (
        tokens_with(lambda t: t.update({"<pad>": t["</s>"], "</s>": t["<pad>"]})),
        "<pad> has 0, but 109 in config.json",
    ),
    "no SentencePiece model": (
        bytes_with("source.spm", lambda b: b"spam" * 99),
        "source.spm: is not a SentencePiece model",
    ),
    "an empty SentencePiece model": (
        bytes_with("source.spm", lambda b: b""),
        "source.spm: is not a SentencePiece model",
    ),
    "two vocabularies in one table": (
        json_with("tokenizer_config.json", separate_vocabs=True),
        "separate_vocabs = true, but in config.json source",
    ),
    "another end": (json_with("tokenizer_config.json", eos_token="<eos>"), 'eos_token = "<eos>": is not supported'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_right_is_refused_in_one_line(damage, tmp_path, capsys):
    spoil, told = DAMAGES[damage]
    folder = unpacked("shared", tmp_path / "folder")
    spoil(folder)
    assert main(["import", "marian", str(folder), f"--workdir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"error: {folder}")
    assert told in error
    assert not list(tmp_path.glob("run*"))
    assert not Ran.ever


def test_a_pickle_of_the_test_would_have_been_noticed():
    """The trap works: whoever opens it sets the mark."""
    pickle.loads(pickle.dumps(Ran()))
    try:
        assert Ran.ever
    finally:
        Ran.ever = False


def test_the_command_that_converts_a_bin_is_told(tmp_path):
    folder = unpacked("shared", tmp_path / "folder")
    only_a_bin(folder)
    with pytest.raises(BadInput) as error:
        from_marian(folder)
    command = re.search(r'python -c "(.*)"$', str(error.value))
    assert command is not None
    compile(command[1], "the command", "exec")


def test_a_file_too_large_to_be_meant_is_not_read(tmp_path):
    folder = unpacked("shared", tmp_path / "folder")
    with open(folder / "vocab.json", "wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    with pytest.raises(BadInput, match=r"vocab.json: has 1,099,511,627,776 bytes; at most"):
        from_marian(folder)


def test_a_folder_that_is_not_there_or_a_run_that_is(tmp_path, capsys):
    assert main(["import", "marian", str(tmp_path / "none"), f"--workdir={tmp_path / 'run'}"]) == 2
    assert "none: there is no such folder" in capsys.readouterr().err
    folder = unpacked("shared", tmp_path / "folder")
    assert main(["import", "marian", str(folder), f"--workdir={tmp_path}"]) == 2
    assert "exists already; give another place or remove it" in capsys.readouterr().err
