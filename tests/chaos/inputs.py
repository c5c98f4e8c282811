"""Every command, fed nonsense: told in a line, with status 2, or else it was no nonsense."""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import shutil
from pathlib import Path

import zstandard

from tests.chaos.children import command
from tests.chaos.place import Place
from tests.chaos.tally import Tally, Violation
from tests.support.sweep_runs import experiment_file
from transformer_jax import cli, schema
from transformer_jax.config import ExperimentConfig

INPUTS = 25  # of one folder
# A config may ask for a model that takes long; that is no fault.
SECONDS = 600
MEMORY = 12 * 2**30
SUFFIXES = ("txt", "tsv", "jsonl", "json", "gz", "zst", "jsonl.gz", "model", "py", "spm")
# Options that decide how long a training takes stay as they are.
LONG = ("train.steps", "train.hours", "train.tokens", "data.task.train_size", "train.compile_cache", "mesh.")
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


def hostile_inputs(place: Place, dice: random.Random, tally: Tally) -> None:
    """Commands in a folder with a run and an experiment, each in a process of its own."""
    scratch = place.new("inputs")
    scratch.mkdir()
    shutil.copytree(place.finished(), scratch / "run", symlinks=True)
    experiment_file(scratch, "Variant('two', {'model.num_heads': 4})")

    def limited() -> None:
        os.chdir(scratch)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    for _ in range(INPUTS):
        arguments, stdin, file = case(place, scratch, dice)
        for suffix in SUFFIXES:
            (scratch / f"file.{suffix}").write_bytes(file)
        tally.count("runs", "inputs")
        own_code = any("file.py" in argument or "x.py" in argument for argument in arguments)
        try:
            command(arguments, limited, stdin).end(SECONDS).checked(own_code)
        except Violation as violation:
            raise Violation(f"{violation}\n{arguments}\nstdin {stdin[:300]!r}\nfile {file[:300]!r}") from None
    shutil.rmtree(scratch)


def case(place: Place, scratch: Path, dice: random.Random) -> tuple[list[str], bytes, bytes]:
    """A command line, what stands on stdin, and what stands in the files that it may name."""
    run, file = scratch / "run", f"{scratch}/file.{dice.choice(SUFFIXES)}"
    other = f"{scratch}/file.{dice.choice(SUFFIXES)}"
    config = [
        f"--config={place.config}",
        "--config.train.steps=1",
        f"--config.train.compile_cache={place.root / 'cache'}",
    ]
    corpus = ["--config.data.corpus=", f"--config.data.source={file}", f"--config.data.target={other}"]
    new = f"--workdir={scratch / f'new{dice.randrange(10**6)}'}"
    options = [text for text in (option(dice) for _ in range(dice.randint(1, 3))) if _is_short(text)]
    n = lambda: argument(dice)  # noqa: E731
    lines: list[list[str]] = [
        ["inspect", *config, *options],
        ["inspect", f"--workdir={n()}"],
        ["inspect", f"--config={n()}"],
        ["inspect", f"--config={file}"],
        ["train", *config, *options[:1], new],
        ["train", *config, new, f"--init-from={dice.choice([file, str(scratch), n()])}"],
        ["prepare", *config, *corpus, new, "--config.data.valid_size=0", "--config.data.test_size=0"],
        ["prepare", *config, *corpus, new, "--config.data.cleaning.unreadable=drop", "--config.data.tokenizer=bpe"],
        ["prepare", *config, new, f"--config.data.tokenizer_file={file}"],
        ["translate", f"--workdir={run}", "--beam=1"],
        ["translate", f"--workdir={run}", "--beam=1", file],
        ["translate", f"--workdir={run}", f"--{dice.choice(['beam', 'n-best', 'alpha', 'temperature', 'seed'])}={n()}"],
        [
            "translate",
            f"--workdir={run}",
            "--sample",
            "--json",
            f"--config.decode.{dice.choice(['top_k', 'max_length'])}={n()}",
        ],
        ["score", f"--workdir={run}", file, file],
        ["evaluate", f"--workdir={run}", "--beam=1", f"--source={file}", f"--target={file}"],
        ["evaluate", f"--workdir={run}", f"--split={n()}"],
        ["evaluate", f"--workdir={run}", "--split=valid", "--beam=1", f"--against={dice.choice([file, n()])}"],
        ["average", f"--workdir={run}", f"--{dice.choice(['last', 'best', 'steps'])}={n()}"],
        ["export", f"--workdir={run}", f"--output={scratch / 'out'}{dice.randrange(10**6)}", f"--step={n()}"],
        ["export", f"--workdir={run}", f"--output={n()}", f"--weights={n()}"],
        ["import", "marian", dice.choice([file, str(scratch), n()]), new],
        ["sweep", file, new],
        [
            "sweep",
            str(scratch / "experiment.py"),
            new,
            "--dry-run",
            f"--{dice.choice(['only', 'seeds', 'jobs', 'scale'])}={n()}",
        ],
        ["report", dice.choice([file, str(scratch), str(run), n()])],
        ["plot", "attention", f"--workdir={run}", f"--text={n()}", f"--output={scratch / 'attention.html'}"],
        ["plot", "positions", f"--length={n()}", f"--output={scratch}/{dice.choice(['a.png', 'a.xyz', 'b/c.png'])}"],
        ["plot", "schedule", *config, *options[:1], f"--output={scratch / 'schedule.svg'}"],
        [n(), n()],
        [dice.choice(list(cli.COMMANDS)), n(), n()],
    ]
    arguments = dice.choice(lines)
    if dice.random() < 0.15:
        arguments = [*arguments, n()]
    return arguments, content(dice), content(dice)


def _is_short(option: str) -> bool:
    return not option.removeprefix("--config.").startswith(LONG)


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
