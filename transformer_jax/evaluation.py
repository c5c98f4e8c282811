"""The measures: perplexity; BLEU and chrF with their sacreBLEU signatures; the paper's BLEU under its own name."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.custom_code import read_code
from transformer_jax.data.prepared import Prepared
from transformer_jax.extension import OwnFunction, file_of, load_function
from transformer_jax.translation.translate import Translator
from transformer_jax.update.sharding import make_mesh

BOOTSTRAP_SAMPLES, BOOTSTRAP_SEED = 1000, 12345  # sacreBLEU's own
# Scores that differ by less than this share are the same score, rounded in two ways.
ROUNDING = 1e-9
# What a measure of one's own may not be called: these names have a meaning in a run's files.
TAKEN = ("bleu", "chrf", "paper_bleu", "step", "loss", "perplexity", "valid_loss", "valid_perplexity", "valid_accuracy")


class Measure(NamedTuple):
    """A score and all that must be known to compare it with another."""

    score: float
    signature: str


def measures(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Measure]:
    """BLEU, chrF and the paper's BLEU of a whole test set, every sentence of it."""
    if not len(hypotheses) == len(references) > 0:
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    return {**_measured(_metrics(), hypotheses, references), "paper_bleu": paper_bleu(hypotheses, references)}


def load_metrics(addresses: Sequence[str]) -> dict[str, OwnFunction]:
    """Measures of one's own by their names, which no two may share."""
    found: dict[str, OwnFunction] = {}
    for address in addresses:
        own = load_function("decode.metrics", address, ("hypotheses", "references"), ("sources",))
        name = address.rpartition(":")[2]
        if name in found or name in TAKEN:
            other = found[name].address if name in found else "the library's"
            raise own.refusal(f"there is another measure called {name}, {other}; another name would be right")
        found[name] = own
    return found


def own_measures(
    metrics: Mapping[str, OwnFunction], sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Measure]:
    """Each custom metric, with the digest of its code in its signature."""
    measured = {}
    for name, own in metrics.items():
        score = own(list(hypotheses), list(references), sources=list(sources))
        if not isinstance(score, (int, float, np.number)) or not math.isfinite(score):
            raise own.refusal(f"gave {repr(score)[:60]}; one finite number would be right")
        measured[name] = Measure(float(score), metric_signature(own))
    return measured


def metric_signature(own: OwnFunction) -> str:
    """What tells a custom metric from all others: where it is, and the digest of its code."""
    return f"{own.address}|sha256:{read_code(file_of(own.address)).digest[:12]}"


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
    """BLEU as the papers of its time report it: of tokenised text, with compounds split at their hyphens.

    "rich-text format" counts as "rich ##AT##-##AT## text format", which makes more n-grams agree. The tokens are those
    of mteval-v13a; the papers used Moses', which differ little. For comparing with published figures only.
    """
    from sacrebleu.metrics import BLEU
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    tokenize = Tokenizer13a()

    def split(texts: Sequence[str]) -> list[str]:
        return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenize(text)) for text in texts]

    measured = _measured({"paper_bleu": BLEU(tokenize="none", force=True)}, split(hypotheses), split(references))
    score, signature = measured["paper_bleu"]
    return Measure(score, signature.replace("tok:none", "tok:13a+compounds-split"))


