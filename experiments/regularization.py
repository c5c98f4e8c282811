"""What do the types of dropout and label smoothing bring, with much text and with little?

    transformer-jax sweep experiments/regularization.py --scale=demo --workdir=runs/regularization --jobs=2
    transformer-jax report runs/regularization

The paper applies dropout to each sub-layer's output and to the embeddings. Others apply it to the attention weights and
inside the feed-forward layer as well. Each type separately, all together and none, and label smoothing, with the whole
text and with a part of it. Expected: with little text and many epochs, regularization helps much; with enough text it
costs more than it brings; label smoothing makes perplexity worse and BLEU a little better (Table 3, rows D).

At demo scale 18 variants have three seeds each; `--dry-run` estimates the time.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES
LITTLE = 4_000  # pairs of the grammar: about twenty epochs at demo scale


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    own = base.model.dropout
    kinds: dict[str, dict[str, Any]] = {
        "as the base": {},
        "no dropout": {"model.dropout": 0.0},
        "dropout x 2": {"model.dropout": 2 * own},
        "+ on attention weights": {"model.attention_dropout": own},
        "+ inside feed-forward": {"model.activation_dropout": own},
        "+ both": {"model.attention_dropout": own, "model.activation_dropout": own},
        "no smoothing": {"train.label_smoothing": 0.0},
        "smoothing 0.2": {"train.label_smoothing": 0.2},
        "neither": {"model.dropout": 0.0, "train.label_smoothing": 0.0},
    }
    texts: dict[str, dict[str, Any]] = {"all text": {}}
    if scale == "demo":
        texts["little text"] = {"data.task.train_size": LITTLE}
    return Sweep(
        name="regularization",
        question="What do the types of dropout and label smoothing bring, with much text and with little?",
        base=base,
        variants=[
            variant(kind, text, {**changes, **of_text})
            for text, of_text in texts.items()
            for kind, changes in kinds.items()
        ],
        baseline="as the base, all text",
        primary="bleu",  # label smoothing makes perplexity worse, and translations better
        notes=(
            "Perplexity is measured without smoothing. Each variant is compared with the base on the same text.",
            *(
                ("The grammar has no noise: it contains no errors that a model could memorize.",)
                if scale == "demo"
                else ()
            ),
        ),
    )


def variant(kind: str, text: str, changes: Mapping[str, Any]) -> Variant:
    return Variant(f"{kind}, {text}", changes, group=text, baseline=f"as the base, {text}")
