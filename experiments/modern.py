"""What have the changes to the Transformer since 2017 been worth? Each one alone, and the usual ones together.

    transformer-jax sweep experiments/modern.py --scale=demo --workdir=runs/modern --jobs=2
    transformer-jax report runs/modern

The baseline is the paper's model. Learning rates are tuned for each variant (`tune`), because a change that needs
another rate looks bad at the baseline's. `--tune=none` in another folder shows how much of a difference is the rate's.

Where a change alters size or compute by more than a percent, there are several variants: the change as it is; with a
d_ff that gives the model the baseline's number of parameters ("equal parameters"); and, if the compute differs,
with the number of updates that takes the baseline's FLOPs ("equal compute"). The notes have both ratios.

Expected (Narang et al. 2021, who tried most of these at equal size and compute): RMSNorm and gated feed-forward layers
help a little, layers that share parameters do worse, and many others make no difference. Pre-norm (Xiong et al. 2020)
and QK-norm (Henry et al. 2020) allow higher rates, so they may help only where the rate is not tuned. "modern" is what
most models have today: pre-norm, RMSNorm, rotary positions, SwiGLU and QK-norm. "all that helped" has, of each group,
the change with the greatest significant gain in BLEU at demo scale: it was chosen after these results, on their
test set.

At demo scale 198 runs, without "all that helped", ReGLU, GLU and bilinear, took 83 minutes on two CPU cores
(docs/results/modern-demo).
"""

from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig, from_config_dict
from transformer_jax.extension import load_module
from transformer_jax.model.layers import GATES
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.sweeps.resolved import parameters, training_flops

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES
# A share of the baseline's parameters or FLOPs that does not count as a difference.
SAME = 0.01

GATED = {name: {"model.activation": name, "model.gated_width": "two_thirds"} for name in GATES}
SWIGLU = GATED["swiglu"]
MODERN = {"model.norm": "pre", "model.norm_kind": "rms", "model.positions": "rotary", "model.qk_norm": True, **SWIGLU}
HELPED = {"model.norm": "sandwich", "model.positions": "transformer_xl", "optimizer.name": "muon", **SWIGLU}
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "norm": {
        "RMSNorm": {"model.norm_kind": "rms"},
        "pre-norm": {"model.norm": "pre"},
        "sandwich norm": {"model.norm": "sandwich"},
        "DeepNorm": {"model.norm": "deepnorm"},
    },
    "attention": {
        "QK-norm": {"model.qk_norm": True},
        "soft-capping": {"model.attention_softcap": 50.0},  # Gemma 2's
    },
    "positions": {name: {"model.positions": name} for name in ("rotary", "relative", "transformer_xl")},
    "feed-forward": {
        "SwiGLU": SWIGLU,
        "GEGLU": GATED["geglu"],
        "ReGLU": GATED["reglu"],
        "GLU": GATED["glu"],
        "bilinear": GATED["bilinear"],
    },
    "training": {
        "z-loss": {"train.z_loss": 1e-4},  # PaLM's
        "warmup, stable, decay": {"optimizer.schedule": "wsd"},
        "Muon": {"optimizer.name": "muon"},
    },
    "fewer parameters": {"shared layers": {"model.share_layers": True}},
    "together": {
        "modern": MODERN,
        "modern, Muon": {**MODERN, "optimizer.name": "muon"},
        "all that helped": HELPED,
    },
}


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    heads = base.model.num_heads
    changes = {group: dict(of_group) for group, of_group in CHANGES.items()}
    changes["fewer parameters"] |= {
        "grouped queries": {"model.num_key_value_heads": max(heads // 4, 2)},
        "multi-query": {"model.num_key_value_heads": 1},
    }
    return Sweep(
        name="modern",
        question="What have the changes to the Transformer since 2017 been worth, at equal parameters and compute?",
        base=base,
        variants=[
            Variant("base"),
            *(
                variant
                for group, of_group in changes.items()
                for name, change in of_group.items()
                for variant in at_equal_cost(base, name, change, group)
            ),
        ],
        primary="perplexity",
        tune=(0.5, 1, 2),
        notes=(
            "The baseline is the paper's model with post-norm; each change is compared with it alone, and not with the "
            "others in place.",
            "FLOPs are the model's: Muon's own computation is in the time, and not in the FLOPs.",
        ),
    )


def at_equal_cost(base: ConfigDict, name: str, changes: dict[str, Any], group: str) -> list[Variant]:
    """The change as it is and, where that alters size or compute, at equal parameters and at equal compute."""
    wanted, found = resolved(base, {}), [Variant(name, changes, group, note=beside(base, changes))]
    if differs(parameters(resolved(base, changes).model), parameters(wanted.model)):
        changes = {**changes, "model.d_ff": equal_width(base, changes)}
        name += ", equal parameters"
        found.append(Variant(name, changes, group, note=beside(base, changes)))
    ratio = training_flops(wanted) / training_flops(resolved(base, changes))
    if differs(ratio, 1.0):
        name += " and compute" if "equal" in name else ", equal compute"
        changes = {
            **changes,
            "train.steps": round(ratio * wanted.train.steps),
            "optimizer.warmup_steps": max(round(ratio * wanted.optimizer.warmup_steps), 1),
            # Equation 3 would raise it with a shorter warmup.
            "optimizer.learning_rate": wanted.optimizer.peak_rate(wanted.model.base_d_model),
        }
        found.append(Variant(name, changes, group, note=beside(base, changes)))
    return found


def equal_width(base: ConfigDict, changes: dict[str, Any]) -> int:
    """The d_ff, a multiple of 8, with which the changed model has the baseline's parameters: they are linear in it."""
    width, wanted = base.model.d_ff, parameters(resolved(base, {}).model)
    here, wider = (parameters(resolved(base, {**changes, "model.d_ff": f}).model) for f in (width, 2 * width))
    return 8 * round(width * (1 + (wanted - here) / (wider - here)) / 8)


def beside(base: ConfigDict, changes: dict[str, Any]) -> str:
    """Parameters and FLOPs of a run as multiples of the baseline's, where they differ."""
    one, other = resolved(base, {}), resolved(base, changes)
    ratios = {
        "parameters": parameters(other.model) / parameters(one.model),
        "FLOPs": training_flops(other) / training_flops(one),
    }
    return ", ".join(f"{ratio:.2f} x the {what}" for what, ratio in ratios.items() if differs(ratio, 1.0))


def differs(one: float, other: float) -> bool:
    return abs(one / other - 1) > SAME


def resolved(base: ConfigDict, changes: dict[str, Any]) -> ExperimentConfig:
    values = base.to_dict()
    for path, value in changes.items():
        schema.put(values, path, value)
    return from_config_dict(values)
