"""Soak test: a training of 200,000 steps that is killed, stopped and suspended. Does it leak or slow down?

    python benchmarks/soak.py --workdir=runs/soak --output=docs/results/soak
    python benchmarks/soak.py --workdir=runs/short --steps=4000 --interruptions=3

The model is very small, so that many steps, checkpoints and validations take minutes of a CPU. The
process is sampled every few seconds: memory, threads, open files, processor time per step, and the files in
the run folder. It prints a line for each of these and writes plots to `--output`.
"""

import argparse
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.pictures import plots
from transformer_jax.runs.metrics import read_metrics

CONFIG = """
from transformer_jax.config import default_config

def get_config():
    config = default_config()
    config.data.corpus = "copy"
    config.data.tokenizer = "words"
    config.data.task.train_size = 5000
    config.data.task.valid_size = 100
    config.data.task.test_size = 10
    config.data.task.alphabet = 8
    config.data.tokens_per_batch = 96
    config.data.num_shapes = 2
    config.model.d_model = 8
    config.model.d_ff = 16
    config.model.num_heads = 2
    config.model.num_encoder_layers = 1
    config.model.num_decoder_layers = 1
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup_steps = 1000
    config.train.log_every = 500
    config.train.eval_every = 2000
    config.train.checkpoint_every = 2000
    config.train.keep_latest = 3
    config.train.keep_best = 2
    return config
"""
SECONDS_BETWEEN_LOOKS = 3.0
# The interruptions; a suspended process continues, the others are started again.
HARMS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
SUSPENDED_SECONDS = 3.0
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PICTURES = {
    "memory": ("Memory of the process", {"memory_mb": "MB"}),
    "speed": ("Processor time of a step", {"cpu_ms": "ms"}),
    "files": ("Files in the run's folder", {"files": "files"}),
    "size": ("Size of the run's folder", {"folder_mb": "MB"}),
    "loss": ("Loss on the copy task", {"loss": "training", "valid_loss": "validation"}),
}


