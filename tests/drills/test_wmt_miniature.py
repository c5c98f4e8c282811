"""Drill: docs/wmt.md, command by command, on a miniature of WMT 2014 with the real config files and a small model.

What cannot be had here is replaced, and nothing else: `tfds build` by the miniature, sacreBLEU's download by its test
set, `pip` and `sbatch` by nothing. Every --config gets the flags of SIZES and SMALL. The training of base is
killed on its way.
"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.test_examples import blocks
from tests.support import wmt_miniature
from tests.support.places import ROOT
from tests.support.training_runs import assert_quiet, environment, errors
from transformer_jax.data.prepared import Prepared

DOCUMENT = ROOT / "docs/wmt.md"
# Pairs of the training text before its defects; French, which is only to be gone through, has fewer.
PAIRS = {"de": 30_000, "fr": 3_000}
SIZES = {
    "model.vocab_size": 2000,
    "model.d_model": 64,
    "model.d_ff": 256,
    "model.num_heads": 4,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "data.tokens_per_batch": 2048,
}
# Base learns something; the others show that their configs go through, with as many checkpoints as they average.
QUICK = {
    "train.steps": 20,
    "train.eval_every": 20,
    "train.checkpoint_every": 1,
    "train.keep_best": 0,
    "optimizer.warmup_steps": 10,
    "data.num_shapes": 1,
}
SMALL = {
    "configs/base.py": {
        "train.steps": 500,
        "train.eval_every": 100,
        "train.checkpoint_every": 100,
        "optimizer.warmup_steps": 200,
        "data.num_shapes": 4,
    },
    "configs/big.py": QUICK,
    "configs/base_enfr.py": QUICK,
    "configs/big_enfr.py": QUICK,
}
# A model that has learnt nothing goes on to the end of its room: no beam for those.
QUICK_SEARCH = ["--beam=1"]


class Done(NamedTuple):
    """A command of the document, as it was run."""

    words: list[str]  # as the document has them
    out: str
    told: str
    seconds: float

    def is_(self, *words: str) -> bool:
        return all(word in self.words for word in words)


class Walk:
    """Goes through the document's commands in a directory that looks as its reader's would."""

    def __init__(self, place: Path):
        self.place = place
        self.env = environment()
        self.miniatures: dict[str, wmt_miniature.Miniature] = {}
        self.done: list[Done] = []
        (place / "configs").symlink_to(ROOT / "configs")

    def go(self, words: list[str]) -> None:
        program, *arguments = words
        begin = time.monotonic()
        arguments, output = redirected(arguments)
        if program == "export":
            name, _, value = arguments[0].partition("=")
            self.env[name] = value.replace("/data/tfds", str(self.place / "tfds"))
            out, told = "", ""
        elif program == "tfds":
            out, told = self._build(*arguments)
        elif program == "sacrebleu" and "--echo" in arguments:
            out, told = self._test_set(arguments), ""
        elif program == "sacrebleu":
            out, told = self.run(["-m", "sacrebleu", *arguments])
        elif program == "transformer-jax":
            out, told = self._ours(arguments)
        else:
            assert program in ("pip", "sbatch"), f"the drill knows no {program}"
            return
        if output:
            (self.place / output).write_text(out)
        self.done.append(Done(words, out, told, time.monotonic() - begin))
        print(f"{self.done[-1].seconds:6.1f} s  {shlex.join(words)}", flush=True)

    def run(self, arguments: list[str]) -> tuple[str, str]:
        process = subprocess.run(
            [sys.executable, *arguments], cwd=self.place, env=self.env, capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        return process.stdout, process.stderr

    def find(self, *words: str) -> list[Done]:
        return [done for done in self.done if done.is_(*words)]

    def _build(self, command: str, name: str, *flags: str) -> tuple[str, str]:
        assert (command, sorted(flags)) == ("build", ["--data_dir=/data/tfds", "--file_format=array_record"])
        language = name.removeprefix("wmt14_translate/").removesuffix("-en")
        miniature = wmt_miniature.make(self.place, language, PAIRS[language])
        self.miniatures[language] = miniature
        assert str(miniature.data_dir) == self.env["TFDS_DATA_DIR"]
        for entry in (self.place / "archives").iterdir():
            if not (self.place / entry.name).exists():
                (self.place / entry.name).symlink_to(entry)
        return "", ""

    def _test_set(self, arguments: list[str]) -> str:
        assert arguments[:-1] == ["-t", "wmt14/full", "-l", "en-de", "--echo"]
        side = ("src", "ref").index(arguments[-1])
        return "".join(f"{pair[side]}\n" for pair in self.miniatures["de"].test)

    def _ours(self, arguments: list[str]) -> tuple[str, str]:
        config = next((word.partition("=")[2] for word in arguments if word.startswith("--config=")), None)
        command = ["-m", "transformer_jax", *arguments]
        if config is not None:
            options = {**SIZES, **SMALL[config], "train.compile_cache": self.place / "cache"}
            command += [f"--config.{name}={value}" for name, value in options.items()]
        if arguments[0] == "evaluate" and "--workdir=runs/base" not in arguments:
            command += QUICK_SEARCH
        killed = arguments[0] == "train" and config == "configs/base.py"
        if killed:
            self._killed(command, self.place / "runs/base/checkpoints")
        out, told = self.run(command)
        assert_quiet(told)
        assert not killed or "resuming from the checkpoint of step " in told, told
        return out, told

    def _killed(self, command: list[str], checkpoints: Path) -> None:
        """Killed without warning once there are two checkpoints, of the five that there will be."""
        with subprocess.Popen(
            [sys.executable, *command], cwd=self.place, env=self.env, stderr=subprocess.DEVNULL
        ) as process:
            while process.poll() is None and len(list(checkpoints.glob("[0-9]*00"))) < 2:
                time.sleep(0.1)
            process.kill()
        assert process.returncode == -9, "it had ended before it could be killed"


def redirected(arguments: list[str]) -> tuple[list[str], str | None]:
    """The arguments, and the file that takes the output."""
    return (arguments[: arguments.index(">")], arguments[-1]) if ">" in arguments else (arguments, None)


def documented() -> list[list[str]]:
    """The words of every command of the document, in its order."""
    lines = [line for block in blocks(DOCUMENT) if block.language == "sh" for line in joined(block.code)]
    return [shlex.split(line) for line in lines]


def joined(code: str) -> list[str]:
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.fixture(scope="module")
def walk(tmp_path_factory):
    walk = Walk(tmp_path_factory.mktemp("wmt"))
    begin = time.monotonic()
    for words in documented():
        walk.go(words)
    print(f"{time.monotonic() - begin:6.1f} s  in all", flush=True)
    return walk


# The record of newstest2014.en.
FILES = "newstest2014.en.????????.averaged"


def record(walk, run, name="test.averaged"):
    return json.loads(translated(walk, run, name, "json").read_text())


def translated(walk, run, name, suffix):
    """A file of translations/; in the name of a text given by --source stands a part of its digest."""
    (path,) = (walk.place / "runs" / run / "translations").glob(f"{name}.{suffix}")
    return path


def lines(path):
    return path.read_text().split("\n")[:-1]


def test_what_is_prepared(walk):
    """From TFDS and from the files: as many pairs, and every defect where it belongs."""
    counts = {name: count for name, (count, _) in wmt_miniature.DEFECTS.items()}
    unusable = counts["blank on one side"] + counts["more characters than are taken"]
    for run, empty in (("base", 0), ("from_files", counts["nothing on one side"])):
        (done,) = walk.find("prepare", f"--workdir=runs/{run}")
        kept = len(walk.miniatures["de"].train) - unusable
        assert f"train: {kept:,} pairs, " in done.out
        assert f"left out: {empty + counts['blank on one side']} empty (first: " in done.out
        assert f"left out: {counts['more characters than are taken']} too long (first: " in done.out
        assert "valid: 3,000 pairs, " in done.out and "test: 3,003 pairs, " in done.out
    (looked,) = walk.find("inspect", "--data")
    assert f"; {counts['more tokens than are taken']} dropped as too long" in looked.out


def test_tfds_has_the_test_sets_sentences_in_another_order(walk):
    """Which is why the document takes the files from elsewhere."""
    sources, references = Prepared.open(walk.place / "runs/base/data").texts("test")
    found, written = list(zip(sources, references, strict=True)), walk.miniatures["de"].test
    assert found != written and sorted(found) == sorted(written)


def test_the_killed_training_went_on_to_its_end(walk):
    metrics = [json.loads(line) for line in (walk.place / "runs/base/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if "valid_loss" in line] == [100, 200, 300, 400, 500]
    (averaged,) = walk.find("average", "--workdir=runs/base")
    assert "the average of steps 100, 200, 300, 400, 500" in averaged.out


def test_every_test_sentence_is_counted_once(walk):
    miniature = walk.miniatures["de"]
    for name in ("test.averaged", FILES):
        found = record(walk, "base", name)
        assert found["n"] == wmt_miniature.TEST_PAIRS
        assert len(lines(translated(walk, "base", name, "txt"))) == wmt_miniature.TEST_PAIRS
    assert lines(walk.place / "newstest2014.de") == [target for _, target in miniature.test]
    # TFDS's order is another one, of the same sentences; only rounding may tell the two scores apart.
    in_tfds_order, in_file_order = (
        record(walk, "base", name)["measures"]["bleu"]["score"] for name in ("test.averaged", FILES)
    )
    assert abs(in_tfds_order - in_file_order) < 0.1
    assert in_file_order > 5, "a model that has learnt nothing proves nothing"


def test_sacrebleus_own_command_gives_the_score_that_was_reported(walk):
    (scored,) = walk.find("sacrebleu", "-m")
    translated = walk.place / "newstest2014.translated.de"
    assert len(lines(translated)) == wmt_miniature.TEST_PAIRS
    reported = record(walk, "base", FILES)["measures"]["bleu"]
    theirs = json.loads(scored.out)
    assert theirs["score"] == round(reported["score"], 2)
    assert theirs["signature"] == reported["signature"]


def test_the_export_translates_as_the_run_does(walk):
    assert (walk.place / "again.de").read_bytes() == (walk.place / "newstest2014.translated.de").read_bytes()


def test_a_sentence_longer_than_the_model_takes_is_named(walk):
    (translated,) = walk.find("translate", "--workdir=runs/base")
    assert "warning: newstest2014.en:1501: has " in "".join(errors(translated.told))


@pytest.mark.parametrize("run", ["big", "base_enfr", "big_enfr"])
def test_the_other_three_go_through(walk, run):
    found = record(walk, run, "test.averaged.beam=1")
    assert found["n"] == wmt_miniature.TEST_PAIRS
    count = 5 if run == "base_enfr" else 20  # as the paper averages base and big
    assert len(found["steps"]) == count
    config = json.loads((walk.place / "runs" / run / "config.json").read_text())
    assert config["model"]["dropout"] == {"big": 0.3, "base_enfr": 0.1, "big_enfr": 0.1}[run]
    assert (config["data"]["source_language"], config["data"]["target_language"]) == (
        "en",
        "fr" if run.endswith("enfr") else "de",
    )
