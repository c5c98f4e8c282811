"""Which tokenizer, and how large a vocabulary?

    transformer-jax sweep experiments/vocabulary.py --scale=demo --workdir=runs/vocabulary --jobs=2
    transformer-jax report runs/vocabulary

BPE (the paper's) and unigram pieces in several sizes, whole words, single characters, and a vocabulary for each
language. Perplexity per token is not comparable: the tokens of each row differ. The analysis in this file gives
it per word and per character of the reference text, which is the same for all rows. Every update has the same number of
tokens, so runs cost about the same; with shorter tokens an update sees fewer sentences. Expected: characters are
far behind after equally many updates; words do well on the grammar, which has no unknown words, and poorly on real
text, which has; of the BPE sizes, medium ones do best.

At demo scale 8 variants have three seeds each; `--dry-run` estimates the time.
"""

from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.tokenizer import UNK
from transformer_jax.evaluation import perplexities
from transformer_jax.experiment import TestSet
from transformer_jax.extension import load_module
from transformer_jax.sweeps import Sweep, Variant
from transformer_jax.translation.load import Run

bases = load_module(str(Path(__file__).with_name("bases.py")))
SCALES = bases.SCALES
SIZES = {"demo": (500, 2000, 4000), "multi30k": (2000, 5000, 20_000), "paper": (8000, 16_000, 64_000)}


PIECES = {
    "model.vocab_size": 1000,
    "data.tokenizer": "bpe",
    "data.batching": "buckets",
    "data.num_shapes": 4,
    "data.max_length": 256,
    "decode.max_source_length": 256,
    "decode.extra_length": 50,
}


def get_sweep(scale: str) -> Sweep:
    base = bases.base(scale)
    if scale == "demo":
        # The paper's kind of token in place of words; and room for sentences that are spelt letter by letter.
        base.update_from_flattened_dict(PIECES)
    size = base.model.vocab_size
    kinds = ("unigram", "words", "characters") if scale != "paper" else ("unigram", "characters")
    return Sweep(
        name="vocabulary",
        question="Which tokenizer, and how large a vocabulary?",
        base=base,
        variants=[
            Variant("base", note=f"BPE, at most {size} pieces for both languages together"),
            *(Variant(f"bpe {n}", {"model.vocab_size": n}, group="size") for n in SIZES[scale]),
            *(Variant(kind, {"data.tokenizer": kind}, group="kind") for kind in kinds),
            Variant(
                "bpe, a vocabulary each",
                {"model.vocab_size": size // 2, "model.target_vocab_size": size // 2, "model.tie_embeddings": "target"},
                group="sharing",
                note="half of the base's size for each language; source and target embeddings are no longer one",
            ),
        ],
        primary="bleu",
        analyses={"perplexity": bases.own(__file__, "perplexity_by_unit")},
        notes=(
            "Perplexities per token do not compare between rows: see those per character.",
            "Updates have equally many tokens, so runs cost about the same; a finer cut sees fewer sentences.",
        ),
    )


def perplexity_by_unit(run: Run, experiment: ExperimentConfig, tests: dict[str, TestSet]) -> dict[str, Any]:
    """Perplexity per token, word and character of the references, and how long the tokens are."""
    rows = []
    for name, test_set in tests.items():
        scores = run.score(list(zip(test_set.sources, test_set.references, strict=True)))
        found = perplexities([np.asarray(score.token_log_probabilities) for score in scores], test_set.references)
        unknown = sum(score.tokens.count(UNK) for score in scores)
        units = [round(found[f"per_{unit}"], 4) for unit in ("character", "word", "token")]
        rows.append([name, *units, round(found["characters"] / found["tokens"], 3), unknown])
    return {
        "title": "Perplexity that any vocabulary shares",
        "text": "exp(-log P / count) of the same references; only the columns per character and per word compare, "
        "and only of runs without unknown tokens: no model has to spell what is unknown to it.",
        "tables": [
            {
                "title": "Perplexity by unit",
                "columns": [
                    "test set",
                    "per character",
                    "per word",
                    "per token",
                    "characters a token",
                    "unknown tokens",
                ],
                "rows": rows,
            }
        ],
        "plots": [],
    }
