"""What do the types of dropout and label smoothing bring, with much text and with little?

    transformer-jax sweep experiments/regularization.py --scale=demo --workdir=runs/regularization --jobs=2
    transformer-jax report runs/regularization

The paper applies dropout to each sub-layer's output and to the embeddings. Others apply it to the attention weights and
inside the feed-forward layer as well. Each type separately, all together and none, and label smoothing, with the whole
text and with a part of it. Expected: with little text and many epochs, regularization helps much; with enough text it
costs more than it brings; label smoothing makes perplexity worse and BLEU a little better (Table 3, rows D).

At demo scale 18 variants have three seeds each; `--dry-run` estimates the time.

`--scale=little` has 4,000 pairs of the grammar, split by BPE, and five seeds: dropout, label smoothing, BPE-dropout and
a moving average of the weights, each alone beside a model without any of them, and all together. Each sees every pair
20 times.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = (*bases.SCALES, "little")
LITTLE = 4_000  # pairs of the grammar: about twenty epochs at demo scale
# From a pilot with dropout, whose validation loss is 1.19 after 10 epochs, 0.78 after 15 and 0.49 after 30: time enough
# to learn the task, and short enough for two cores.
EPOCHS = 20


def get_sweep(scale: str) -> Sweep:
    return each_alone() if scale == "little" else kinds_of_dropout(scale)


def each_alone() -> Sweep:
    """The paper's two types of regularization and two others, on little text."""
    base = bases.demo()
    base.data.task.train_size = LITTLE
    base.data.tokenizer = "bpe"
    base.data.max_length = 64
    base.model.vocab_size = 2000
    base.model.dropout = base.train.label_smoothing = 0.0
    # The paper's; an average says little about weights whose rate fell to zero.
    base.optimizer.schedule = "inverse_sqrt"
    base.optimizer.warmup_steps = 400
    # With BPE-dropout a batch has room for more pieces than most samples have, and so fewer pairs.
    base.train.epochs, base.train.steps = EPOCHS, 10_000  # more steps than these epochs have
    base.train.eval_every = base.train.checkpoint_every = 500
    types: dict[str, dict[str, Any]] = {
        "dropout": {"model.dropout": 0.1},
        "label smoothing": {"train.label_smoothing": 0.1},
        "BPE-dropout": {"data.subword_sampling": 0.1},
        "average of weights": {"optimizer.ema": 0.99},
    }
    together = {path: value for changes in types.values() for path, value in changes.items()}
    return Sweep(
        name="regularization",
        question="What does each type of regularization bring alone, with 4,000 pairs?",
        base=base,
        variants=[
            Variant("none"),
            *(Variant(name, changes) for name, changes in types.items()),
            Variant("all", together),
        ],
        seeds=5,
        tests=("test", "test_long"),
        baseline="none",
        primary="bleu",
        margin=1.0,
        weights="ema",
        notes=("The grammar has no noise: it contains no errors that a model could memorize.",),
    )


def kinds_of_dropout(scale: str) -> Sweep:
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
