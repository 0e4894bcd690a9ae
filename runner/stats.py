"""Samples -> medians, quantiles, spread, and paired ratios with a confidence interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, median, stdev
from typing import NamedTuple

__all__ = ["drift", "half_width", "median", "over_sessions", "paired_speedup", "quantile", "relative_spread", "t_quantile"]

CONFIDENCE = 0.95
LEAST_ERROR = 1e-7
"""Standard error below which no log ratio is known: identical samples would else have infinite weight."""

Session = tuple[Sequence[float], Sequence[float]]
"""Pairs of one process in call order: the candidate's milliseconds, and the reference's."""


class Speedup(NamedTuple):
    """A speedup and its confidence interval. `tau` is None where one process says nothing about others."""

    speedup: float
    low: float
    high: float
    tau: float | None


def quantile(samples: Sequence[float], q: float) -> float:
    """The q-quantile (0 ≤ q ≤ 1) by linear interpolation between order statistics."""
    ordered = sorted(samples)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def relative_spread(samples: Sequence[float]) -> float:
    """(p80 - p20) / median: what `stable` looks at. Robust against a few outliers, unlike max - min."""
    return (quantile(samples, 0.8) - quantile(samples, 0.2)) / median(samples)


def drift(before: Sequence[float], after: Sequence[float]) -> float:
    """Relative change of the median from before to after; 0.03 is 3 % slower."""
    return median(after) / median(before) - 1.0


def paired_speedup(
    candidate_ms: Sequence[float], reference_ms: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Median of the call-by-call ratios reference / candidate, and its confidence interval (low, high).

    The interval is the distribution-free one for a median: order statistics k and n+1-k of the ratios, k from the
    binomial distribution (Conover, Practical Nonparametric Statistics, §3.2). It assumes nothing about the shape of the
    noise, only that pairs are independent of each other, and holds for their one process: `over_sessions` goes beyond.
    With fewer than 6 pairs no such interval reaches 95 %, and the range is returned.
    """
    if len(candidate_ms) != len(reference_ms) or not candidate_ms:
        raise ValueError(f"paired samples differ in length: {len(candidate_ms)} and {len(reference_ms)}")
    ratios = sorted(r / c for c, r in zip(candidate_ms, reference_ms))
    rank = _sign_test_rank(len(ratios), confidence)
    return median(ratios), ratios[rank], ratios[-1 - rank]


def over_sessions(sessions: Sequence[Session], confidence: float = CONFIDENCE) -> Speedup:
    """The speedup reference / candidate as processes in general would have it, from the pairs of several.

    Processes of one kernel differ by more than their own pairs tell (where code and data lie, the card's state), so the value
    of each is one observation: the logarithm of its median ratio. The interval is Student's t over them. `tau` is the standard
    deviation between processes beyond what the pairs explain, by DerSimonian and Laird (Controlled Clinical Trials 7, 1986).
    Of one session there is no more than `paired_speedup`.
    """
    within = [paired_speedup(*session, confidence) for session in sessions]
    if not within:
        raise ValueError("there are no sessions")
    if len(within) == 1:
        return Speedup(*within[0], None)
    logs = [math.log(speedup) for speedup, _, _ in within]
    variances = [_log_error(*session) ** 2 for session in sessions]
    half = t_quantile(confidence, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    return Speedup(math.exp(middle), math.exp(middle - half), math.exp(middle + half), _tau(logs, variances))


def half_width(low: float, high: float) -> float:
    """By how much a speedup had to differ from 1 for an interval as wide as this one to leave 1 out: 0.004 is 0.4 %."""
    return math.sqrt(high / low) - 1.0


def t_quantile(confidence: float, degrees: int) -> float:
    """The t that |T| stays below with probability `confidence`, T of Student's distribution with so many degrees of freedom.

    Exact to rounding: the closed form for integer degrees, inverted by bisection over the angle arctan(t / sqrt(degrees)).
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise ValueError(f"no quantile for {degrees} degrees of freedom at {confidence}")
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        angle = (low + high) / 2
        low, high = (angle, high) if _t_probability(angle, degrees) < confidence else (low, angle)
    return math.tan(low) * math.sqrt(degrees)


def _t_probability(angle: float, degrees: int) -> float:
    """P(|T| < sqrt(degrees) tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def _log_error(candidate_ms: Sequence[float], reference_ms: Sequence[float]) -> float:
    """Standard error of the logarithm of a session's median ratio, from the width of its interval."""
    ratios = sorted(r / c for c, r in zip(candidate_ms, reference_ms))
    rank = _sign_test_rank(len(ratios), CONFIDENCE)
    covered = 1 - 2 * sum(math.comb(len(ratios), k) for k in range(rank + 1)) / 2 ** len(ratios)
    if covered <= 0:  # a single pair
        return LEAST_ERROR
    width = math.log(ratios[-1 - rank] / ratios[rank])
    return max(LEAST_ERROR, width / 2 / NormalDist().inv_cdf((1 + covered) / 2))


def _tau(values: Sequence[float], variances: Sequence[float]) -> float:
    weights = [1 / v for v in variances]
    total = sum(weights)
    middle = sum(w * y for w, y in zip(weights, values)) / total
    scatter = sum(w * (y - middle) ** 2 for w, y in zip(weights, values))
    return math.sqrt(max(0.0, (scatter - (len(values) - 1)) / (total - sum(w * w for w in weights) / total)))


def _sign_test_rank(n: int, confidence: float) -> int:
    """Largest 0-based rank r such that [ratios[r], ratios[-1-r]] covers the median with at least `confidence`."""
    tail, rank = 0.0, 0
    for k in range(n // 2):
        tail += math.comb(n, k) / 2**n  # of integers: 2.0**1024 is no float
        if 2 * tail > 1 - confidence:
            break
        rank = k
    return rank
