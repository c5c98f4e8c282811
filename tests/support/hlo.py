"""What a compiled training step sends, read from the text of its HLO, and what memory it needs."""

import json
import math
import os
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import numpy as np
import pytest

from tests.support.places import ROOT
from tests.support.small_runs import Trainer, batch_of, experiment, sentences
from transformer_jax import ModelConfig
from transformer_jax.planning.cost import MeshSize, Work, bytes_sent, memory
from transformer_jax.update.sharding import AXES

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
BYTES = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "pred": 1, "u8": 1, "u16": 2}


class Collective(NamedTuple):
    """One of them: what each device has of its results, among which devices, and how often it runs in one step."""

    kind: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    axes: tuple[str, ...]
    devices: int
    times: int

    @property
    def bytes(self) -> int:
        return sum(BYTES[kind] * math.prod(shape) for kind, shape in self.shapes)

    @property
    def sent(self) -> float:
        """Bytes that each device sends, in a ring."""
        share = (self.devices - 1) / self.devices
        return self.times * self.bytes * {"all-reduce": 2 * share, "all-gather": share, "all-to-all": share}[self.kind]


def collectives(text: str, mesh: tuple[int, int, int]) -> list[Collective]:
    """Those of a program for a mesh of these sizes."""
    times, found = _times(text), []
    for computation, line in _lines(text):
        matched = re.search(rf"= (.*?) ({'|'.join(KINDS)})(?:-start)?\(", line)
        if matched:
            shapes = tuple(
                (kind, tuple(map(int, filter(None, dims.split(",")))))
                for kind, dims in re.findall(r"(\w+)\[([\d,]*)\]", re.sub(r"/\*.*?\*/", "", matched[1]))
            )
            group = _first_group(line)
            spread = np.array(np.unravel_index(group, mesh))
            axes = tuple(axis for axis, places in zip(AXES, spread, strict=True) if len(set(places)) > 1)
            if len(group) > 1:
                found.append(Collective(matched[2], shapes, axes, len(group), times[computation]))
    return found


class Program(NamedTuple):
    """A compiled training step: its text, what each device has of each parameter, and bytes of memory on each."""

    hlo: str
    parameters: list[tuple[int, ...]]
    state: int
    temporary: int


# XLA for CPUs drops the barriers that keep a second gathering apart from the first, and gathers at once all it can.
# Here it keeps them, and does first what frees memory, as XLA for accelerators does. Machine code is not looked at.
AS_ON_ACCELERATORS = {
    "xla_disable_hlo_passes": "cse_barrier_expander",
    "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "xla_backend_optimization_level": 0,
}


def compiled(devices: int, rows: int, width: int = 8, **options) -> Program:
    """The training step of a tiny model (options are small_runs.experiment's), compiled and not run."""
    trainer = Trainer(experiment(**options), devices)
    batch = batch_of(sentences(rows), width)
    shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), batch)
    program = trainer.step.lower(trainer.plan, shapes).compile(compiler_options=AS_ON_ACCELERATORS)
    memory = program.memory_analysis()
    shards = [leaf.sharding.shard_shape(leaf.shape) for leaf in jax.tree.leaves(trainer.plan.params)]
    return Program(program.as_text(), shards, memory.argument_size_in_bytes, memory.temp_size_in_bytes)


def compiled_elsewhere(devices: int, **options) -> Program:
    """The same for more devices than this process has."""
    code = f"import json; from tests.support import hlo; print(json.dumps(hlo.compiled({devices}, **{options})))"
    env = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    hlo, parameters, *memory = json.loads(done.stdout)
    return Program(hlo, [tuple(shape) for shape in parameters], *memory)


class Configuration(NamedTuple):
    """Of a model on a mesh: rows of a batch, tokens in a row, and parts that an update is made in."""

    mesh: tuple[int, int, int]
    rows: int
    length: int
    parts: int
    model: dict

    def compiled(self) -> Program:
        options = {f"model__{name}": value for name, value in self.model.items()}
        options |= {"mesh__fsdp": self.mesh[1], "mesh__tensor": self.mesh[2], "train__accumulate": self.parts}
        return compiled(math.prod(self.mesh), self.rows, self.length, **options)

    def assert_predicted(self, program: Program) -> None:
        """The closed formulas are right: bytes along each axis within 5 %, memory within 20 %.

        The numbers that norms and losses add are left out of the formula.
        """
        config, mesh = ModelConfig(**{"dropout": 0.0, **self.model}), MeshSize(*self.mesh)
        work = Work(self.rows, self.length, self.length, self.parts)
        sent = dict.fromkeys(AXES, 0.0)
        for collective in collectives(program.hlo, self.mesh):
            sent[collective.axes[0]] += collective.sent
        assert sent == pytest.approx(bytes_sent(config, work, mesh)._asdict(), rel=0.05, abs=2000)
        predicted = memory(config, work, mesh)
        assert program.state == pytest.approx(predicted.parameters + predicted.optimizer, rel=0.05)
        assert program.state + program.temporary == pytest.approx(predicted.total, rel=0.2)


def _lines(text: str):
    computation = ""
    for line in text.splitlines():
        if matched := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            computation = matched[1]
        yield computation, line


def _times(text: str) -> dict[str, int]:
    """How often each computation runs: once, but for the bodies of loops."""
    called, trips = {}, {}
    names = set()
    for computation, line in _lines(text):
        names.add(computation)
        for name in re.findall(r"(?:body|calls|to_apply|condition)=%?([\w.\-]+)", line):
            called[name] = computation
        if matched := re.search(r"body=%?([\w.\-]+).*known_trip_count\":\{\"n\":\"(\d+)\"", line):
            trips[matched[1]] = int(matched[2])

    def times(name: str) -> int:
        above = times(called[name]) if name in called else 1
        return above * trips.get(name, 1)

    return {name: times(name) for name in names}


def _first_group(line: str) -> list[int]:
    """The numbers of the devices of one group, in each of the ways in which HLO writes them."""
    groups = re.search(r"replica_groups=(.*?)(?:, (?:dimensions|use_global|channel|to_apply)|$)", line)[1]
    if groups.startswith("{{"):
        return [int(number) for number in groups[2:].split("}")[0].split(",")]
    if groups.startswith("mesh"):
        sizes = [(name, int(size)) for name, size in re.findall(r"'(\w+)'=(\d+)", groups)]
        chosen = re.findall(r"'(\w+)'", groups[groups.rindex("{") :])
        ids = re.search(r"device_ids=\((.*?)\)( |$)", groups)
        numbers = _iota(ids[1]) if ids else np.arange(math.prod(size for _, size in sizes))
        numbers = numbers.reshape([size for _, size in sizes])
        return numbers[tuple(slice(None) if name in chosen else 0 for name, _ in sizes)].reshape(-1).tolist()
    shape, iota = groups.split("<=")
    return _iota(iota).reshape([int(n) for n in shape.strip("[]").split(",")])[0].tolist()


def _iota(text: str) -> np.ndarray:
    """[4,2]T(1,0): counted, cut into 4 x 2, turned."""
    dims = [int(n) for n in re.search(r"\[([\d,]+)\]", text)[1].split(",")]
    turned = re.search(r"T\(([\d,]+)\)", text)
    numbers = np.arange(math.prod(dims)).reshape(dims)
    return (numbers.transpose([int(n) for n in turned[1].split(",")]) if turned else numbers).reshape(-1)
