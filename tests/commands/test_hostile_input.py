"""Any bytes and any options: read, or refused as bad input, and nothing else."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from transformer_jax import cli, schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.tokenizer import load_tokenizer, train_sentencepiece
from transformer_jax.errors import BadInput
from transformer_jax.files.lines import UTF_16_MARKS, read_blocks
from transformer_jax.files.record import parse_object
from transformer_jax.runs.metrics import read_metrics

PATHS = [option.path for option in schema.options(ExperimentConfig)]
NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([10**30, 2**32, -(2**63), 1e308, 1e-320]))
VALUES = st.one_of(
    NUMBERS.map(str),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(["none", "true", "a,b", "x.py:Y"]),
)
often = settings(max_examples=50, deadline=None)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    file = tmp_path_factory.mktemp("config") / "config.py"
    file.write_text("from transformer_jax.config import default_config as get_config\n")
    return file


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(PATHS), VALUES), min_size=1, max_size=3))
@example([("model.d_model", "9" * 5000)])
@example([("model.num_encoder_layers", "1e30")])
@example([("optimizer.kwargs", "=,=")])
def test_any_options(config, options):
    """`inspect` builds the whole config, and prints its sizes or what is wrong with it."""
    status = cli.main(["inspect", f"--config={config}", *(f"--config.{path}={value}" for path, value in options)])
    assert status in (0, 2)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("bytes")


@often
@given(st.binary(), st.sampled_from(["txt", "gz"]))
@example(UTF_16_MARKS[0] + b"a\0", "txt")
@example(b"\0\xff\xfe", "txt")
def test_any_bytes_as_lines(file, content, suffix):
    path = file / f"text.{suffix}"
    path.write_bytes(content)
    try:
        blocks = list(read_blocks(str(path), 3))
    except BadInput as problem:
        refusal = str(problem)
        assert (suffix != "txt" or content.startswith(UTF_16_MARKS)) and refusal.startswith(str(path))
    else:
        assert all(isinstance(line, str) for block in blocks for line in block.lines)


@often
@given(st.binary())
@example(b'[1, {"a": [null, true, 2.5]}]')
@example(b'{"kind": "words", "symbols": ["a", 3]}')
@example(b'{"kind": "marian", "model": "\xc3\xa4", "tokens": []}')
@example(b'{"kind": ["words"], "symbols": []}')
def test_any_bytes_as_json(file, content):
    path = file / "tokenizer.json"
    path.write_bytes(content)
    for read in (lambda: parse_object(content, path), lambda: load_tokenizer(path), lambda: read_metrics(path)):
        try:
            read()
        except BadInput as problem:
            refusal = str(problem)
            assert refusal.startswith(str(path)) and "\n" not in refusal


def test_a_spoilt_sentencepiece_model(file):
    """Read or refused; a piece that is no UTF-8 is one to refuse."""
    whole = train_sentencepiece(lambda: iter(["a b c d", "d c"] * 9), "bpe", 268).serialized()
    rng, refused = random.Random(0), 0
    for _ in range(100):
        content = bytearray(whole)
        content[rng.randrange(len(content))] = rng.randrange(256)
        (file / "spoilt.model").write_bytes(content)
        try:
            load_tokenizer(file / "spoilt.model").encode("a b")
        except BadInput as problem:
            refused += str(problem).endswith("spoilt.model: is not a SentencePiece model")
    assert refused > 5
