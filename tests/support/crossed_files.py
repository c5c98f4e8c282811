"""The files that one call of attention, one update and one whole training cross: a script that prints them as JSON.

    PYTHONPATH=CHECKOUT python tests/support/crossed_files.py

It trains a tiny model for two updates with rotary positions, and notes in which files of the package functions run: of
`model/` while an attention of a layer is called, of `update/` and of `training/` at any time.
"""

import json
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import transformer_jax
from transformer_jax import cli

PACKAGE = Path(transformer_jax.__file__).parent
OPTIONS = {
    "data.corpus": "copy",
    "data.tokenizer": "words",
    "data.tokens_per_batch": 256,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 8,
    "model.d_ff": 8,
    "model.num_heads": 2,
    "model.positions": "rotary",
    "train.steps": 2,
    "train.log_every": 1,
    "train.eval_every": 2,
    "train.checkpoint_every": 2,
    "train.compile_cache": "none",
    "train.peak_flops": 1e12,
    "decode.bleu_sentences": 0,
    "optimizer.warmup_steps": 1,
}


class Trace:
    """Notes the files of the functions that run."""

    def __init__(self) -> None:
        self.crossed: dict[str, set[str]] = {"attention": set(), "update": set(), "training": set()}
        self.in_attention: FrameType | None = None

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        if event not in ("call", "return") or not frame.f_code.co_filename.startswith(str(PACKAGE)):
            return
        name = str(Path(frame.f_code.co_filename).relative_to(PACKAGE))
        if event == "return":
            self.in_attention = None if frame is self.in_attention else self.in_attention
            return
        if frame.f_code.co_name.startswith("<"):
            return
        is_attention = type(frame.f_locals.get("self")).__name__ == "MultiHeadAttention"
        if is_attention and frame.f_code.co_name in ("with_context", "__call__"):
            self.in_attention = self.in_attention or frame
        if self.in_attention is not None:
            self.crossed["attention"].add(name)
        folder = name.partition("/")[0]
        if folder in ("update", "training"):
            self.crossed[folder].add(name)


def main() -> None:
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder:
        options = [f"--config.{path}={value}" for path, value in OPTIONS.items()]
        threading.setprofile(trace)
        sys.setprofile(trace)
        try:
            status = cli.main(["train", "--config=preset:demo", f"--workdir={folder}/run", *options])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if status:
        raise SystemExit(status)
    print(json.dumps({name: sorted(files) for name, files in trace.crossed.items()}))


if __name__ == "__main__":
    main()
