"""Start-up time: importing the package, and `transformer-jax train` up to the end of the first update.

    python benchmarks/first_step.py [--model base] [--rounds 3] [--json FILE]

Importing: `import transformer_jax` beyond `import jax, flax.linen`. Cold: the compile cache is empty. Warm: the same
command again. The data is prepared beforehand; batches have one shape of 16 x 64 tokens of each side.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import made_corpus
import side_by_side

from transformer_jax import ModelConfig

MODELS = {"base": ModelConfig.base(37_000), "tiny": ModelConfig.tiny(10_000)}
SIZE = ("num_encoder_layers", "num_decoder_layers", "d_model", "d_ff", "num_heads")
IMPORT = """
import time, jax, flax.linen
start = time.perf_counter()
import transformer_jax
transformer_jax.Transformer
print(time.perf_counter() - start)
"""
MODULE = [sys.executable, "-P", "-m", "transformer_jax.cli"]


def options(model: ModelConfig, directory: Path) -> list[str]:
    return [
        "--config=preset:text",
        *made_corpus.write(directory, model.vocab_size),
        *(f"--config.model.{name}={getattr(model, name)}" for name in SIZE),
        "--config.data.tokens_per_batch=1024",
        "--config.data.max_length=64",
        "--config.data.num_shapes=1",
        "--config.train.log_every=1",
        f"--config.train.compile_cache={directory / 'compiled'}",
    ]


def seconds_to_first_step(directory: Path, arguments: list[str]) -> float:
    """Seconds until the line of step 1 is on stderr; the process is then killed and its folder removed."""
    workdir = directory / "run"
    start = time.perf_counter()
    process = subprocess.Popen(
        [*MODULE, "train", f"--workdir={workdir}", *arguments], stderr=subprocess.PIPE, text=True, env=os.environ
    )
    output = ""
    assert process.stderr is not None
    for line in process.stderr:
        output += line
        if line.startswith("step       1 "):
            break
    else:
        sys.exit(f"the training ended before its first step:\n{output}")
    seconds = time.perf_counter() - start
    process.kill()
    process.wait()
    shutil.rmtree(workdir)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    print(side_by_side.machine())
    imports = [float(subprocess.check_output([sys.executable, "-P", "-c", IMPORT])) for _ in range(9)]
    print(f"import transformer_jax: {statistics.median(imports) * 1000:.0f} ms beyond jax and flax (median of 9)")
    seconds: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        given = options(MODELS[arguments.model], directory)
        subprocess.run(
            [*MODULE, "prepare", f"--workdir={directory / 'run'}", *given], check=True, stdout=subprocess.DEVNULL
        )
        shutil.rmtree(directory / "run", ignore_errors=True)
        for _ in range(arguments.rounds):
            shutil.rmtree(directory / "compiled", ignore_errors=True)
            for kind in seconds:
                seconds[kind].append(seconds_to_first_step(directory, given))
    for kind, taken in seconds.items():
        values = ", ".join(f"{value:.1f}" for value in taken)
        print(
            f"{arguments.model}, {kind}: {statistics.median(taken):.1f} s from the command to the first step ({values})"
        )
    side_by_side.write_json(arguments.json, machine=side_by_side.machine(), model=arguments.model, seconds=seconds)


if __name__ == "__main__":
    main()
