"""The names of metrics: in metrics.jsonl, in records of test sets, and in sweeps."""

from typing import Literal

# A line of a training.
TRAINING = (
    "step", "epoch", "loss", "perplexity", "accuracy", "learning_rate", "gradient_norm", "target_tokens", "skipped",
    "seconds", "source_tokens_per_second", "target_tokens_per_second", "data_wait", "mfu", "memory_peak",
)  # fmt: skip
# A line of a validation, and what its translations add, besides custom metrics.
VALIDATION = ("valid_loss", "valid_perplexity", "valid_accuracy")
TRANSLATIONS = ("bleu", "exact_match")
# The measures of translations whose score is a single number, besides custom metrics.
TEXTS = ("bleu", "chrf", "paper_bleu")
# The metrics of every evaluation, by which variants may be compared.
COMPARED = ("bleu", "perplexity", "exact_match", "chrf", "paper_bleu")
# What a record has, beside metrics, of the run that an evaluation is compared with.
OF_THE_OTHER = ("run", "weights", "steps", "decode", "weights_sha256")
# What reports have, beside metrics, of a run or a test set.
IN_REPORTS = (
    "word_perplexity", "variant", "seed", "updates", "split", "name", "sentences", "clusters", "signature", "unit",
    "not_compared", "rows", "words",
)  # fmt: skip
# Which a custom metric may not have. One called exact_match takes the library's place.
TAKEN = (*TEXTS, *VALIDATION, *TRAINING, "time", *OF_THE_OTHER, *IN_REPORTS)


def best_value(metric: str, best_is: Literal["lowest", "highest"] | None) -> Literal["lowest", "highest"]:
    """Which value of a metric is best, unless train.best_is says it: by its name."""
    return best_is or ("lowest" if "loss" in metric or "perplexity" in metric else "highest")
