"""Bytes, texts, numbers and configs that nobody should write, and somebody will."""

from __future__ import annotations

import gzip
import json
import random

import zstandard

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig

TEXTS = (
    "", " ", "\u2028", "\ufeff", "\u202e right to left",
    "á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́á́́",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0010ffff", "\udcff", "\x1b[31mred", "\r", "\t",
    "<script>alert(1)</script>", "'; rm -rf x; '", "$(touch x)", "`touch x`", "%s%s%n", "{0}{a.b}",
    "../../../etc/passwd", "-", "--", "-1", "0", "1e400", "-1e308", "nan", "inf", "0x10", "1_000", "１２", "9" * 5000,
    "null", "none", "true", "None,None", "[1,2]", ",", "a=b=c", "x" * 300, "file.py:name", "no.py:", "▁", "<pad>",
    ">>de<< text", "con\\aux",
)  # fmt: skip
NUMBERS = (-1, 0, 1, 2, 3, 7, 8, 2**31, 2**32 - 1, 2**32, 2**63, 10**30, -(2**63), 0.5, -0.0, 1e-45, 1e38, 1e300, 1e19)


def text(dice: random.Random) -> str:
    if dice.random() < 0.6:
        return dice.choice(TEXTS)
    return "".join(
        chr(dice.choice([dice.randrange(128), dice.randrange(0x3000), dice.randrange(0x110000)]))
        for _ in range(dice.randrange(20))
    )


def argument(dice: random.Random) -> str:
    """What can stand on a command line: the kernel lets no NUL pass."""
    return str(dice.choice(NUMBERS)) if dice.random() < 0.3 else text(dice).replace("\0", "")


def content(dice: random.Random) -> bytes:
    """A file's worth of bytes: noise, hostile text, broken JSON, or compressed such."""
    kinds = (
        lambda: dice.randbytes(dice.choice([0, 1, 7, 100, 3000])),
        lambda: "\n".join(text(dice) for _ in range(dice.randrange(30))).encode(errors="surrogatepass"),
        lambda: "\n".join(f"{text(dice)}\t{text(dice)}" for _ in range(9)).encode(errors="replace"),
        lambda: json.dumps(value(dice)).encode(),
        lambda: "\n".join(json.dumps({"source": value(dice), "target": text(dice)}) for _ in range(5)).encode(),
        lambda: b"[" * dice.choice([10, 100_000]),
        lambda: b"\n" * dice.randrange(2000),
        lambda: b"a b c\n" * dice.randrange(1, 50),
    )
    made = dice.choice(kinds)()
    packed = dice.random()
    if packed < 0.1:
        made = gzip.compress(made)
    elif packed < 0.2:
        made = zstandard.compress(made)
    if dice.random() < 0.3 and made:
        spoilt = bytearray(made)
        for _ in range(dice.randint(1, 5)):
            spoilt[dice.randrange(len(spoilt))] = dice.randrange(256)
        made = bytes(spoilt[: dice.randrange(len(spoilt) + 1)] if dice.random() < 0.3 else spoilt)
    return made


def value(dice: random.Random, depth: int = 0) -> object:
    """Something that JSON can spell."""
    kind = dice.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [value(dice, depth + 1) for _ in range(dice.randrange(4))]
    if kind == 6:
        return {text(dice): value(dice, depth + 1) for _ in range(dice.randrange(4))}
    return (None, dice.random() < 0.5, dice.choice(NUMBERS), text(dice), dice.gauss(0, 1e3))[kind]


def option(dice: random.Random) -> str:
    """--config.PATH=VALUE: a real option, or nearly one, with any value."""
    options = list(schema.options(ExperimentConfig))
    path = dice.choice(options).path
    if dice.random() < 0.1:
        path = path[: dice.randrange(len(path))] + dice.choice(["", "x", ".", "ß"])
    return f"--config.{path}={argument(dice)}"
