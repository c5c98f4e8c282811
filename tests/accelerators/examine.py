"""The report of `transformer-jax inspect --compile-for --json`, with what the text of the program says besides.

python -m tests.accelerators.examine CONFIG.py DEVICES train|decode [model.dtype=bfloat16 ...]
"""

import collections
import json
import sys
from typing import Any

from tests.accelerators.traffic import Traffic
from transformer_jax.commands import configuration
from transformer_jax.planning import ATTENTION_KERNEL, Compiled, compile_for, examine, parse_target


def in_detail(compiled: Compiled) -> dict[str, Any]:
    """The traffic of the memory, collectives by axes with what is sent, and kernels, each as often as it runs."""
    program = Traffic(str(compiled.program.as_text()))
    sizes = {str(axis): size for axis, size in compiled.mesh.shape.items()}
    alike = collections.defaultdict(list)
    for collective in program.collectives():
        alike[collective.kind, collective.axes(sizes), collective.in_loop].append(collective)
    return {
        "accessed": sum(program.accesses().values()),
        "copied_in_loops": max((array.size for array in program.copies()), default=0),
        "host_transfers": program.host_transfers(),
        "collectives": [
            {
                "kind": kind,
                "axes": axes,
                "count": sum(one.times for one in ones),
                "sent": sum(one.sent for one in ones),  # bytes of each device
                "asynchronous": sum(one.times for one in ones if one.is_asynchronous),
                "in_loop": in_loop,  # then each counts once, unless the length of the loop is known
            }
            for (kind, axes, in_loop), ones in alike.items()
        ],
        "attention_kernels": {
            name: count
            for name, count in program.kernels().items()
            if ATTENTION_KERNEL.search(f'custom_call_target="{name}"')
        },
    }


def main(config: str, devices: str, program: str, *options: str) -> None:
    changes = [(name, value) for name, _, value in (option.partition("=") for option in options)]
    experiment, target = configuration.load(config, changes), parse_target(devices)
    compiled = compile_for(experiment, target, program)
    report = examine(compiled, target, experiment.model)
    print(json.dumps(report | in_detail(compiled)))


if __name__ == "__main__":
    main(*sys.argv[1:])
