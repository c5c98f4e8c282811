"""Beam search with and without the tail stage, in which few unfinished sentences continue alone: time and differences.

    python benchmarks/tail.py --workdir=RUN FILE [--tokens 4096,16384] [--rounds 5]

Use a trained run: the result depends on the lengths of its translations. Both alternate; compilation is not timed.
"""

import argparse
import statistics
from pathlib import Path
from unittest import mock

import side_by_side

from transformer_jax import load_run
from transformer_jax.translation import translate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--workdir", type=Path, required=True)
    parser.add_argument("--weights", default="latest")
    parser.add_argument("--tokens", default="4096,16384", help="decode.tokens_per_batch, several with commas between")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = arguments.file.read_text().splitlines()
    whole, tail = (load_run(arguments.workdir, arguments.weights) for _ in range(2))
    print(side_by_side.machine())
    print(f"\n{'tokens_per_batch':>16}{'whole batch':>14}{'with a tail':>14}{'less time':>12}{'different':>11}")
    for tokens in map(int, arguments.tokens.split(",")):

        def to_the_end(tokens: int = tokens) -> list[str]:
            with mock.patch.object(translate, "tail_of", return_value=None):
                return whole.translate(texts, beam=arguments.beam, tokens_per_batch=tokens)

        def with_tail(tokens: int = tokens) -> list[str]:
            return tail.translate(texts, beam=arguments.beam, tokens_per_batch=tokens)

        different = sum(one != other for one, other in zip(to_the_end(), with_tail(), strict=True))
        seconds = side_by_side.turn_by_turn({"whole": to_the_end, "tail": with_tail}, arguments.rounds)
        ratio = statistics.median(b / a for a, b in zip(seconds["whole"], seconds["tail"], strict=True))
        typical = side_by_side.medians(seconds)
        print(
            f"{tokens:>16,}{typical['whole']:>12.2f} s{typical['tail']:>12.2f} s{1 - ratio:>12.0%}{different:>11}",
            flush=True,
        )


if __name__ == "__main__":
    main()
