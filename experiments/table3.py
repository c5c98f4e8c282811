"""Table 3 of the paper: which parts of the Transformer matter? All rows, A to E and big, with the paper's names.

    transformer-jax sweep experiments/table3.py --scale=small --workdir=runs/table3 --jobs=2
    transformer-jax report runs/table3

At the scale of the paper a row is exactly the paper's, including changes to the training, and is evaluated on
newstest2013. At the smaller scales each row changes the same option as in the paper by the same factor: "C d_ff=1024"
halves d_ff, whatever it is. The note of each row has the resulting value. Dropout changes by the same difference
instead of the same factor, because the recipe for Multi30k starts at 0.3. "big" trains three times as long, as in the
paper.

The learning rate is equation 3's, which decreases with d_model; as in the paper, nothing else is tuned to a row.

At demo scale runs are stopped after 450 updates, when none has converged: it shows the tools, and says little about
the paper. At the scale `small` every run continues until its validation loss is flat; its results and their
explanations are in docs/results/table3. Its 60 runs took nine minutes each on average on one CPU core, "big" more than
an hour. `eight_seeds` has eight rows with eight seeds each, and a fixed number of updates.

On a CPU --together gains little: 0.97 to 1.28 times the updates per second of a single run, depending on the size of
the model.
"""

import functools
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax import schema
from transformer_jax.config import ExperimentConfig
from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.table3 import TABLE_3

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.CONVERGED_SCALES

# What the paper prints: perplexity per word-piece and BLEU on newstest2013, and millions of parameters.
PUBLISHED: dict[str, tuple[float, float, int | None]] = {
    "base": (4.92, 25.8, 65),
    "A h=1": (5.29, 24.9, None),
    "A h=4": (5.00, 25.5, None),
    "A h=16": (4.91, 25.8, None),
    "A h=32": (5.01, 25.4, None),
    "B d_k=16": (5.16, 25.1, 58),
    "B d_k=32": (5.01, 25.4, 60),
    "C N=2": (6.11, 23.7, 36),
    "C N=4": (5.19, 25.3, 50),
    "C N=8": (4.88, 25.5, 80),
    "C d_model=256": (5.75, 24.5, 28),
    "C d_model=1024": (4.66, 26.0, 168),
    "C d_ff=1024": (5.12, 25.4, 53),
    "C d_ff=4096": (4.75, 26.2, 90),
    "D P_drop=0": (5.77, 24.6, None),
    "D P_drop=0.2": (4.95, 25.5, None),
    "D eps_ls=0": (4.67, 25.3, None),
    "D eps_ls=0.2": (5.47, 25.7, None),
    "E learned positions": (4.92, 25.7, None),
    "big": (4.33, 26.4, 213),
}
GROUPS = {
    "A": "heads, at the same amount of computation",
    "B": "size of the keys",
    "C": "size of the model",
    "D": "regularisation",
    "E": "learned positions in place of sinusoids",
}
# How the paper's header calls what the rows change.
SYMBOLS = {
    "model.num_heads": "h",
    "model.d_k": "d_k",
    "model.num_encoder_layers": "N",
    "model.d_model": "d_model",
    "model.d_ff": "d_ff",
    "model.dropout": "P_drop",
    "train.steps": "steps",
}
# The options that the smaller scales change by the paper's factor, with the paper's base values: the defaults.
PAPER = {path: schema.value_at(ExperimentConfig(), path) for path in (*SYMBOLS, "model.num_decoder_layers")}
PAPER["model.d_k"] = ExperimentConfig().model.key_size
NOTES = {
    "demo": (
        "The base is the paper's made small: d_model 64, d_ff 256, h 8, N 3. Each row changes by the paper's factor; "
        "what that comes to stands beside it. The paper's figures are of its models, on another text.",
        "The text is made by rules: it has no noise, a sentence has exactly one translation, and a run ends long "
        "before it could overfit. Rows about regularisation (D) therefore mean little here.",
        "Every run is about a minute long, and its learning rate falls linearly to zero: what learns faster looks "
        "better than it might after a long training. big trains three times as long as the others, as in the paper.",
    ),
    "small": (
        "The base is the paper's made small: d_model 64, d_ff 256, h 8, N 3. Each row changes by the paper's factor; "
        "what that comes to stands beside it. The paper's figures are of its models, on another text.",
        "4,000 sentence pairs, made by rules, are all that there is to learn from: scores measure generalisation.",
        "A run ends when its validation loss is flat (under 0.5 % lower over the last fifth of its updates), not after "
        "a fixed number of updates. big therefore does not train three times as long as base.",
    ),
    "eight_seeds": (
        "The base is the paper's made small: d_model 64, d_ff 256, h 8, N 3. Each row changes by the paper's factor; "
        "what that comes to stands beside it. The paper's figures are of its models, on another text.",
        "Fixed before the first run: these rows and seeds, 16,000 sentence pairs made by rules, 2,500 updates of the "
        "paper's schedule (big: three times the updates, as in the paper), the primary metric and its margin. The "
        "number of updates is from a pilot of base and P_drop=0 with another seed, on the validation set: without "
        "dropout the loss is lower at first, and higher from 1,500 updates on.",
        "The statistics were changed after the archived results were seen: the largest variance no longer counts as "
        "typical if it is an outlier. By the earlier rule fewer of the same differences were significant.",
    ),
    "multi30k": (
        "The base is the recipe for Multi30k (configs/multi30k_tiny.py). Each row changes by the paper's factor, "
        "dropout by the paper's difference; what that comes to stands beside it. The paper's own figures are those of "
        "its own models, on another text.",
        "29,000 sentences are few: larger models overfit sooner, and dropout does more than in the paper.",
    ),
    "paper": (
        "Measured on newstest2013, the validation set, as in the paper; checkpoints are not averaged, as there.",
        "Perplexity is per token of our vocabulary: only differences compare with the paper's.",
    ),
}


