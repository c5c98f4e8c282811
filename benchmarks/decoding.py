"""Sentences decoded per second by a base-size model with random weights, which always decodes to the limit.

python benchmarks/decoding.py [--tokens 24] [--quick]

Every source and every output has exactly --tokens tokens, with the usual room for 50 more.
CPU seconds are printed next to wall-clock seconds: on a shared machine they vary less.
"""

import argparse
import time

from decoding_peers import Case, System, ours

REPEATS = 3


def seconds(decode: System, case: Case) -> tuple[float, float]:
    """Wall and CPU seconds of the fastest of some runs; compilation is not among them."""
    decode(case)
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        decode(case)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--quick", action="store_true", help="beam 4 on 64 sentences, and nothing else")
    arguments = parser.parse_args()
    decode = ours()
    usual = Case(sentences=64, beam=4, tokens=arguments.tokens)
    cases = {"beam 4": usual}
    if not arguments.quick:
        cases |= {"greedy": usual._replace(beam=1), "one sentence, beam 4": usual._replace(sentences=1)}
        cases |= {"one sentence, greedy": usual._replace(sentences=1, beam=1)}
        cases |= {f"beam {beam}": usual._replace(beam=beam) for beam in (2, 8, 16)}
        cases |= {f"{n} sentences": usual._replace(sentences=n) for n in (8, 16, 32, 128, 256)}
        cases |= {f"{n} tokens": usual._replace(tokens=n) for n in (12, 48, 96)}
    print(f"{'case':<24}{'sentences/s':>12}{'tokens/s':>10}{'seconds':>9}{'CPU s':>8}")
    for name, case in cases.items():
        wall, cpu = seconds(decode, case)
        rate = case.sentences / wall
        print(f"{name:<24}{rate:>12.1f}{rate * case.tokens:>10,.0f}{wall:>9.2f}{cpu:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
