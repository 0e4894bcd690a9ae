"""Samples -> medians, quantiles, spread, and paired ratios with a confidence interval. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

__all__ = ["drift", "median", "paired_speedup", "quantile", "relative_spread"]

CONFIDENCE = 0.95


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
    binomial distribution (Conover, Practical Nonparametric Statistics, §3.2). It assumes nothing about noise.
    With fewer than 6 pairs no such interval reaches 95 %, and the range is returned.
    """
    if len(candidate_ms) != len(reference_ms) or not candidate_ms:
        raise ValueError(f"paired samples differ in length: {len(candidate_ms)} and {len(reference_ms)}")
    ratios = sorted(r / c for c, r in zip(candidate_ms, reference_ms))
    rank = _sign_test_rank(len(ratios), confidence)
    return median(ratios), ratios[rank], ratios[-1 - rank]


def _sign_test_rank(n: int, confidence: float) -> int:
    """Largest 0-based rank r such that [ratios[r], ratios[-1-r]] covers the median with at least `confidence`."""
    tail, rank = 0.0, 0
    for k in range(n // 2):
        tail += math.comb(n, k) / 2**n  # of integers: 2.0**1024 is no float
        if 2 * tail > 1 - confidence:
            break
        rank = k
    return rank
