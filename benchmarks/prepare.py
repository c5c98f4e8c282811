"""Speed and memory of preparing a corpus.

    python benchmarks/prepare.py --pairs=29000 --words=12                     # sentences as short as captions
    python benchmarks/prepare.py --pairs=5000000 --words=22                   # the size of WMT14
    python benchmarks/prepare.py --source=train.en --target=train.de --vocab-size=8000

Prints one JSON object: sentences per second (both sides) with an existing tokenizer, seconds with training one, and the
largest resident size of the process. `--cores=1` measures one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from transformer_jax.config import DataConfig, ExperimentConfig, ModelConfig
from transformer_jax.data.prepare import prepare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=29_000, help="number of pairs of the synthetic corpus")
    parser.add_argument(
        "--words", type=float, default=12, help="words per sentence of the synthetic corpus, on average"
    )
    parser.add_argument("--source", help="a real text instead of the synthetic one")
    parser.add_argument("--target", help="the translation of --source")
    parser.add_argument("--vocab-size", type=int, default=8_000)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=1, help="read the text this many times, as one corpus")
    parser.add_argument("--skip-ready", action="store_true", help="train a tokenizer, but do not prepare a second time")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(arguments, Path(scratch))))


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, float]:
    source, target = arguments.source, arguments.target
    if source is None:
        source, target = (str(scratch / name) for name in ("source", "target"))
        for seed, path in enumerate((source, target)):
            write_synthetic(path, arguments.pairs, arguments.words, seed)
    data = DataConfig(source=(source,) * arguments.repeat, target=(target,) * arguments.repeat)
    experiment = ExperimentConfig(model=ModelConfig(vocab_size=arguments.vocab_size), data=data)
    start = time.perf_counter()
    prepared = prepare(experiment, scratch / "first")
    seconds_with_training = time.perf_counter() - start
    sentences = 2 * prepared.manifest["splits"]["train"]["read"]
    result: dict[str, float] = {
        "sentences": sentences,
        "source_tokens": len(prepared.pairs("train").source_tokens),
        "cores": len(os.sched_getaffinity(0)),
        "seconds_with_tokenizer_training": round(seconds_with_training, 2),
    }
    if not arguments.skip_ready:
        model = str(prepared.directory / "tokenizer.model")
        ready = dataclasses.replace(experiment, data=dataclasses.replace(data, tokenizer_file=model))
        start, cpu_start = time.perf_counter(), time.process_time()
        prepare(ready, scratch / "second")
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        result |= {
            "seconds": round(seconds, 2),
            "sentences_per_second": round(sentences / seconds),
            "sentences_per_cpu_second": round(sentences / cpu_seconds),
        }
    return {**result, "max_resident_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


def write_synthetic(path: str, lines: int, words: float, seed: int) -> None:
    """Sentences of log-normal length from 200,000 invented words with the frequencies of real words."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("eeeeeeennnnniiiisssrrraattdhulcgmobwfkzvpyjqx"))
    word_list = np.array(["".join(rng.choice(letters, size)) for size in 1 + rng.poisson(5, 200_000)], dtype=object)
    with open(path, "w", encoding="utf-8") as file:
        for start in range(0, lines, 50_000):
            count = min(50_000, lines - start)
            lengths = np.maximum(1, rng.lognormal(np.log(words) - 0.18, 0.6, count).astype(int))
            ranks = (len(word_list) ** rng.random(lengths.sum())).astype(int) - 1
            tokens = word_list[ranks]
            ends = np.cumsum(lengths)
            sentences = (" ".join(tokens[end - size : end]) for end, size in zip(ends, lengths, strict=True))
            file.write("".join(f"{sentence}.\n" for sentence in sentences))


if __name__ == "__main__":
    main()
