"""Length penalties by name: what a hypothesis' log-probability is divided by.

Log-probabilities only fall as a hypothesis grows, so a search that compares them bare prefers short translations. A
hypothesis of n generated tokens, `<eos>` included, scores log P / penalty(n).
"""

import math
from collections.abc import Callable

LENGTH_PENALTIES: dict[str, Callable[[int, float], float]] = {
    "gnmt": lambda n, alpha: ((5 + n) / 6) ** alpha,  # Wu et al. 2016, equation 14; the paper's, with alpha 0.6
    "average": lambda n, alpha: float(n) ** alpha,  # alpha 1: the mean log-probability of a token
    "none": lambda n, alpha: 1.0,
}

# Penalties outside this range would push float32 scores to zero or infinity, where all hypotheses tie.
_SMALLEST, _LARGEST = 1e-30, 1e30


def length_penalty(name: str, alpha: float, n: int) -> float:
    """The penalty `name` for `n` generated tokens, `<eos>` included."""
    if name not in LENGTH_PENALTIES:
        raise ValueError(f"length_penalty is {name!r}: must be one of {', '.join(LENGTH_PENALTIES)}")
    if not math.isfinite(alpha):
        raise ValueError(f"alpha is {alpha}: must be a finite number")
    try:
        penalty = LENGTH_PENALTIES[name](n, alpha)
    except OverflowError:
        penalty = math.inf
    if not _SMALLEST <= penalty <= _LARGEST:
        raise ValueError(f"alpha is {alpha}: the {name} penalty of {n} tokens is {penalty}, beyond float32")
    return penalty


def penalty_table(name: str, alpha: float, max_length: int) -> list[float]:
    """The penalties for 1, 2, ... `max_length` generated tokens: entry n - 1 belongs to n tokens."""
    return [length_penalty(name, alpha, n) for n in range(1, max_length + 1)]