def perplexities(log_probabilities: Sequence[np.ndarray], references: Sequence[str]) -> dict[str, float]:
    """exp(-log P / count) of the references: per token, and per word and character, which any vocabulary shares.

    `log_probabilities` holds those of each reference's tokens, <eos> included; the end of a sentence therefore counts
    as one word and one character too. A word is what stands between white space.
    """
    total = sum(float(np.sum(values, dtype=np.float64)) for values in log_probabilities)
    counts = {
        "token": sum(len(values) for values in log_probabilities),
        "word": sum(len(text.split()) + 1 for text in references),
        "character": sum(len(text) + 1 for text in references),
    }
    per_unit = {f"per_{unit}": math.exp(min(-total / count, 700.0)) for unit, count in counts.items()}
    return {**per_unit, "log_probability": total, **{f"{unit}s": count for unit, count in counts.items()}}


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """What corpus BLEU adds up, sentence by sentence: lengths of hypothesis and reference, then of n = 1 to 4 how many
    n-grams agree, and how many there are."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(effective_order=True)  # as sacreBLEU wishes of single sentences; the counts are the same
    scores = [metric.sentence_score(*pair) for pair in zip(hypotheses, ([text] for text in references), strict=True)]
    return [[score.sys_len, score.ref_len, *score.counts, *score.totals] for score in scores]


def bleu_of_statistics(totals: Sequence[float]) -> float:
    """Corpus BLEU (exponential smoothing, as sacreBLEU's default) of added-up `bleu_statistics`."""
    from sacrebleu.metrics import BLEU

    whole = [int(total) for total in totals]
    # compute_bleu itself smooths nothing unless it is told to.
    return BLEU.compute_bleu(whole[2:6], whole[6:], whole[0], whole[1], smooth_method="exp").score


def paired_bootstrap(
    hypotheses: Sequence[str], others: Sequence[str], references: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Whether another system's scores differ by more than the choice of test sentences: BLEU and chrF with p-values."""
    found = {}
    for name, metric in _metrics().items():
        # What corpus scores are made of, sentence by sentence; sacreBLEU's own paired tests start from the same.
        sentences = [
            metric._extract_corpus_statistics(list(texts), [list(references)]) for texts in (hypotheses, others)
        ]
        this_NS, other_NS = (np.array(statistics, np.float64) for statistics in sentences)

        def score(sums_S: np.ndarray, metric: Any = metric) -> float:
            return metric._compute_score_from_stats(sums_S).score

        this, other = score(this_NS.sum(0)), score(other_NS.sum(0))
        resampled = [score(draw_N @ this_NS) - score(draw_N @ other_NS) for draw_N in _draws(len(references))]
        signature = metric.get_signature()
        signature.update("seed", str(BOOTSTRAP_SEED))
        signature.update("bs", BOOTSTRAP_SAMPLES)
        found[name] = {
            "this": this,
            "other": other,
            "p_value": p_value(this - other, resampled),
            "signature": f"{signature.format()}|p:two-sided",
        }
    return found


def p_value(difference: float, resampled: Sequence[float] | np.ndarray) -> float:
    """How probable so large a difference would be if there were none: two-sided, of resampled differences.

    The bootstrap's differences scatter about the observed one as that does about the true one; were this 0, differences
    at least as far from it as the observed one would be as frequent as resampled ones that far from the observed one.
    Ties count as that far, so that two systems with one score have p = 1. (sacreBLEU's paired bootstrap leaves ties
    out, which gives identical systems p = 0.001, and centres the *absolute* differences, which halves small p-values.)
    """
    distances = np.abs(np.asarray(resampled, np.float64) - difference)
    as_far = np.count_nonzero(distances >= abs(difference) * (1 - ROUNDING))
    return (as_far + 1) / (len(distances) + 1)  # the observed difference is one of those that may be drawn


def _draws(sentences: int) -> Iterator[np.ndarray]:
    """How often each sentence is drawn, in each of the samples with replacement; sacreBLEU's draws."""
    rng = np.random.default_rng(BOOTSTRAP_SEED)
    for _ in range(BOOTSTRAP_SAMPLES):
        yield np.bincount(rng.choice(sentences, size=sentences), minlength=sentences).astype(np.float64)


def bleu_evaluator(config: ExperimentConfig, prepared: Prepared) -> Callable[[Any], Mapping[str, float]]:
    """What the training loop calls with its parameters: BLEU of the first `decode.bleu_sentences` validation pairs, and
    whatever the config wants measured besides."""
    metrics = load_metrics(config.decode.metrics)
    sources, references = (side[: config.decode.bleu_sentences] for side in prepared.texts("valid"))
    translator = Translator(config, prepared.tokenizer, prepared.target_tokenizer, make_mesh(config.mesh))

    def evaluate(params: Any) -> Mapping[str, float]:
        hypotheses = [translation.text for translation in translator.translate(params, sources, config.decode)]
        measured = _measured({"bleu": _metrics()["bleu"]}, hypotheses, references)
        measured |= own_measures(metrics, sources, hypotheses, references)
        return {name: measure.score for name, measure in measured.items()}

    return evaluate


def _metrics() -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF  # costs a second: only who measures waits for it

    return {"bleu": BLEU(force=True), "chrf": CHRF()}  # forced: no advice about text that looks tokenised


def _measured(metrics: Mapping[str, Any], hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Measure]:
    found = {}
    for name, metric in metrics.items():
        score = metric.corpus_score(list(hypotheses), [list(references)])
        found[name] = Measure(score.score, metric.get_signature().format())
    return found
