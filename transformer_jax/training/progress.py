"""The display of a running training: its header, its speed, and a progress line."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jax
from tqdm import tqdm

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchStatistics, TrainingBatches
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.files.progress import tell
from transformer_jax.model.size import training_flops
from transformer_jax.processes import hardware
from transformer_jax.processes.distributed import processes
from transformer_jax.runs.metrics import counted, duration
from transformer_jax.training.compiled import CompiledRuns


def peak_of(config: ExperimentConfig) -> tuple[float | None, str]:
    """The peak FLOP/s of a device, to which MFU is relative, or None; and its source, or why it is not known."""
    given = config.train.peak_flops
    return (given, "train.peak_flops") if given else hardware.peak_flops(config.model)


def peak_in_words(config: ExperimentConfig) -> str:
    peak, source = peak_of(config)
    if peak is None:
        return f"unknown ({source}): no MFU; --config.train.peak_flops=FLOP/s of one device gives it"
    return f"{peak / 1e12:.3g} TFLOP/s per device ({source}), the basis of MFU"


class Interval(NamedTuple):
    """What was between two lines of metrics, without validating and saving."""

    steps: int
    seconds: float
    waited: float  # for batches, in seconds


class Throughput:
    """Measures the speed of a training that goes on after `step` with the batches of a prefetcher."""

    def __init__(
        self,
        config: ExperimentConfig,
        statistics: BatchStatistics,
        devices: int,
        clock: Callable[[], float],
        prefetcher: Prefetcher[Any],
        step: int,
    ):
        lengths = [round(n / statistics.pairs) for n in (statistics.source_tokens, statistics.target_tokens)]
        self._flops, self._devices = training_flops(config.model, *lengths), devices
        self._peak, _ = peak_of(config)
        self._clock, self._prefetcher, self._step = clock, prefetcher, step
        self._began, self._paused, self._waited = clock(), 0.0, prefetcher.data_wait

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """The seconds inside do not count for the interval in which they are."""
        began = self._clock()
        yield
        self._paused += self._clock() - began

    def lap(self, step: int) -> Interval:
        """The interval that ends at this step. The next one begins."""
        now, waited = self._clock(), self._prefetcher.data_wait
        interval = Interval(step - self._step, now - self._began - self._paused, waited - self._waited)
        self._step, self._began, self._paused, self._waited = step, now, 0.0, waited
        return interval

    def rates(self, interval: Interval, source_tokens: float, target_tokens: float, steps: int) -> dict[str, Any]:
        """The speed over an interval, for non-padding tokens of `steps` steps.

        After a resume these can be more steps than the interval had: an earlier process made the others.
        MFU, model FLOPs utilization, is the FLOPs that the model needs for these tokens (model/size.py: matrix
        products alone, nothing for padding or recomputation) / (seconds x devices x peak FLOP/s of one); None if the
        peak is unknown.
        """
        seconds, share = interval.seconds, min(1.0, interval.steps / max(steps, 1))
        source_tokens, target_tokens = source_tokens * share, target_tokens * share
        flops = source_tokens * self._flops.source_token + target_tokens * self._flops.target_token
        return {
            "seconds": seconds,
            "source_tokens_per_second": source_tokens / seconds,
            "target_tokens_per_second": target_tokens / seconds,
            "data_wait": interval.waited / seconds,
            "mfu": None if self._peak is None else flops / (seconds * self._devices * self._peak),
            "memory_peak": hardware.memory_peak(),
        }


class ProgressLine:
    """A live bar on a terminal, and a line for each line of metrics. Only process 0 prints."""

    def __init__(self, first_step: int, last_step: int, clock: Callable[[], float]):
        self._last_step, self._is_shown, self._clock = last_step, processes().is_first, clock
        disable = None if self._is_shown else True  # None: shown on a terminal
        self.bar = tqdm(
            initial=first_step, total=last_step, unit="step", dynamic_ncols=True, smoothing=0.1, disable=disable
        )
        self._reported_step, self._reported_at = first_step, clock()

    def advance(self, loss: float) -> None:
        self.bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
        self.bar.update()

    def report(self, step: int, lines: Sequence[Mapping[str, Any]]) -> None:
        """Prints the lines of metrics of all runs as one: means, and the speed of all of them together."""
        steps, seconds = step - self._reported_step, self._clock() - self._reported_at
        self._reported_step, self._reported_at = step, self._clock()
        if not self._is_shown:
            return
        names = ("loss", "perplexity", "learning_rate", "data_wait")
        loss, perplexity, rate, wait = (_mean([line[name] for line in lines]) for name in names)
        tokens_per_second = sum(line["target_tokens_per_second"] for line in lines)
        tell(
            (f"{len(lines)} runs  " if len(lines) > 1 else "")
            + f"step {step:>7,}  loss {loss:.3f}  perplexity {perplexity:{'.2f' if perplexity < 1e6 else '.2g'}}  "
            f"rate {rate:.2e}  {tokens_per_second:,.0f} tokens/s  data wait {wait:.0%}"
            + (f"  left {duration(seconds / steps * (self._last_step - step))}" if steps else "")
            + f"  at {datetime.now():%H:%M:%S}"
        )


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def header(
    compiled: CompiledRuns, batches: TrainingBatches, left_out: Sequence[str], last_step: int, programs: int
) -> str:
    """The first lines of a log: facts that are not in config.json."""
    config, mesh, statistics = compiled.configs[0], compiled.mesh, batches.statistics()
    model, train, per_epoch = config.model, config.train, statistics.steps_per_epoch
    warm = min(max(config.optimizer.warmup_steps, 1), last_step)
    early_ends = {name: getattr(train, name) for name in ("tokens", "patience", "until_flat", "hours")}
    lines = {
        "model": f"{count(compiled.abstract_state.params):,} parameters: {model.in_words}, {model.dtype}; "
        f"vocabulary {model.vocab_size:,}" + (f" and {model.target_vocab_size:,}" if model.target_vocab_size else ""),
        "data": f"{statistics.pairs:,} pairs per epoch in {per_epoch:,} batches of "
        f"{counted(len(batches.shapes), 'shape')}; "
        + "; ".join([f"{statistics.dropped:,} dropped as longer than {config.data.max_length}", *left_out]),
        "a batch": f"{statistics.source_tokens / per_epoch:,.0f} source + {statistics.target_tokens / per_epoch:,.0f} "
        f"target tokens on average ({statistics.share:.0%} of its positions, the rest is padding)"
        + (f", in {train.accumulate} microbatches" if train.accumulate > 1 else ""),
        "length": f"{last_step:,} steps = {last_step / per_epoch:.1f} epochs"
        + "".join(f"; earlier by train.{name} = {end:,}" for name, end in early_ends.items() if end is not None),
        "rate": f"{float(compiled.schedules[0](warm - 1)):.3g} after the warmup, at step {warm:,}",
        "devices": f"{mesh.devices.size} {', '.join(sorted({device.device_kind for device in mesh.devices.flat}))} as "
        + " x ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
        + (f"; {processes().count} processes" if processes().count > 1 else ""),
        "programs": f"{programs} for the shapes of batches, compiled side by side; training starts with the first",
        "peak": peak_in_words(config),
    }
    return "\n".join(f"{name:>11}: {text}" for name, text in lines.items())


def count(params: Any) -> int:
    """The number of parameters."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
