"""What the tests of training share: tiny experiments, batches made by hand, and what two states differ by."""

import dataclasses
import functools

import jax
import numpy as np

from transformer_jax.config import ExperimentConfig, from_config_dict
from transformer_jax.data.batching import Batch
from transformer_jax.training.compiled import jit_step
from transformer_jax.update import sharding
from transformer_jax.update.loss import Objective, load_loss
from transformer_jax.update.optimizer import make_schedule, mup_rate_factors, optimizer_of
from transformer_jax.update.step import TrainState, new_state

MODEL = {
    "vocab_size": 24,
    "num_encoder_layers": 1,
    "num_decoder_layers": 1,
    "d_model": 16,
    "d_ff": 32,
    "num_heads": 4,
    "dropout": 0.0,
}


def experiment(**changes) -> ExperimentConfig:
    """A tiny experiment; changes are by path with __ for the dots: train__steps=3."""
    values: dict = {
        "model": dict(MODEL),
        "optimizer": {"learning_rate": 3e-3, "warmup_steps": 4},
        "train": {"steps": 10, "tensorboard": False, "compile_cache": None, "peak_flops": 1e12},
    }
    for path, value in changes.items():
        *groups, name = path.split("__")
        inner = functools.reduce(lambda inner, key: inner.setdefault(key, {}), groups, values)
        inner[name] = value
    return from_config_dict(values)


def sentences(count, seed=0, shortest=2, longest=7):
    """Pairs of token ids, of different lengths, without special ids."""
    dice = np.random.default_rng(seed)
    length = lambda: int(dice.integers(shortest, longest + 1))  # noqa: E731
    return [(dice.integers(4, 24, length()), dice.integers(4, 24, length())) for _ in range(count)]


def batch_of(pairs, width=8):
    """One pair a row, padded: <bos> is 1, <eos> is 2."""

    def rows(sides):
        return np.array([[*side, *[0] * (width - len(side))] for side in sides], np.int32)

    return Batch(
        source=rows([*source, 2] for source, _ in pairs),
        target_input=rows([1, *target] for _, target in pairs),
        target_output=rows([*target, 2] for _, target in pairs),
    )


def batches(count=10, rows=16):
    return [batch_of(sentences(rows, seed)) for seed in range(count)]


@dataclasses.dataclass
class Trainer:
    """The programs of one experiment on some of the devices."""

    config: ExperimentConfig
    devices: int = 1

    def __post_init__(self):
        self.mesh = sharding.make_mesh(self.config.mesh, jax.devices()[: self.devices])
        schedule = make_schedule(self.config.optimizer, self.config.model.base_d_model, self.config.train.steps)
        self.optimizer = optimizer_of(self.config.optimizer, schedule, mup_rate_factors(self.config.model))
        self.plan = TrainState.abstract(self.config, self.optimizer, self.mesh)
        step = jit_step(self.config, self.optimizer, self.mesh, self.plan)
        self.step = functools.partial(step, np.uint32(self.config.seed))

    def new(self):
        """A state at step 0, with parameters from numpy: to compile their initialization takes longer than to train."""
        state = new_state(self.optimizer, jax.tree_util.tree_map_with_path(_drawn, self.plan.params))
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.plan)
        return jax.device_put(jax.device_get(state), shardings, may_alias=False)

    def init(self):
        """The state at step 0 as a run initializes it, from the seed."""
        return TrainState.create(self.config, self.optimizer, self.mesh, abstract=self.plan)

    def train(self, batches, state=None):
        state = self.new() if state is None else state
        for batch in batches:
            state, self.metrics = self.step(state, sharding.place_batch(batch, self.mesh))
        return state


def objective_of(config, is_training=True):
    return Objective.of(config.train, load_loss(config.train), is_training)


def _drawn(path, leaf):
    """Random numbers of the usual size: the same for the same path and shape, whatever else the model has."""
    kind = path[-1].key
    if kind in ("scale", "bias", "output_bias"):
        return np.full(leaf.shape, kind == "scale", leaf.dtype)
    random = np.random.default_rng(list(sharding.path_name(path).encode()))
    return (random.normal(size=leaf.shape) * (2 / sum(leaf.shape)) ** 0.5).astype(leaf.dtype)


@functools.cache
def trainer(devices=1, **changes) -> Trainer:
    """One trainer for each experiment in a process: compiling is what takes time."""
    return Trainer(experiment(**changes), devices)


def params_of(state):
    """Parameters by path, as numpy arrays."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(jax.device_get(state.params))
    return {sharding.path_name(path): leaf for path, leaf in leaves}


def worst_difference(ours, theirs):
    """The largest max|a - b| / max|b| of two states' parameters, and whose it is."""
    ours, theirs = params_of(ours), params_of(theirs)
    assert ours.keys() == theirs.keys()
    return max((float(np.abs(ours[name] - b).max() / (np.abs(b).max() or 1)), name) for name, b in theirs.items())
