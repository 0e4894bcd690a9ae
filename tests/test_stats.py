"""Medians, quantiles and intervals against known ranks, other implementations, and simulated truth."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import stats

TIMES = st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=60)


@given(TIMES, st.floats(0, 1))
def test_quantile_is_that_of_numpy(samples: list[float], q: float) -> None:
    assert stats.quantile(samples, q) == pytest.approx(float(numpy.quantile(samples, q)), rel=1e-9)


@given(TIMES)
def test_quantile_is_that_of_the_standard_library(samples: list[float]) -> None:
    tenths = statistics.quantiles(samples, n=10, method="inclusive")
    assert [stats.quantile(samples, i / 10) for i in range(1, 10)] == pytest.approx(tenths, rel=1e-9)


def test_quantile_of_one_sample_is_that_sample() -> None:
    assert [stats.quantile([3.0], q) for q in (0, 0.2, 1)] == [3.0, 3.0, 3.0]


def test_spread_ignores_a_few_outliers() -> None:
    steady = [1.0] * 18
    assert stats.relative_spread([*steady, 50.0, 90.0]) == 0.0
    assert stats.relative_spread([0.9] * 10 + [1.1] * 10) == pytest.approx(0.2)


def test_drift_is_the_medians_relative_change() -> None:
    assert stats.drift([1.0, 1.0, 9.0], [1.03, 1.03, 1.03]) == pytest.approx(0.03)
    assert stats.drift([2.0], [1.0]) == pytest.approx(-0.5)


# 1-based order statistics of the 95 % interval for a median, by the tables of the binomial distribution.
@pytest.mark.parametrize(
    "n, lower, upper",
    [(1, 1, 1), (5, 1, 5), (6, 1, 6), (8, 1, 8), (9, 2, 8), (20, 6, 15), (25, 8, 18), (50, 18, 33), (100, 40, 61)],
)
def test_interval_is_the_order_statistics_of_the_tables(n: int, lower: int, upper: int) -> None:
    ratios = [float(i) for i in range(1, n + 1)]
    random.Random(n).shuffle(ratios)
    median, low, high = stats.paired_speedup([1.0] * n, ratios)
    assert (median, low, high) == (statistics.median(ratios), lower, upper)


@pytest.mark.parametrize("n", [1023, 1024, 2000])
def test_interval_of_very_many_pairs(n: int) -> None:
    _, low, high = stats.paired_speedup([1.0] * n, [float(i) for i in range(1, n + 1)])
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(n) / 2, abs=1.5)  # the normal approximation
    assert low - 1 == n - high


@pytest.mark.parametrize(
    "noise", [lambda r: r.lognormvariate(0, 0.05), lambda r: 1 + r.expovariate(10)], ids=["log-normal", "skewed"]
)
@pytest.mark.parametrize("n", [6, 20, 50])
def test_interval_covers_the_true_median_at_least_as_often_as_it_says(n: int, noise: Callable[[random.Random], float]) -> None:
    """Device times are skewed: the promise may not lean on a normal distribution."""
    source = random.Random(7)
    truth = statistics.median(noise(source) for _ in range(100_001))
    trials, covered = 4000, 0
    for _ in range(trials):
        _, low, high = stats.paired_speedup([1.0] * n, [noise(source) for _ in range(n)])
        covered += low <= truth <= high
    assert covered / trials > stats.CONFIDENCE - 0.012  # 3.5 standard errors of `trials` draws
    assert covered / trials < 0.99  # an interval that covers everything promises nothing


def test_a_slowdown_common_to_both_leaves_the_speedup_alone() -> None:
    """What pairing is for: a clock that drops by half during the measurement hits neighbours alike."""
    clock = [1.0] * 25 + [2.0] * 25
    candidate, reference = [0.8 * c for c in clock], [1.0 * c for c in clock]
    assert stats.paired_speedup(candidate, reference) == pytest.approx((1.25, 1.25, 1.25))


@given(TIMES)
def test_swapping_the_two_inverts_an_odd_number_of_ratios(samples: list[float]) -> None:
    candidate = samples[: len(samples) - (len(samples) + 1) % 2]
    reference = [1.0] * len(candidate)
    median, low, high = stats.paired_speedup(candidate, reference)
    swapped = stats.paired_speedup(reference, candidate)
    assert swapped == pytest.approx((1 / median, 1 / high, 1 / low))
    assert low <= median <= high


@pytest.mark.parametrize("candidate, reference", [([], []), ([1.0], [1.0, 2.0])])
def test_unequal_pairs_are_refused(candidate: list[float], reference: list[float]) -> None:
    with pytest.raises(ValueError, match="differ in length"):
        stats.paired_speedup(candidate, reference)
