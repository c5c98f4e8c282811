"""A fuzzer of the parsers that is guided by coverage: inputs that reach a new line are kept, and changed further."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import zstandard

from tests.chaos.children import Child
from tests.chaos.place import Place
from tests.chaos.tally import Tally, check
from transformer_jax import config as configuration
from transformer_jax import schema
from transformer_jax.commands.configuration import split_overrides
from transformer_jax.config import ExperimentConfig
from transformer_jax.data.corpora import open_corpus
from transformer_jax.data.prepared import Prepared
from transformer_jax.data.tokenizer import load_tokenizer
from transformer_jax.errors import BadInput
from transformer_jax.files.record import parse_object, read_record
from transformer_jax.interop.marian_weights import stored_arrays
from transformer_jax.report.results import load_sweep
from transformer_jax.runs.folder import RunFolder
from transformer_jax.runs.metrics import read_metrics

INPUTS = 400  # of one parser in one run
OURS = str(Path(configuration.__file__).parent)
# Words that a parser looks for: random bytes alone would never hit upon them.
WORDS = tuple(b'" { } [ ] : , null true 1e999 -1 \\ud800 \\u0000 __metadata__ F32 data_offsets NaN'.split(b" "))
WORDS += (b"9999999999999999999", b"\0", b"\xff", b"\n", b"\t", b"\r\n", b"\xef\xbb\xbf")


class Parser(NamedTuple):
    """What reads bytes that somebody else has written."""

    name: str
    file: str
    read: Callable[[Path], Any]
    beginning: Callable[[Place], bytes]


def _trained(name: str) -> Callable[[Place], bytes]:
    return lambda place: (place.reference(place.variants[0])[0] / name).read_bytes()


def _corpus(path: Path) -> None:
    files = {"source": (str(path),), "target": (str(path),) if path.suffix not in (".tsv", ".jsonl") else ()}
    data = configuration.from_config_dict({"data": files}).data
    for chunk in open_corpus(data).chunks("train", 7):
        assert all(isinstance(text, str) for pair in chunk.pairs for text in pair)


def _folder(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda path: read(path.parent)


def _overrides(path: Path) -> None:
    texts, _ = split_overrides(path.read_bytes().decode(errors="surrogateescape").split("\n"))
    values: dict[str, Any] = {}
    schema.lay_over(ExperimentConfig, values, texts)
    schema.build(ExperimentConfig, values)


def _tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    tokenizer.decode(tokenizer.encode("a b \u2581 c"))


def _sweep(place: Place) -> bytes:
    variants = [{"name": "base", "slug": "base", "group": "", "note": "", "changes": {"model.d_model": 8}}]
    variants[0] |= {"published": {"bleu": 1.0}}
    return json.dumps(
        {"format": 1, "name": "s", "question": "", "baseline": "base", "notes": [], "tune": None, "file": "s.py"}
        | {"variants": variants, "seeds": [0], "tests": ["test"], "base": {}, "vary": ["order"]}
    ).encode()


def _from_sentencepiece(place: Place) -> bytes:
    from transformer_jax.data.tokenizer import train_sentencepiece

    return train_sentencepiece(lambda: iter(["a b c d e f g h", "h g f"] * 9), "bpe", 272).serialized()


PARSERS = (
    Parser("lines", "text.txt", _corpus, lambda place: b"a b\nc\r\n\nd e\xc3\xa4\n"),
    Parser("tsv", "text.tsv", _corpus, lambda place: b"a b\tb a\nc\td\n"),
    Parser("jsonl", "text.jsonl", _corpus, lambda place: b'{"source": "a", "target": "b"}\n{"translation": {}}\n'),
    Parser("gzip", "text.gz", _corpus, lambda place: gzip.compress(b"a b\nc d\n" * 9)),
    Parser("zstd", "text.zst", _corpus, lambda place: zstandard.compress(b"a b\nc d\n" * 9)),
    Parser("record", "record.json", read_record, lambda place: b'{"a": [1, {"b": null}], "crc32": 7}'),
    Parser("config", "config.json", _folder(lambda folder: RunFolder(folder).load_config()), _trained("config.json")),
    Parser("metrics", "metrics.jsonl", read_metrics, _trained("metrics.jsonl")),
    Parser("manifest", "manifest.json", _folder(Prepared.open), _trained("data/manifest.json")),
    Parser("tokenizer", "tokenizer.json", _tokenizer, _trained("data/tokenizer.json")),
    Parser("sentencepiece", "some.model", _tokenizer, _from_sentencepiece),
    Parser(
        "safetensors",
        "model.safetensors",
        _folder(stored_arrays),
        lambda place: (place.finished() / "exported/model.safetensors").read_bytes(),
    ),
    Parser("sweep", "sweep.json", _folder(load_sweep), _sweep),
    Parser("overrides", "overrides", _overrides, lambda place: b"--config.model.d_model=8\n--config.data.source=a,b"),
    Parser("object", "object", lambda path: parse_object(path.read_bytes(), path), lambda place: b"{}"),
)


def guided_parsing(place: Place, dice: random.Random, tally: Tally) -> None:
    """A parser reads any bytes, or refuses them as bad input: it raises nothing else, and does not crash."""
    parser, folder = dice.choice(PARSERS), place.new("parsing")
    beginning = parser.beginning(place)
    shutil.copytree(
        place.reference(place.variants[0])[0] / "data", folder, symlinks=True
    )  # what lies beside a manifest
    seed = dice.getrandbits(32)
    ended = Child(lambda: fuzz(parser, folder, beginning, random.Random(seed))).end()
    told = (folder / "inputs").read_text().splitlines()
    tally.count("runs", *["inputs of parsers"] * len(told))
    check(
        ended.status == 0,
        f"{parser.name}: {ended.err[-3000:]}\nthe input: {(folder / parser.file).read_bytes()[:500]!r}",
    )
    shutil.rmtree(folder)


def fuzz(parser: Parser, folder: Path, beginning: bytes, dice: random.Random) -> None:
    path = folder / parser.file
    kept, seen = [beginning], set()
    with open(folder / "inputs", "w") as inputs:
        for number in range(INPUTS):
            content = changed(dice.choice(kept), kept, dice) if number else beginning
            path.write_bytes(content)
            inputs.write(f"{len(content)}\n")
            inputs.flush()
            lines = covered(lambda: parser.read(path))
            if not lines <= seen:
                seen |= lines
                kept.append(content)


def covered(work: Callable[[], Any]) -> set[tuple[str, int, int]]:
    """The pairs of lines of our code that follow one another in it."""
    found: set[tuple[str, int, int]] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            return None
        last = frame.f_lineno

        def line(frame: FrameType, event: str, argument: object) -> Any:
            nonlocal last
            found.add((file, last, frame.f_lineno))
            last = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        work()
    except BadInput as problem:
        sys.settrace(None)
        text = str(problem)
        assert text.strip() and len(text) < 5000, f"a refusal of {len(text)} characters"
    finally:
        sys.settrace(None)
    return found


def changed(content: bytes, kept: list[bytes], dice: random.Random) -> bytes:
    made = bytearray(content)
    for _ in range(dice.choice([1, 1, 2, 4, 8])):
        place = dice.randrange(len(made) + 1)
        kind = dice.randrange(7)
        if kind == 0 and made:
            made[place % len(made)] ^= 1 << dice.randrange(8)
        elif kind == 1:
            made[place:place] = dice.choice(WORDS)
        elif kind == 2:
            del made[place : place + dice.choice([1, 4, 100])]
        elif kind == 3:
            made[place : place + 1] = dice.randbytes(dice.choice([1, 2, 8]))
        elif kind == 4:
            other = dice.choice(kept)
            made[place:] = other[dice.randrange(len(other) + 1) :]
        elif kind == 5 and len(made) < 20_000:
            made[place:place] = made[place : place + dice.choice([1, 16, 200])] * dice.choice([1, 2, 50])
        elif made:
            made[place % len(made)] = dice.choice(b'0123456789"-.e[]{}')
    return bytes(made[:50_000])
