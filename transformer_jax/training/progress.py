"""What is shown of a running training: its header, its speed, and a progress line."""

import contextlib
import importlib.metadata
import math
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from tqdm import tqdm

from transformer_jax.data.batching import BatchStatistics
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.files.progress import tell
from transformer_jax.model.size import training_flops
from transformer_jax.model_config import ModelConfig
from transformer_jax.processes import hardware
from transformer_jax.processes.distributed import processes
from transformer_jax.runs.metrics import duration
from transformer_jax.schema import is_address
from transformer_jax.training.setup import RunSetup
from transformer_jax.training.steps import CompiledSteps

# Beside the versions where `compilation.unfused` switches something off.
UNFUSED = "compiled without an optimization that this jaxlib has a bug in"
VERSIONS = ("jax", "flax", "optax", "orbax-checkpoint")


class Throughput:
    """Measures the speed of training from one line of metrics to the next, without validating and saving."""

    def __init__(self, model: ModelConfig, statistics: BatchStatistics, devices: int, peak_flops: float | None):
        lengths = [round(n / statistics.pairs) for n in (statistics.source_tokens, statistics.target_tokens)]
        self._flops, self._devices = training_flops(model, *lengths), devices
        self.peak, self.peak_source = (peak_flops, "train.peak_flops") if peak_flops else hardware.peak_flops(model)

    def __str__(self) -> str:
        if self.peak is None:
            return f"unknown ({self.peak_source}): no MFU; --config.train.peak_flops=FLOP/s of one device gives it"
        return f"{self.peak / 1e12:.3g} TFLOP/s per device ({self.peak_source}), the basis of MFU"

    def start(self, prefetcher: Prefetcher[Any], step: int) -> None:
        self._prefetcher, self._step = prefetcher, step
        self._began = time.perf_counter()
        self._waited = prefetcher.data_wait

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Does not count the time inside."""
        began = time.perf_counter()
        yield
        self._began += time.perf_counter() - began

    def lap(self, step: int) -> None:
        """Ends the interval that `rates` then describes, and starts the next."""
        now = time.perf_counter()
        self._steps, self._step = step - self._step, step
        self._seconds, self._lap_waited = now - self._began, self._prefetcher.data_wait - self._waited
        self._began, self._waited = now, self._prefetcher.data_wait

    def rates(self, source_tokens: float, target_tokens: float, steps: int) -> dict[str, Any]:
        """The speed over the last interval, for non-padding tokens of `steps` steps.

        After a resume these can be more steps than the interval had: those of the earlier process are left out.
        MFU, model FLOPs utilization, is the FLOPs that the model needs for these tokens (model/size.py: matrix
        products alone, nothing for padding or recomputation) / (seconds x devices x peak FLOP/s of one); None if the
        peak is unknown.
        """
        seconds, share = self._seconds, min(1.0, self._steps / max(steps, 1))
        source_tokens, target_tokens = source_tokens * share, target_tokens * share
        flops = source_tokens * self._flops.source_token + target_tokens * self._flops.target_token
        return {
            "seconds": seconds,
            "source_tokens_per_second": source_tokens / seconds,
            "target_tokens_per_second": target_tokens / seconds,
            "data_wait": self._lap_waited / seconds,
            "mfu": None if self.peak is None else flops / (seconds * self._devices * self.peak),
            "memory_peak": hardware.memory_peak(),
        }


class ProgressLine:
    """A live progress bar on a terminal; without one, a plain line for each line of metrics. Only process 0 prints."""

    def __init__(self, first_step: int, last_step: int):
        self._last_step, self._is_shown = last_step, processes().is_first
        self._bar = None
        if self._is_shown and sys.stderr.isatty():
            self._bar = tqdm(initial=first_step, total=last_step, unit="step", dynamic_ncols=True, smoothing=0.1)
        self._reported_step, self._reported_at = first_step, time.monotonic()
        self._excluded_seconds, self._excluded_steps = 0.0, 0
        self._seconds_per_step: float | None = None

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, loss: float) -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            self._bar.update()

    def exclude_step(self, seconds: float) -> None:
        """Leaves a step that compiled its program, and its time, out of the speed and of the time that is left."""
        self._excluded_seconds += seconds
        self._excluded_steps += 1
        self.exclude(seconds)

    def exclude(self, seconds: float) -> None:
        """Leaves so much time between steps, such as the compilation of an evaluation, out of the time that is left."""
        self._reported_at += seconds
        if self._bar is not None:
            self._bar.unpause()  # it takes no step to have begun before now

    def report(self, step: int, line: Mapping[str, Any]) -> None:
        """Prints a line of metrics; of several runs their mean, and the speed of all of them together.

        The speed is that of steps that did not compile; without any, it is not known yet and not printed.
        """
        steps, excluded_seconds = step - self._reported_step, self._excluded_seconds
        counted = steps - self._excluded_steps
        pace = self._pace(step, counted)
        if self._is_shown and line:
            speed = left = ""
            perplexity = f"{line['perplexity']:{'.2f' if line['perplexity'] < 1e6 else '.2g'}}"
            if counted > 0:
                share = counted / steps * line["seconds"] / (line["seconds"] - excluded_seconds)
                speed = f"{line['target_tokens_per_second'] * share:,.0f} tokens/s  "
            if pace is not None:
                left = f"  left {duration(pace * (self._last_step - step))}"
            tell(
                (f"{line['runs']} runs  " if "runs" in line else "")
                + f"step {step:>7,}  loss {line['loss']:.3f}  perplexity {perplexity}  "
                f"rate {line['learning_rate']:.2e}  {speed}data wait {line['data_wait']:.0%}{left}"
            )

    def _pace(self, step: int, counted: int) -> float | None:
        """Seconds per step: a moving average, in which sleep fades away."""
        now = time.monotonic()
        if counted > 0:
            pace = (now - self._reported_at) / counted
            self._seconds_per_step = pace if self._seconds_per_step is None else (self._seconds_per_step + pace) / 2
        self._reported_step, self._reported_at = step, now
        self._excluded_seconds, self._excluded_steps = 0.0, 0
        return self._seconds_per_step


def header(setup: RunSetup, steps: CompiledSteps, throughput: Throughput) -> str:
    """What a run should say before its first step: all that people forget to write down."""
    config, batches, mesh, statistics = setup.config, setup.batches, setup.mesh, setup.batches.statistics()
    model = config.model
    kinds = {device.device_kind for device in mesh.devices.flat}
    axes = " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    per_step = statistics.steps_per_epoch
    loss = f"loss {config.train.loss}" if config.train.loss else f"label smoothing {config.train.label_smoothing:g}"
    loss += " (in valid_loss, not in perplexities)" if config.train.label_smoothing and not config.train.loss else ""
    loss += f"; z-loss {config.train.z_loss:g}" if config.train.z_loss else ""
    optimizer = config.optimizer.name + (" of hidden matrices and adam" if config.optimizer.name == "muon" else "")
    optimizer += "".join(f" {name}={value}" for name, value in config.optimizer.kwargs.items())
    groups = "".join(f"; {pattern}: {settings}" for pattern, settings in config.optimizer.groups)
    lines = {
        "model": f"{count(steps.abstract_state.params):,} parameters: {model.in_words}, "
        + model.dtype
        + (f", products at {model.matmul_precision} precision" if model.dtype == "float32" else ""),
        "vocabulary": f"{model.vocab_size:,}"
        + (f" source, {model.target_vocab_size:,} target" if model.target_vocab_size else ", shared")
        + f"; embeddings tied: {model.tie_embeddings}; positions: {model.parts.positions or model.positions}",
        "data": f"{statistics.pairs:,} pairs an epoch in {per_step:,} batches of {len(batches.shapes)} shapes; "
        + "; ".join([f"{statistics.dropped:,} dropped as longer than {config.data.max_length}", *setup.left_out]),
        "an update": f"{statistics.source_tokens / per_step:,.0f} source + {statistics.target_tokens / per_step:,.0f} "
        f"target tokens on average ({statistics.share:.0%} of the positions in a batch, the rest is padding)"
        + (f", in {config.train.accumulate} parts" if config.train.accumulate > 1 else ""),
        "optimizer": f"{optimizer}, {config.optimizer.schedule}, {_rates(setup, steps)}{groups}; "
        f"{loss}; dropout {model.dropout:g}",
        "length": f"{setup.last_step:,} updates = {setup.last_step / per_step:.1f} epochs ({_limits(setup)})",
        "devices": f"{mesh.devices.size} {', '.join(sorted(kinds))} as {axes}; "
        + ("one process" if jax.process_count() == 1 else f"{jax.process_count()} processes"),
        "peak": str(throughput),
        "versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in VERSIONS)
        + (f"; {UNFUSED}" if steps.compiler_options else ""),
    }
    return "\n".join(f"{name:>11}: {text}" for name, text in lines.items())


def _limits(setup: RunSetup) -> str:
    """Which option ends the run, and those that may end it earlier."""
    train = setup.config.train
    limits = {name: getattr(train, name) for name in ("tokens", "patience", "until_flat", "hours")}
    earlier = [f"train.{name} = {limit:,}" for name, limit in limits.items() if limit is not None]
    last = "train.steps" if setup.last_step == train.steps else "train.epochs"
    return last + (f"; earlier by {', '.join(earlier)}" if earlier else "")


def _rates(setup: RunSetup, steps: CompiledSteps) -> str:
    optimizer, schedule, last_step = setup.config.optimizer, steps.schedules[0], setup.last_step
    if is_address(optimizer.schedule):
        first, half, last = (float(schedule(step)) for step in (0, last_step // 2, last_step - 1))
        return f"rate {first:.3g} at first, {half:.3g} half-way, {last:.3g} at last"
    # The peak of every built-in schedule is the last step of its warmup, or of the run.
    peak = float(schedule(min(max(optimizer.warmup_steps - 1, 0), last_step - 1)))
    return f"peak rate {peak:.3g} after {optimizer.warmup_steps:,} updates"


def count(params: Any) -> int:
    """The number of parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
