"""Morphological inflection beside the published baseline: does more regularisation, or another encoding, help?

    transformer-jax sweep experiments/inflection.py --scale=demo --workdir=runs/inflection --jobs=2 \\
        --config.data.corpus_folder=FOLDER --config.data.task.language=kor --config.data.task.size=large
    transformer-jax report runs/inflection

The data of SIGMORPHON 2022, task 0 (docs/generalisation.md): one language and size at a time, by default Korean, large.
The report has accuracy by lemma seen or unseen and by features seen or unseen; the intervals of differences between
variants account for forms of one lemma.

Published, the organisers' Transformer: Korean 56.2 (large) and 23.5 (small), Turkish 39.7 and 34.6, Georgian 87.3 and
60.2, Old English 61.1 and 49.8. Its recipe is the baseline's here (configs/inflection.py), at the paper's scale
with 20,000 updates, at demo scale, for two CPU cores, with 4,000.

At demo scale 7 variants have three seeds each; `--dry-run` estimates the time.
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
        base.optimizer.warmup_steps = 800
        base.train.steps = 4000
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
            # Hangul in letters instead of syllables (docs/results/inflection).
            Variant("letters", {"data.tokenizer": "letters_and_tags"}),
        ],
        baseline="recipe",
        primary="exact_match",
        notes=(
            "The checkpoint that is evaluated is the last, not the best on validation data.",
            *(
                ("Runs are of 4,000 updates, 800 of warmup; the recipe has 20,000 and 4,000.",)
                if scale == "demo"
                else ()
            ),
        ),
    )
