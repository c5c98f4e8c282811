"""Which files of the package a batch passes through up to the first update: a script that prints them as JSON.

    PYTHONPATH=CHECKOUT python tests/support/traced_training.py

It trains a tiny model for one update on files in which every line repeats one word. So whatever holds a sentence can be
recognized: a text with the word repeated, or an array with one token id repeated. A function belongs to the path of a
batch if it is given such a value or returns one. Tracing ends where the loss of the first update is traced; functions
that run inside jit see no values and do not count.
"""

import dataclasses
import itertools
import json
import re
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import transformer_jax
from transformer_jax import cli

PACKAGE = Path(transformer_jax.__file__).parent
REPEATS = 6
SENTENCE = re.compile(rf"\b(\w+)(?: \1){{{REPEATS - 1}}}")
OPTIONS = {
    "data.tokenizer": "words",
    "data.test_size": 0,
    "data.tokens_per_batch": 256,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 8,
    "model.d_ff": 8,
    "model.num_heads": 2,
    "train.steps": 1,
    "train.log_every": 1,
    "train.eval_every": 1,
    "train.checkpoint_every": 1,
    "train.compile_cache": "none",
    "train.peak_flops": 1e12,
    "decode.bleu_sentences": 0,
    "optimizer.warmup_steps": 1,
}


class FirstUpdate(BaseException):
    """Ends the training."""


def holds_sentence(value: Any, depth: int = 4) -> bool:
    """Whether a text or an array, or one in a collection, has the repeated word."""
    if isinstance(value, str):
        return SENTENCE.search(value) is not None
    if isinstance(value, bytes):
        return SENTENCE.search(value.decode(errors="ignore")) is not None
    if isinstance(value, np.ndarray) or type(value).__name__ == "ArrayImpl":
        return value.dtype.kind == "i" and value.size >= REPEATS and _repeats(np.asarray(value).ravel()[:10_000])
    if not depth:
        return False
    if dataclasses.is_dataclass(value):
        value = [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        if len(value) >= REPEATS and all(isinstance(item, int) for item in value[:50]):
            return _repeats(np.asarray(value[:50]))
        return any(holds_sentence(item, depth - 1) for item in value[:20])
    return False


def _repeats(ids: np.ndarray) -> bool:
    """Whether one id above the special ones stands `REPEATS` times in a row."""
    run = 0
    for before, now in itertools.pairwise(ids):
        run = run + 1 if before == now > 3 else 0
        if run == REPEATS - 1:
            return True
    return False


class Trace:
    """Follows the calls within the package from `train_run` on."""

    def __init__(self) -> None:
        self.batch: list[str] = []
        self.begun = False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        name = str(Path(frame.f_code.co_filename).relative_to(PACKAGE))
        if frame.f_code.co_name == "train_run":
            self.begun = True
        if not self.begun or frame.f_code.co_name.startswith("<"):
            return
        arguments = [frame.f_locals.get(word) for word in frame.f_code.co_varnames[: frame.f_code.co_argcount]]
        is_main = threading.current_thread() is threading.main_thread()
        is_traced = any("Tracer" in type(argument).__name__ for argument in arguments)
        if event == "call" and is_main and is_traced and name.endswith("loss.py"):
            raise FirstUpdate
        if name not in self.batch and holds_sentence([value] if event == "return" else arguments):
            self.batch.append(name)


def main() -> None:
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        words = ["red", "green", "blue", "black", "white", "brown"]
        for side in ("source", "target"):
            lines = [" ".join([word] * (REPEATS + 1 + number % 3)) for number in range(40) for word in words]
            Path(folder, side).write_text("\n".join(lines) + "\n")
            OPTIONS[f"data.{side}"] = f"{folder}/{side}"
            OPTIONS[f"data.valid_{side}"] = f"{folder}/valid_{side}"
            Path(folder, f"valid_{side}").write_text("\n".join(f"{line} red" for line in lines[:6]) + "\n")
        options = [f"--config.{path}={value}" for path, value in OPTIONS.items()]
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            cli.main(["train", "--config=preset:text", f"--workdir={folder}/run", *options])
        except FirstUpdate:
            pass
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    print(json.dumps({"batch": trace.batch}))


if __name__ == "__main__":
    main()