# Few enough for eight seeds: rows of groups A to D, and the big model.
FEW_ROWS = ("base", "A h=1", "A h=32", "B d_k=16", "C N=2", "D P_drop=0", "D eps_ls=0", "big")


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    is_declared = scale == "eight_seeds"
    rows, seeds = (FEW_ROWS, 8) if is_declared else (TABLE_3, 3)
    return Sweep(
        name="table3",
        question="Which parts of the Transformer matter, and how much? Table 3 of the paper, every row.",
        base=base,
        variants=[variant(row, base) for row in rows],
        seeds=seeds,
        primary="perplexity",
        margin={"perplexity": 0.02} if is_declared else None,
        tests=("valid",) if scale == "paper" else ("test",),
        notes=NOTES[scale],
    )


def variant(row: str, base: ConfigDict) -> Variant:
    changes = {path: scaled(path, value, base) for path, value in TABLE_3[row].items()}
    perplexity, bleu, millions = PUBLISHED[row]
    published = {"perplexity": perplexity, "bleu": bleu}
    return Variant(
        name=row,
        changes=changes,
        group=f"{row[0]}: {GROUPS[row[0]]}" if row[0] in GROUPS else "",
        note="" if changes == TABLE_3[row] else f"here {described(changes)}",
        published=published if millions is None else {**published, "parameters": millions * 1e6},
    )


def scaled(path: str, value: Any, base: ConfigDict) -> Any:
    """A row's value where the base is not the paper's: the base's times the paper's factor, at least 1."""
    if path not in PAPER:
        return value
    ours = functools.reduce(getattr, path.split("."), base)
    if path == "model.dropout":
        return round(ours + value - PAPER[path], 3) if value else value
    if path == "model.d_k":
        ours = base.model.d_model // base.model.num_heads
    return max(1, round(ours * value / PAPER[path]))


def described(changes: dict[str, Any]) -> str:
    return ", ".join(f"{SYMBOLS[path]} = {value}" for path, value in changes.items() if path in SYMBOLS)
