"""sacreBLEU's score of summed statistics, which the library computes for all resamples at once."""

from collections.abc import Sequence

from sacrebleu.metrics import BLEU


def bleu_of_statistics(totals: Sequence[float]) -> float:
    """Corpus BLEU, with the default exponential smoothing, from summed `evaluation.bleu_statistics`."""
    whole = [int(total) for total in totals]
    return BLEU.compute_bleu(whole[2:6], whole[6:], whole[0], whole[1], smooth_method="exp").score
