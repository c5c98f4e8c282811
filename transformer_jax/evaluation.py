"""Metrics: perplexity, BLEU and chrF with their sacreBLEU signatures, the paper's BLEU, exact match, custom metrics."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from transformer_jax.config import ExperimentConfig
from transformer_jax.data.prepared import Prepared
from transformer_jax.errors import BadInput
from transformer_jax.extension import CustomFunction, load_function, read_code
from transformer_jax.metric_names import TAKEN
from transformer_jax.translation.translate import Translator
from transformer_jax.update.sharding import make_mesh

EXACT_MATCH = "nrefs:1|case:mixed|space:collapsed|unicode:nfc"  # its signature

# Sources, translations and references on which a custom metric is tried. An untrained model gives empty translations.
TRIED = ("a b", "c d e"), ("a b", ""), ("a b", "c d e")
_tried: set[tuple[str, str]] = set()  # addresses and digests


class Metric(NamedTuple):
    """A custom metric, and the digest of its code as it was loaded."""

    function: CustomFunction
    code: str

    @property
    def signature(self) -> str:
        """Without folders: the same code is the same metric, wherever the command runs."""
        return f"{Path(self.function.address).name}|sha256:{self.code[:12]}"


class Measure(NamedTuple):
    """A score with a signature: scores are comparable if their signatures are equal."""

    score: float
    signature: str
    sentences: Sequence[float] | None = None  # of a custom metric that scores sentences, of which `score` is the mean


def measures(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> dict[str, Measure]:
    """BLEU, chrF, the paper's BLEU and exact match of a whole test set.

    `tokenize` is sacreBLEU's tokenizer of BLEU, as in the option decode.bleu_tokenize.
    """
    from sacrebleu.metrics import CHRF  # takes a second to import

    return {
        "bleu": _measure(load_bleu(tokenize), hypotheses, references),
        "chrf": _measure(CHRF(), hypotheses, references),
        "paper_bleu": paper_bleu(hypotheses, references),
        "exact_match": exact_share(hypotheses, references),
    }


def matches(hypotheses: Sequence[str], references: Sequence[str]) -> list[int]:
    """1 for every translation with the words of its reference, 0 for every other one.

    White space only separates words: most tokenizers do not keep how much of it there was. Nor do they keep whether an
    accent was a separate character: texts are compared in NFC, in which that makes no difference.
    """
    ours, theirs = ([normalize("NFC", text).split() for text in texts] for texts in (hypotheses, references))
    return [int(one == other) for one, other in zip(ours, theirs, strict=True)]


def exact_share(hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
    """The share of translations that equal their references, in percent."""
    return Measure(100 * float(np.mean(matches(hypotheses, references))), EXACT_MATCH)


def load_metrics(addresses: Sequence[str]) -> dict[str, Metric]:
    """Custom metrics by their names, which must be unique. Each is tried on two sentences."""
    found: dict[str, Metric] = {}
    for address in addresses:
        code = read_code(address).digest
        custom = load_function("decode.metrics", address, ("hypotheses", "references"), ("sources",))
        name = address.rpartition(":")[2]
        if name in found or name in TAKEN:
            other = found[name].function.address if name in found else "the library's"
            raise custom.refusal(f"there is another metric called {name}, {other}; choose another name")
        found[name] = Metric(custom, code)
        if (address, code) not in _tried:  # the variants of a sweep have the same ones
            custom_scores({name: found[name]}, *TRIED)
            _tried.add((address, code))
    return found


def custom_scores(
    metrics: Mapping[str, Metric], sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> dict[str, Measure]:
    """The scores of custom metrics, with a digest of their code in the signature."""
    measured = {}
    for name, metric in metrics.items():
        found = metric.function(list(hypotheses), list(references), sources=list(sources))
        try:
            score, sentences = score_of(found, len(references))
        except ValueError as problem:
            raise metric.function.refusal(str(problem)) from None
        measured[name] = Measure(score, metric.signature, sentences)
    return measured


def score_of(found: Any, sentences: int) -> tuple[float, list[float] | None]:
    """What custom code found: a number, or a list with one for each sentence, of which the mean is the score."""
    expected = f"must be one finite number, or a list of {sentences} of them, one for each sentence"
    try:
        values = np.asarray(found)
    except (TypeError, ValueError):  # a ragged list
        values = np.asarray(None)
    if values.dtype.kind not in "buif" or values.shape not in ((), (sentences,)) or not np.isfinite(values).all():
        raise ValueError(f"gave {repr(found)[:60]}; {expected}")
    return float(values.mean()), values.astype(float).tolist() if values.ndim else None


def paper_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
    """BLEU as reported at the time of the paper: of tokenised text, with compounds split at hyphens.

    "rich-text format" counts as "rich ##AT##-##AT## text format", so more n-grams match. The tokenisation is
    mteval-v13a's, which differs little from Moses'. Only for comparison with published scores.
    """
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    check_texts(hypotheses, references)
    tokenize = Tokenizer13a()

    def split(texts: Sequence[str]) -> list[str]:
        return [re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", tokenize(text)) for text in texts]

    measure = _measure(load_bleu("none"), split(hypotheses), split(references))
    return Measure(measure.score, measure.signature.replace("tok:none", "tok:13a+compounds-split"))


def perplexities(log_probabilities: Sequence[np.ndarray], references: Sequence[str]) -> dict[str, float]:
    """exp(-log P / count) of the references: per token, and, for any vocabulary, per word and character.

    `log_probabilities` has an array for each reference, <eos> included; so the end of a sentence also counts as
    one word and one character. Words are separated by white space.
    """
    total = sum(float(np.sum(values, dtype=np.float64)) for values in log_probabilities)
    counts = {
        "token": sum(len(values) for values in log_probabilities),
        "word": sum(len(text.split()) + 1 for text in references),
        "character": sum(len(text) + 1 for text in references),
    }
    if len(log_probabilities) != len(references) or not len(references):
        raise ValueError(
            f"{len(log_probabilities)} log-probabilities and {len(references)} references: as many are needed"
        )
    per_unit = {f"per_{unit}": math.exp(min(-total / count, 700.0)) for unit, count in counts.items()}
    return {**per_unit, "log_probability": total, **{f"{unit}s": count for unit, count in counts.items()}}


def bleu_statistics(hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> list[list[int]]:
    """The sufficient statistics of corpus BLEU for each sentence: lengths of hypothesis and reference, then for n = 1
    to 4 the number of matching n-grams, and of all n-grams."""
    check_texts(hypotheses, references)
    return load_bleu(tokenize)._extract_corpus_statistics(list(hypotheses), [list(references)])


def bleu_evaluator(config: ExperimentConfig, prepared: Prepared) -> Callable[[Any], Mapping[str, float]]:
    """A function of the parameters: BLEU, exact match and custom metrics of the first `decode.bleu_sentences`
    validation pairs."""
    metrics, bleu = load_metrics(config.decode.metrics), load_bleu(config.decode.bleu_tokenize)
    sources, references = (side[: config.decode.bleu_sentences] for side in prepared.texts("valid"))
    translator = Translator(config, prepared.tokenizer, prepared.target_tokenizer, make_mesh(config.mesh))

    def evaluate(params: Any) -> Mapping[str, float]:
        translations = translator.translate(params, sources, config.decode, references=references, whole=True)
        hypotheses = [translation.text for translation in translations]
        measured = {"bleu": _measure(bleu, hypotheses, references), "exact_match": exact_share(hypotheses, references)}
        measured |= custom_scores(metrics, sources, hypotheses, references)
        return {name: measure.score for name, measure in measured.items()}

    return evaluate


def load_bleu(tokenize: str) -> Any:
    """sacreBLEU's BLEU with one of its tokenizers, some of which need a package or a download."""
    from sacrebleu.metrics import BLEU  # takes a second to import

    try:
        return BLEU(tokenize=tokenize, force=True)  # force: no warning about text that looks tokenized
    except (ImportError, RuntimeError, OSError) as error:
        raise BadInput(f"decode.bleu_tokenize = {tokenize}: {' '.join(str(error).split())}") from None


def check_texts(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Raises ValueError unless there are texts, and as many references: sacreBLEU would leave out the rest."""
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise ValueError("hypotheses and references are lists of texts, not one text")
    if len(hypotheses) != len(references) or not len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses and {len(references)} references: as many are needed, at least one"
        )


def _measure(metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Measure:
    check_texts(hypotheses, references)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Measure(score.score, metric.get_signature().format())
