"""What decides whether a model generalizes on COGS? Positions, shared layers and embeddings (Csordás et al. 2021).

    transformer-jax sweep experiments/cogs.py --scale=demo --workdir=runs/cogs --jobs=2 \\
        --config.data.corpus_folder=COGS/data
    transformer-jax report runs/cogs

`test_gen` has 21 categories of sentences that combine what training has in ways that it has not; the report has
accuracy by category, and of the three structural ones together. `test` is like training.

Published (Csordás et al. 2021, their table 3, not verified against it): 80 % with sinusoids, 81 % with
relative positions, 78 and 77 % with shared layers; 35 % in the first paper (Kim and Linzen 2020), whose models were
stopped early.

At demo scale, for two CPU cores, a model is four times narrower and has 12,000 updates of about 16 sentences, which are
8 epochs, in place of 50,000 of 128, at ten times the learning rate: compare its rows with each other, not with the
published ones. The batches are small because each of the 18 lexical categories tests a word of only one
sentence of the training set, and under Adam an embedding should move the further, the more updates lie between its
occurrences.

At demo scale 6 variants have three seeds each; `--dry-run` estimates the time.
"""

from pathlib import Path

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = ("demo", "paper")
# Initial embeddings, and what is scaled.
NOT_SCALED = {"model.embedding_init": "unit", "model.scale_embeddings": False}
SCALED_DOWN = {"model.embedding_init": "kaiming", "model.scale_embeddings": False, "model.scale_positions": True}
DEMO = (
    "Here d_model and d_ff are 128, and there were 12,000 updates of 1,024 tokens (8 epochs) at ten times the "
    "learning rate of the recipe, which has 265 epochs."
)
RELATIVE, SHARED = {"model.positions": "transformer_xl"}, {"model.share_layers": True}


def get_sweep(scale: str) -> Sweep:
    base = load_module(str(bases.CONFIGS["cogs"])).get_config()
    base.model.positions = "sinusoidal"
    base.train.keep_best = 0
    base.train.tensorboard = False
    if scale == "demo":
        base.model.d_model = base.model.d_ff = 128
        base.optimizer.learning_rate = 1e-3  # the recipe's 1e-4 needs its 50,000 updates
        base.data.tokens_per_batch = 1024
        base.train.steps = 12_000
        base.train.eval_every = 3000
        base.train.keep_latest = 2
    figures = {"positions scaled down": 80.0, "relative": 81.0, "shared": 78.0, "relative, shared": 77.0}
    published = {name: {"exact_match": figure} for name, figure in figures.items()}
    changes = {
        "sinusoidal": {},
        "embeddings not scaled": NOT_SCALED,
        "positions scaled down": SCALED_DOWN,
        "relative": {**NOT_SCALED, **RELATIVE},
        "shared": {**SCALED_DOWN, **SHARED},
        "relative, shared": {**NOT_SCALED, **RELATIVE, **SHARED},
    }
    return Sweep(
        name="cogs",
        question="What decides whether a Transformer generalizes to new combinations on COGS?",
        base=base,
        variants=[
            Variant(name, change, published=published.get(name, {}), unverified=[*published.get(name, {})])
            for name, change in changes.items()
        ],
        baseline="sinusoidal",
        primary="exact_match",
        tests=("test_gen", "test"),
        notes=(
            "The published figures are of test_gen, of models of d_model 512 after 50,000 updates.",
            *((DEMO,) if scale == "demo" else ()),
        ),
    )
