"""Which position encoding generalizes to longer commands? SCAN's length split, with the recipe of Csordás et al. 2021.

    transformer-jax sweep experiments/scan.py --scale=demo --workdir=runs/scan --jobs=2
    transformer-jax report runs/scan

Training has commands of at most 26 actions, testing longer ones (27 to 48). Every encoding of the library, the three
initial embeddings that Csordás et al. compare for sinusoids, and layers that share their parameters. Each run is also
evaluated with the length of the reference given (`decode.eos=oracle_length`): the difference shows how much of the
error is the decision when to end (Newman et al. 2020).

Expected: sinusoids fail, and Transformer-XL's relative positions solve it after 50,000 updates. At demo scale, for two
CPU cores, there are 3,000, with dropout of 0.1 in place of 0.5 (with 0.5 and Shaw's relative positions, none of
2,624 longer commands was right by then): no encoding can be called unable by that.

At demo scale 13 variants have three seeds each; `--dry-run` estimates the time.

Scale `short` has the recipe itself, its dropout of 0.5 included, for 8,000 of the 50,000 updates. Planned before the
first run, from 0.82 s per update of transformer_xl and 0.42 s of sinusoidal on one core of an AMD EPYC (Zen 4), in this
order: transformer_xl and the same with shared layers, seeds 0, 1 and 2 (11 core-hours), sinusoidal, seed 0 (1):

    transformer-jax sweep experiments/scan.py --scale=short --workdir=runs/scan --jobs=2 --seeds=0,1,2 \\
        --only=transformer_xl --only="transformer_xl, shared layers"

The rate is constant, so that fewer updates need no other schedule. Checkpoints of every 1,000 updates are kept:
`transformer-jax export --step=1000 --output=FOLDER` and `evaluate --weights=FOLDER` give the learning curve on longer
commands.
"""

from pathlib import Path
from typing import Any

from transformer_jax.config import DecodeConfig, ExperimentConfig
from transformer_jax.experiment import TestSet, evaluate_run
from transformer_jax.extension import load_module
from transformer_jax.model.positions import ENCODINGS
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.translation.load import Run

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = ("demo", "short", "paper")
CUTOFF = 26
# Csordás et al. 2021: how embeddings begin and what is scaled. The baseline's, the library's, equals the first in size.
EMBEDDINGS: dict[str, dict[str, Any]] = {
    "embeddings scaled up": {"model.embedding_init": "xavier"},
    "embeddings not scaled": {"model.embedding_init": "unit", "model.scale_embeddings": False},
    "positions scaled down": {
        "model.embedding_init": "kaiming",
        "model.scale_embeddings": False,
        "model.scale_positions": True,
    },
}
NOTES = {
    "demo": (
        "Runs are of 3,000 updates with dropout 0.1 of residuals only; the recipe has 50,000, and 0.5 everywhere.",
    ),
    "short": ("Runs are of 8,000 updates; the recipe has 50,000.",),
    "paper": (),
}
# Csordás et al. 2021, not verified: their 1.00 may be of a relative model with shared layers.
PUBLISHED = {"transformer_xl": 100.0}


def get_sweep(scale: str) -> Sweep:
    base = load_module(str(bases.CONFIGS["scan"])).get_config()
    base.data.task.cutoff = CUTOFF
    base.model.positions = "sinusoidal"
    base.train.keep_best = 0
    base.train.tensorboard = False
    if scale == "demo":
        base.model.dropout = 0.1
        base.model.attention_dropout = base.model.activation_dropout = 0.0
        base.data.num_shapes = 2
        base.train.steps = 3000
        base.train.eval_every = base.train.checkpoint_every = 500
        base.train.keep_latest = 2
    if scale == "short":
        base.train.steps = 8000
        base.train.eval_every = base.train.checkpoint_every = 1000
        base.train.keep_latest = 8
    return Sweep(
        name="scan",
        question=f"Which position encodings generalize from at most {CUTOFF} actions to more?",
        base=base,
        variants=[
            Variant("sinusoidal"),
            *(Variant(name, changes, group="sinusoids") for name, changes in EMBEDDINGS.items()),
            *(
                Variant(kind, {"model.positions": kind}, group="positions", **published(kind))
                for kind in ENCODINGS
                if kind != "sinusoidal"
            ),
            Variant("sinusoidal, shared layers", {"model.share_layers": True}, group="shared layers"),
            Variant(
                "transformer_xl, shared layers",
                {"model.positions": "transformer_xl", "model.share_layers": True},
                group="shared layers",
            ),
        ],
        baseline="sinusoidal",
        primary="exact_match",
        analyses={"oracle_length": bases.own(__file__, "with_the_length_given")},
        notes=(
            "The validation pairs are as short as the training pairs; nothing was chosen by the test set.",
            *NOTES[scale],
        ),
    )


def published(kind: str) -> dict[str, Any]:
    """The score of an encoding in the literature, if there is one."""
    if kind not in PUBLISHED:
        return {}
    return {"published": {"exact_match": PUBLISHED[kind]}, "unverified": ["exact_match"]}


def with_the_length_given(run: Run, experiment: ExperimentConfig, tests: dict[str, TestSet]) -> dict[str, Any]:
    """The analysis: exact match where a translation ends when its reference does, and as usual."""
    rows = []
    for name, test_set in tests.items():
        counts = []
        for eos in ("normal", "oracle_length"):
            decode = DecodeConfig(**{**vars(experiment.decode), "eos": eos})
            exact = evaluate_run(run, decode, test_set).record["exact_match"]
            counts.append(100 * exact["right"] / exact["total"])
        rows.append([name, *counts])
    return {
        "title": "With the length of the reference given",
        "text": "Exact match in percent as usual, and with decode.eos = oracle_length: translations end where their "
        "references do.",
        "tables": [{"title": "Exact match, %", "columns": ["test set", "as usual", "length given"], "rows": rows}],
    }
