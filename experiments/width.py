"""Where should a model's parameters go: into its width, its feed-forward layers, its depth, and on which side?

    transformer-jax sweep experiments/width.py --scale=demo --workdir=runs/width --jobs=2
    transformer-jax report runs/width

Rows C of Table 3 in finer steps: d_model (with d_k = d_model / h and d_ff as they are), d_ff, and depth; and depth that
is not shared equally between encoder and decoder. The report plots scores against parameters and against FLOPs:
what lies above the others' curve uses them better. Expected: larger is better throughout, and a deep
encoder with a shallow decoder does nearly as well as the same number of layers shared equally, and translates faster.

Equation 3 lowers the learning rate as d_model grows, but the best rate may still differ: `--tune=0.5,1,2` tunes it on
validation data for each variant.

At demo scale 13 variants have three seeds each; `--dry-run` estimates the time.
"""

from pathlib import Path

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES
FACTORS = (0.25, 0.5, 2, 4)  # of the base's d_model and d_ff


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    model = base.model
    layers = model.num_encoder_layers
    return Sweep(
        name="width",
        question="Where should a model's parameters go: into its width, its feed-forward layers, or its depth?",
        base=base,
        variants=[
            Variant("base", note=f"d_model {model.d_model}, d_ff {model.d_ff}, {layers} + {layers} layers"),
            *(at("d_model", round(model.d_model * factor)) for factor in FACTORS[:3]),
            *(at("d_ff", round(model.d_ff * factor)) for factor in FACTORS),
            *(deep(encoder, encoder) for encoder in sorted({1, layers - 1, 2 * layers})),
            deep(2 * layers - 1, 1),
            deep(1, 2 * layers - 1),
        ],
        primary="perplexity",
        notes=("The learning rate is equation 3's, or the base's, whatever the size; --tune tunes each.",),
    )


def at(option: str, value: int) -> Variant:
    return Variant(f"{option}={value}", {f"model.{option}": value}, group=option)


def deep(encoder: int, decoder: int) -> Variant:
    changes = {"model.num_encoder_layers": encoder, "model.num_decoder_layers": decoder}
    return Variant(f"layers={encoder}+{decoder}", changes, group="depth")
