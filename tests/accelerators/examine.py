"""The report of `transformer-jax inspect --compile-for --json`, with the traffic of the device's memory.

python -m tests.accelerators.examine CONFIG.py DEVICES train|decode [model.dtype=bfloat16 ...]
"""

import json
import sys
from typing import Any

from tests.accelerators.traffic import Traffic
from transformer_jax.commands import configuration
from transformer_jax.planning.compiled import Compiled, compile_for, examine
from transformer_jax.planning.target import parse_target


def traffic(compiled: Compiled) -> dict[str, Any]:
    """What the text of a compiled program says besides what `inspect` reports."""
    program = Traffic(str(compiled.program.as_text()))
    return {
        "accessed": sum(program.accesses().values()),
        "copied_in_loops": max((array.size for array in program.copies()), default=0),
        "host_transfers": program.host_transfers(),
    }


def main(config: str, devices: str, program: str, *options: str) -> None:
    changes = [(name, value) for name, _, value in (option.partition("=") for option in options)]
    experiment, target = configuration.load(config, changes), parse_target(devices)
    compiled = compile_for(experiment, target, program)
    report = examine(compiled, target, experiment.model)
    print(json.dumps(report | traffic(compiled)))


if __name__ == "__main__":
    main(*sys.argv[1:])
