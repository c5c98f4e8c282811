"""Post- or pre-norm, by depth, with and without warmup of the learning rate?

    transformer-jax sweep experiments/norm.py --scale=demo --workdir=runs/norm --jobs=2
    transformer-jax report runs/norm

The paper normalizes after the residual sum (post-norm); most later models normalize before the sub-layer (pre-norm).
Both are trained at two depths, with the base's warmup and with almost none. Expected (Xiong et al. 2020): post-norm
needs warmup, the more so the deeper it is, and may not learn at all without it; pre-norm hardly needs it. With
warmup and few layers there is little difference.

The best learning rates may differ: `--tune=0.5,1,2` tunes each on validation data.

At demo scale 8 variants have three seeds each; `--dry-run` estimates the time.
"""

from pathlib import Path

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    layers, warmup = base.model.num_encoder_layers, base.optimizer.warmup_steps
    # By equation 3 a shorter warmup would also mean a higher peak, and at a fixed peak a lower rate ever after.
    # Here the rates after the warmup are the same: constant, and falling at the end.
    base.optimizer.learning_rate = base.optimizer.learning_rate or (base.model.d_model * warmup) ** -0.5
    base.optimizer.schedule = "wsd"
    return Sweep(
        name="norm",
        question="Does it matter where LayerNorm stands, how deep the model is, and whether the rate warms up?",
        base=base,
        variants=[
            Variant(
                f"{norm} N={depth} warmup={steps}",
                {
                    "model.norm": norm,
                    "model.num_encoder_layers": depth,
                    "model.num_decoder_layers": depth,
                    "optimizer.warmup_steps": steps,
                },
                group=f"N = {depth}",
                baseline=f"post N={depth} warmup={warmup}",
            )
            for depth in (layers, 2 * layers)
            for norm in ("post", "pre")
            for steps in (warmup, max(1, warmup // 100))
        ],
        baseline=f"post N={layers} warmup={warmup}",
        primary="perplexity",
        notes=(
            "Each variant is compared with post-norm of the same depth, with warmup.",
            "After the warmup the learning rate is the same everywhere, constant and falling at the end; the "
            "depth and the norm may each have a better one.",
        ),
    )
