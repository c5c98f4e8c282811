"""How fast a run goes, without the time it spends validating and saving."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.batching import BatchStatistics
from transformer_jax.data.prefetch import Prefetcher
from transformer_jax.model.size import training_flops
from transformer_jax.processes import hardware


class Throughput:
    """Measures from one line of metrics to the next."""

    def __init__(self, config: ExperimentConfig, statistics: BatchStatistics, devices: int):
        lengths = [round(n / statistics.pairs) for n in (statistics.source_tokens, statistics.target_tokens)]
        self._flops = training_flops(config.model, *lengths)
        self._devices = devices
        if config.train.peak_flops is None:
            self.peak, self.peak_source = hardware.peak_flops(config.model)
        else:
            self.peak, self.peak_source = config.train.peak_flops, "train.peak_flops"

    def __str__(self) -> str:
        if self.peak is None:
            return f"unknown ({self.peak_source}): no MFU; --config.train.peak_flops=FLOP/s of one device gives it"
        return f"{self.peak / 1e12:.3g} TFLOP/s a device ({self.peak_source}); MFU is counted against it"

    def start(self, prefetcher: Prefetcher[Any], step: int) -> None:
        self._prefetcher, self._step = prefetcher, step
        self._begin = time.perf_counter()
        self._waited = prefetcher.data_wait

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not training."""
        begin = time.perf_counter()
        yield
        self._begin += time.perf_counter() - begin

    def lap(self, step: int) -> None:
        """Ends the lap that `rates` then tells of, and begins the next."""
        now = time.perf_counter()
        self._steps, self._step = step - self._step, step
        self._seconds, self._lap_waited = now - self._begin, self._prefetcher.data_wait - self._waited
        self._begin, self._waited = now, self._prefetcher.data_wait

    def rates(self, source_tokens: float, target_tokens: float, steps: int) -> dict[str, Any]:
        """How fast a run's tokens, those that are not padding, went through the last lap.

        They are the tokens of so many steps. After a resumption more than the lap had: another process made the first
        of them, in its own time, and these are left out.
        MFU, model FLOPs utilisation, is the FLOPs that the model needs for these tokens (see model/size.py: matrix
        products alone, nothing for padding or recomputing) over seconds x devices x the peak FLOP/s of one; none where
        that is unknown.
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
