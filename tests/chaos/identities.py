"""Something that a result depends on is changed behind a run's back: code, options, folders, directories, files.

What must hold: the command refuses it, or says so, or does what it would have done had it been so from the start.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from tests.chaos.children import Ended, run
from tests.chaos.place import Place, fingerprint, tree
from tests.chaos.tally import Tally, check
from tests.support.sweep_runs import experiment_file
from tests.support.training_runs import environment

HEAD = "import optax\nfrom transformer_jax import label_smoothed_cross_entropy\nfrom {helper} import FACTOR\nOWN = 1\n"
# What each option can name; all of it depends on OWN, in the file, and on FACTOR, in the module beside it.
CODE = {
    "train.loss": """
def named(logits, targets, weights):
    total, count = label_smoothed_cross_entropy(logits, targets, weights)
    return OWN * FACTOR * total, count
""",
    "optimizer.name": """
def named(learning_rate, b1):
    return optax.chain(optax.adam(learning_rate, b1=b1), optax.scale(OWN * FACTOR))
""",
    "optimizer.schedule": """
def named(peak):
    return lambda count: peak * OWN * FACTOR
""",
    "data.corpus": """
def named(split):
    for number in range({"train": 120, "valid": 20, "test": 10}[split]):
        words = " ".join("abcdefgh"[(number * k) % 8] for k in range(1, 4 + number % 5))
        yield words, words + " a" * (OWN * FACTOR - 1)
""",
    "decode.metrics": """
def named(hypotheses, references):
    return OWN * FACTOR
""",
    "model.parts.feed_forward": """
from transformer_jax.model.layers import FeedForward

class named(FeedForward):
    def __call__(self, *given, **more):
        return OWN * FACTOR * super().__call__(*given, **more)
