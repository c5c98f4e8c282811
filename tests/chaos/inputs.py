"""Every command, fed nonsense: told in a line, with status 2, or else it was no nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import sys
from pathlib import Path

from tests.chaos import nonsense
from tests.chaos.children import NEVER, Child, Ended
from tests.chaos.place import Place
from tests.chaos.tally import Tally, Violation, check
from tests.support.sweep_runs import experiment_file
from transformer_jax import cli

INPUTS = 25  # in one child
# A config may ask for a model that takes long; that is no fault.
SECONDS = 60
MEMORY = 12 * 2**30
SUFFIXES = ("txt", "tsv", "jsonl", "json", "gz", "zst", "jsonl.gz", "model", "py", "spm")
# Options that decide how long a training takes stay as they are.
LONG = ("train.steps", "train.hours", "train.tokens", "data.task.train_size", "train.compile_cache", "mesh.")


def hostile_inputs(place: Place, dice: random.Random, tally: Tally) -> None:
    """Many in one process: each on its own, and the next as if nothing had been."""
    scratch = place.new("inputs")
    scratch.mkdir()
    finished = place.finished()
    shutil.copytree(finished, scratch / "run", symlinks=True)
    experiment_file(scratch, "Variant('two', {'model.num_heads': 4})")
    cases = [case(place, scratch, dice) for _ in range(INPUTS)]
    work = Child(lambda: feed(scratch, cases), lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)))
    ended = work.end(SECONDS * INPUTS)
    fed = (scratch / "fed").read_text().splitlines()
    tally.count("runs", *["inputs"] * len(fed))
    check(ended.status == 0, f"status {ended.status}: {ended.err[-4000:]}\nat input {len(fed)}: {fed[-1:]}")
    shutil.rmtree(scratch)


def feed(scratch: Path, cases: list[tuple[list[str], bytes, bytes]]) -> int:
    """In the child: one command after the other, each seen to say what is wrong decently."""
    os.chdir(scratch)
    faults = 0
    for arguments, stdin, file in cases:
        (scratch / "stdin").write_bytes(stdin)
        for suffix in SUFFIXES:
            (scratch / f"file.{suffix}").write_bytes(file)
        with open(scratch / "fed", "a") as fed:
            fed.write(json.dumps(arguments) + "\n")
        ended = heard(arguments, scratch)
        try:
            _decent(arguments, ended)
        except Violation as violation:
            faults += 1
            print(
                f"{violation}\n  {arguments}\n  stdin {stdin[:300]!r}\n  file {file[:300]!r}",
                file=sys.stderr,
                flush=True,
            )
    return min(faults, 1)


def heard(arguments: list[str], scratch: Path) -> Ended:
    """A command in this very process, with what it writes."""
    saved = [os.dup(number) for number in range(3)]
    with (
        open(scratch / "out", "w+b") as out,
        open(scratch / "err", "w+b") as err,
        open(scratch / "stdin", "rb") as given,
    ):
        for number, stream in enumerate((given, out, err)):
            os.dup2(stream.fileno(), number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        try:
            status = cli.main(arguments)
        except SystemExit as ending:
            status = ending.code if isinstance(ending.code, int) else 0
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            for number, kept in enumerate(saved):
                os.dup2(kept, number)
                os.close(kept)
        out.seek(0)
        err.seek(0)
        return Ended(status, out.read(), err.read().decode(errors="replace"))


def _decent(arguments: list[str], ended: Ended) -> None:
    own_code = any("file.py" in argument or "x.py" in argument for argument in arguments)
    for word in NEVER:
        # The traceback of an error in the user's own file is what the user needs.
        check(
            word not in ended.err or (own_code and word == "Traceback"), f"{word}: {ended.err[-1500:]}{_story(ended)}"
        )
    check(ended.status in (0, 1, 2), f"status {ended.status}")
    check(ended.status != 2 or bool(ended.complaints), f"status 2 without an error: {ended.err[-500:]}")


def _story(ended: Ended) -> str:
    name = ended.err.partition("The traceback is in ")[2].split("\n")[0]
    return Path(name).read_text()[-2500:] if name and Path(name).is_file() else ""


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
    options = [option for option in (nonsense.option(dice) for _ in range(dice.randint(1, 3))) if _is_short(option)]
    n = lambda: nonsense.argument(dice)  # noqa: E731
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
    return arguments, nonsense.content(dice), nonsense.content(dice)


def _is_short(option: str) -> bool:
    return not option.removeprefix("--config.").startswith(LONG)