@dataclasses.dataclass
class Training:
    """The training, in whatever process it is at the moment."""

    workdir: Path
    steps: int
    starts: int = 0

    def start(self) -> None:
        config = self.workdir.parent / f"{self.workdir.name}.config.py"
        config.write_text(CONFIG)
        command = [sys.executable, "-P", "-m", "transformer_jax.cli", "train", f"--config={config}"]
        command += [f"--workdir={self.workdir}", f"--config.train.steps={self.steps}"]
        command += [f"--config.train.compile_cache={self.workdir.with_suffix('.cache')}"]
        with open(self.workdir.with_suffix(".log"), "a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.starts += 1

    def step(self) -> int:
        """The last step in metrics.jsonl."""
        metrics = self.workdir / "metrics.jsonl"
        if not metrics.is_file():
            return 0
        with open(metrics, "rb") as file:
            file.seek(-min(2000, metrics.stat().st_size), os.SEEK_END)
            lines = file.read().decode(errors="replace").split("\n")
        for line in reversed(lines[:-1]):
            try:
                return json.loads(line)["step"]
            except ValueError:
                continue
        return 0

    def look(self) -> dict[str, Any] | None:
        """The process and the folder at this moment; None where one of them is just going away."""
        process = Path("/proc") / str(self.process.pid)
        try:
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            times = (process / "stat").read_text().rpartition(")")[2].split()
            found = [path.stat().st_size for path in self.workdir.rglob("*") if path.is_file()]
            return {
                "step": self.step(),
                "start": self.starts,
                "memory_mb": int(status["VmRSS"].split()[0]) / 1024,
                "threads": int(status["Threads"]),
                "descriptors": len(os.listdir(process / "fd")),
                "cpu_seconds": (int(times[11]) + int(times[12])) / CLOCK_TICKS,
                "files": len(found),
                "folder_mb": sum(found) / 2**20,
                "time": time.time(),
            }
        except (OSError, KeyError):
            return None

    def harm(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            time.sleep(SUSPENDED_SECONDS)
            self.process.send_signal(signal.SIGCONT)
        else:
            self.process.wait()
            self.start()


def soak(training: Training, interruptions: int, rng: random.Random, notes: Path) -> list[tuple[int, str]]:
    """Trains to the end, looks and harms on the way; returns the harms: at which step, by what."""
    moments = sorted(rng.sample(range(training.steps // 50, training.steps), interruptions))
    harms: list[tuple[int, str]] = []
    training.start()
    with open(notes, "a") as file:
        while training.process.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            if (look := training.look()) is None:
                continue
            file.write(json.dumps(look) + "\n")
            file.flush()
            if moments and look["step"] >= moments[0]:
                number = HARMS[len(harms) % len(HARMS)]
                harms.append((look["step"], number.name))
                moments.pop(0)
                training.harm(number)
    if training.process.returncode != 0:
        raise SystemExit(f"the training failed: see {training.workdir.with_suffix('.log')}")
    return harms


def with_speed(looks: Sequence[dict[str, Any]], every: int) -> list[dict[str, Any]]:
    """Looks at intervals of this number of steps, each with the processor time per step since the one before."""
    kept: list[dict[str, Any]] = []
    last: dict[str, Any] | None = None
    for look in looks:
        if last is None or look["start"] != last["start"] or look["step"] < last["step"]:
            last = look if look["step"] else None
        elif look["step"] - last["step"] >= every:
            spent = look["cpu_seconds"] - last["cpu_seconds"]
            kept.append({**look, "cpu_ms": 1000 * spent / (look["step"] - last["step"])})
            last = look
    return kept


def summary(looks: Sequence[dict[str, Any]], steps: int) -> dict[str, dict[str, float]]:
    """Each quantity in the first and in the last quarter of the steps, by its median, and the largest of all."""
    first = [look for look in looks if look["step"] <= steps / 4] or looks
    last = [look for look in looks if look["step"] > steps * 3 / 4] or looks
    return {
        name: {
            "first quarter": statistics.median(look[name] for look in first),
            "last quarter": statistics.median(look[name] for look in last),
            "largest": max(look[name] for look in looks),
        }
        for name in ("memory_mb", "threads", "descriptors", "cpu_ms", "files", "folder_mb")
    }


def draw(output: Path, looks: Sequence[dict[str, Any]], metrics: Sequence[dict[str, Any]]) -> None:
    for name, (title, names) in PICTURES.items():
        lines = metrics if name == "loss" else looks
        figure = plots.learning_curves(lines, names, title)
        figure.axes[0].set_ylim(bottom=0)
        plots.save(figure, output / f"{name}.svg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--interruptions", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="where pictures and figures go (default: WORKDIR/soak)")
    chosen = parser.parse_args()
    workdir = chosen.workdir.absolute()
    output = chosen.output or workdir / "soak"
    workdir.parent.mkdir(parents=True, exist_ok=True)
    notes = workdir.with_suffix(".looks.jsonl")
    begin = time.monotonic()
    training = Training(workdir, chosen.steps)
    harms = soak(training, chosen.interruptions, random.Random(chosen.seed), notes)
    looks = with_speed([json.loads(line) for line in notes.read_text().splitlines()], every=chosen.steps // 200)
    output.mkdir(parents=True, exist_ok=True)
    draw(output, looks, read_metrics(workdir / "metrics.jsonl"))
    figures = summary(looks, chosen.steps)
    record = {"steps": chosen.steps, "seed": chosen.seed, "starts": training.starts, "harms": harms, **figures}
    (output / "soak.json").write_text(
        json.dumps({**record, "hours": (time.monotonic() - begin) / 3600}, indent=1) + "\n"
    )
    for name, found in figures.items():
        print(f"{name:>12}: " + ", ".join(f"{quarter} {value:,.4g}" for quarter, value in found.items()))


if __name__ == "__main__":
    main()