""",
}
EDITS = {"the file": "mine", "what it imports": "helper", "a comment": "comment"}
# Other values of options, to resume with. What comes out must be what a straight run with them gives.
OTHER = {
    "seed": "5",
    "data.seed": "3",
    "data.tokens_per_batch": "128",
    "data.batching": "packing",
    "data.max_length": "12",
    "data.tokenizer": "characters",
    "data.task.alphabet": "7",
    "data.task.train_size": "100",
    "model.num_heads": "4",
    "model.norm": "pre",
    "model.dropout": "0.3",
    "model.positions": "rotary",
    "optimizer.learning_rate": "0.01",
    "optimizer.warmup_steps": "2",
    "optimizer.beta2": "0.9",
    "optimizer.schedule": "cosine",
    "optimizer.clip_norm": "0.5",
    "train.steps": "30",
    "train.epochs": "6",
    "train.tokens": "2500",
    "train.label_smoothing": "0.3",
    "train.best_metric": "valid_accuracy",
    "train.best_is": "highest",
    "train.patience": "50",
    "train.keep_best": "0",
    "train.log_every": "3",
    "train.eval_every": "3",
    "train.checkpoint_every": "12",
    "decode.beam": "2",
    "decode.alpha": "0.2",
}
SCHEDULES = ("inverse_sqrt", "cosine", "linear")
# What somebody may have in a folder that is not a run.
FOREIGN = {
    "config.json": '{"my": "settings"}\n',
    "metrics.jsonl": '{"loss": 1.0}\n',
    "versions.json": "{}\n",
    "thesis.tex": "\\documentclass{book}\n",
    "checkpoints/epoch-1.pt": "weights\n",
    "data/train.txt": "a\n",
    "sweep.json": "{}\n",
    "model.safetensors": "none\n",
}


def edited_code(place: Place, dice: random.Random, tally: Tally) -> None:
    """Custom code is edited between two commands: the second one refuses it, says so, or uses what the run has kept."""
    option, edit = dice.choice(list(CODE)), dice.choice(list(EDITS))
    folder = place.new("code")
    folder.mkdir()
    helper = f"helper_{folder.name.partition('-')[0]}"
    (folder / f"{helper}.py").write_text("FACTOR = 1\n")
    text = HEAD.format(helper=helper) + CODE[option]
    (folder / "mine.py").write_text(text)
    named = f"{folder / 'mine.py'}:named"
    workdir, more = folder / "run", [f"{option}={named}"]
    if option == "decode.metrics":
        more += ["decode.bleu_sentences=4"]
    begin = run(place.train("plain", workdir, *more))
    check(begin.status == 0, begin.err)
    translated = run(["translate", f"--workdir={workdir}", "--beam=1"], stdin=place.sentences(random.Random(0)))
    shutil.rmtree(max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    {
        "the file": lambda: (folder / "mine.py").write_text(text.replace("OWN = 1", "OWN = 2")),
        "what it imports": lambda: (folder / f"{helper}.py").write_text("FACTOR = 2\n"),
        "a comment": lambda: (folder / "mine.py").write_text(text + "# nothing else\n"),
    }[edit]()
    tally.count("runs", "runs", "edits of code")
    again = run(place.train("plain", workdir, *more))
    check(again.status == 2, f"{option}: {edit} was edited, and the run resumed\n{again.err[-2000:]}")
    after = run(["translate", f"--workdir={workdir}", "--beam=1"], stdin=place.sentences(random.Random(0)))
    if option == "model.parts.feed_forward":
        check(after.warned, f"{option}: {edit} was edited, and translate says nothing")
    if option != "data.corpus":
        accepted = run([*place.train("plain", workdir, *more), "--accept-changed-code"])
        check(accepted.status == 0 and accepted.warned, accepted.err[-2000:])
        noted = run(["evaluate", f"--workdir={workdir}", "--beam=1"])
        check(noted.status != 0 or b"custom code was changed" in noted.out, f"evaluate says nothing: {noted.out!r}")
    newest = run(["translate", f"--workdir={workdir}", "--beam=1"], stdin=place.sentences(random.Random(0)))
    check(after.status == newest.status == translated.status == 0, after.err + newest.err)
    shutil.rmtree(folder)


def changed_option(place: Place, dice: random.Random, tally: Tally) -> None:
    """A run is resumed with another option: refused, or it ends as a straight run with that option does."""
    schedule, path = dice.choice(SCHEDULES), dice.choice(list(OTHER))
    options = () if path == "optimizer.schedule" else (f"optimizer.schedule={schedule}",)
    base = half_way(place, options)
    workdir = place.new("option")
    shutil.copytree(base, workdir)
    tally.count("runs", "changes of options")
    ended = run(place.train("plain", workdir, *options, f"{path}={OTHER[path]}"))
    if ended.status == 0:
        check(
            _weights(workdir) == straight(place, (*options, f"{path}={OTHER[path]}")),
            f"{path}={OTHER[path]} with {schedule}: resumed, and not what a straight run gives",
        )
    shutil.rmtree(workdir)


def unrelated_folder(place: Place, dice: random.Random, tally: Tally) -> None:
    """A folder of something else: nothing that writes a run, a sweep or data begins in it, and it stays as it was."""
    folder = place.new("unrelated")
    if dice.random() < 0.4:
        shutil.copytree(place.finished() / "exported", folder)
    else:
        for name in dice.sample(list(FOREIGN), dice.randint(1, 3)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(FOREIGN[name])
    before, kind = tree(folder), dice.choice(["train", "train", "sweep", "prepare", "export", "average"])
    experiment = place.root / "experiment.py"
    arguments = {
        "train": place.train("plain", folder),
        "sweep": ["sweep", str(experiment), f"--workdir={folder}"],
        "prepare": ["prepare", f"--config={place.config}", f"--workdir={folder}", f"--config.data.directory={folder}"],
        "export": ["export", f"--workdir={place.finished()}", f"--output={folder}"],
        "average": ["average", f"--workdir={folder}", "--last=1"],
    }[kind]
    if not experiment.exists():
        experiment_file(place.root, "Variant('two', {'model.num_heads': 4})")
    tally.count("runs", "unrelated folders")
    ended = run(arguments)
    check(ended.status == 2, f"{kind} began in {sorted(before)}:\n{ended.err[-2000:]}")
    check(tree(folder) == before, f"{kind} has changed {sorted(before)}: {sorted(tree(folder))}")
    shutil.rmtree(folder)


def changed_directory(place: Place, dice: random.Random, tally: Tally) -> None:
    """A run that was made with relative paths is used from another directory, and moved to another."""
    home, elsewhere = place.new("home"), place.new("elsewhere")
    home.mkdir()
    elsewhere.mkdir()
    options = [*_texts(home, dice), f"data.directory={dice.choice(['none', 'prepared', './a/b'])}"]
    at_home = lambda: os.chdir(home)  # noqa: E731
    begin = run(place.train("plain", Path("run"), *options), at_home)
    check(begin.status == 0, begin.err)
    text = place.sentences(dice)
    tasks = (["translate", "--beam=1"], ["evaluate", "--beam=1"], ["evaluate", "--beam=1", "--split=valid"])
    kind = dice.choice(["directory", "moved run"])
    folder = home / "run" if kind == "directory" else elsewhere / "moved"
    tally.count("runs", "changes of directory")
    name, *more = dice.choice(tasks)
    wanted = _scores(run([name, "--workdir=run", *more], at_home, text))
    if kind == "moved run":
        shutil.copytree(home / "run", folder, symlinks=True)
    if dice.random() < 0.5:
        elsewhere.joinpath("train.a").write_text("something else\n")  # of the name that the config has
        elsewhere.joinpath("prepared").mkdir()
    found = run([name, f"--workdir={folder}", *more], lambda: os.chdir(elsewhere), text)
    if found.status == 0:
        check(_scores(found) == wanted, f"{name} from another directory: {found.out!r}, and at home {wanted!r}")
    else:
        check(kind == "moved run", f"{name} is not possible from another directory:\n{found.err[-1500:]}")
    shutil.rmtree(home)
    shutil.rmtree(elsewhere)


def replaced_file(place: Place, dice: random.Random, tally: Tally) -> None:
    """Another file comes to lie where a run's text was: refused, or it makes no difference."""
    home = place.new("replaced")
    home.mkdir()
    options = _texts(home, dice)
    workdir, at_home = home / "run", lambda: os.chdir(home)
    begin = run(place.train("plain", workdir, *options), at_home)
    check(begin.status == 0, begin.err)
    wanted = _weights(workdir)
    shutil.rmtree(max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    name = dice.choice(["train.a", "train.b", "test.a", "test.b"])
    before = run(["evaluate", f"--workdir={workdir}", "--beam=1"], at_home)
    record = workdir / "translations" / "test.latest.beam=1.json"
    digest = json.loads(next(iter(sorted(record.parent.glob("*.json")))).read_text())["test_set_sha256"]
    lines = (home / name).read_text().splitlines()
    dice.shuffle(lines)
    (home / name).write_text("\n".join(lines) + "\n")
    tally.count("runs", "files replaced")
    ended = run(place.train("plain", workdir, *options), at_home)
    check(ended.status == 2 or _weights(workdir) == wanted, f"{name} was replaced: other weights")
    if dice.random() < 0.5:
        again = run(["evaluate", f"--workdir={workdir}", "--beam=1"], at_home)
        check(_scores(again) == _scores(before), f"{name} was replaced: other scores of the run's test set")
    other = run(["evaluate", f"--workdir={workdir}", "--beam=1", "--source=test.a", "--target=test.b"], at_home)
    check(other.status == 0, other.err)
    kept = [json.loads(path.read_text())["test_set_sha256"] for path in record.parent.glob("*.json")]
    check(digest in kept, "the record of the run's test set was overwritten by that of other texts")
    shutil.rmtree(home)


def shadowed_module(place: Place, dice: random.Random, tally: Tally) -> None:
    """A sweep is started where files have the names of modules: its workers run what is installed."""
    home = place.new("shadowed")
    home.mkdir()
    experiment_file(home, "Variant('two', {'model.num_heads': 4})")
    names = dice.sample(["random.py", "numpy.py", "jax.py", "json.py", "transformer_jax/__init__.py"], 2)
    for name in names:
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text("raise SystemExit('this is not what is installed')\n")
    script = Path(sys.executable).with_name("transformer-jax")
    command = [str(script), "sweep", "experiment.py", "--workdir=sweep", "--jobs=1"]
    command.append(f"--config.train.compile_cache={place.root / 'cache'}")
    done = subprocess.run(command, cwd=home, env=environment(), capture_output=True, text=True, timeout=1200)
    tally.count("runs", "shadowed modules")
    check(done.returncode == 0, f"{names}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    shutil.rmtree(home)


@cache
def half_way(place: Place, options: tuple[str, ...]) -> Path:
    """A run that is to be resumed from the middle."""
    workdir = place.new("half-way")
    ended = run(place.train("plain", workdir, *options))
    check(ended.status == 0, ended.err)
    shutil.rmtree(max((workdir / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    return workdir


@cache
def straight(place: Place, options: tuple[str, ...]) -> str:
    workdir = place.new("straight")
    ended = run(place.train("plain", workdir, *options))
    check(ended.status == 0, ended.err)
    return _weights(workdir)


def _texts(home: Path, dice: random.Random) -> list[str]:
    """Texts of a copy task in files; the options that name them, relative to where they are."""
    for split, count in (("train", 120), ("valid", 20), ("test", 12)):
        lines = [" ".join(dice.choices("abcdefgh", k=dice.randint(2, 9))) for _ in range(count)]
        for side in "ab":
            (home / f"{split}.{side}").write_text("\n".join(lines) + "\n")
    named = {f"{split}source": f"{split or 'train_'}.a" for split in ("", "valid_", "test_")}
    named |= {f"{split}target": f"{split or 'train_'}.b" for split in ("", "valid_", "test_")}
    return ["data.corpus=", *(f"data.{option}={name.replace('_.', '.')}" for option, name in named.items())]


def _scores(ended: Ended) -> str:
    """What a command printed, but for the paths in it."""
    check(ended.status == 0, ended.err)
    lines = ended.out.decode().splitlines()
    return "\n".join(line for line in lines if "translations/" not in line and not line.startswith("note:"))


def _weights(workdir: Path) -> str:
    return hashlib.sha256(json.loads(fingerprint(workdir))["weights"].encode()).hexdigest()
