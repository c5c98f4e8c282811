"""Morphological inflection beside the published baseline: does more regularisation, or another encoding, help?

    transformer-jax sweep experiments/inflection.py --scale=demo --workdir=runs/inflection --jobs=2 \\
        --config.data.corpus_folder=FOLDER --config.data.task.language=kor --config.data.task.size=large
    transformer-jax report runs/inflection

The data of SIGMORPHON 2022, task 0 (docs/generalisation.md): one language and size at a time, by default Korean, large.
The report has accuracy by lemma seen or unseen and by features seen or unseen; the intervals of differences between
variants account for forms of one lemma.

Published, the organisers' Transformer (not verified against their paper): Korean 56.2 (large) and 23.5 (small),
Turkish 39.7 and 34.6, Georgian 87.3 and 60.2, Old English 61.1 and 49.8. Its recipe (configs/inflection.py) is the
baseline's at the paper's scale. At demo scale, for CPUs, the model has half the width and depth, half the batch and a
quarter of the updates; give the small training set fewer, --config.data.task.size=small --config.train.steps=3200.
"""

from pathlib import Path

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = ("demo", "paper")


def get_sweep(scale: str) -> Sweep:
    base = load_module(str(bases.CONFIGS["inflection"])).get_config()
    base.data.task.language, base.data.task.size = "kor", "large"
    base.train.tensorboard = False
    if scale == "demo":
        base.data.num_shapes = 2
        base.data.tokens_per_batch = 2048
        base.model.num_encoder_layers = base.model.num_decoder_layers = 2
        base.model.d_model = 128
        base.model.d_ff = 512
        base.optimizer.warmup_steps = 1000
        base.train.steps = 5000
    return Sweep(
        name="inflection",
        question="What helps a Transformer to inflect unseen lemmas, beside the recipe of SIGMORPHON 2022?",
        base=base,
        variants=[
            Variant("recipe"),
            Variant("post-norm", {"model.norm": "post"}),
            Variant("relative", {"model.positions": "relative"}),
            Variant("transformer_xl", {"model.positions": "transformer_xl"}),
            Variant("tied embeddings", {"model.tie_embeddings": "target"}),
            Variant("shared layers", {"model.share_layers": True}),
            # Hangul in letters instead of syllables: twice as many tokens (docs/results/inflection).
            Variant(
                "letters",
                {"data.tokenizer": "letters_and_tags", "data.tokens_per_batch": 2 * base.data.tokens_per_batch},
                note="twice the tokens per batch, which is for Hangul",
            ),
        ],
        baseline="recipe",
        primary="exact_match",
        weights="best",
        notes=(
            "Evaluated is the checkpoint with the best exact match on the validation set, as in the recipe.",
            *(
                ("The recipe is reduced: half the width, depth and batch, and a quarter of the updates.",)
                if scale == "demo"
                else ()
            ),
        ),
    )
