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


# Two-sided quantiles of Student's t by the tables; the last two by integrating the density numerically.
@pytest.mark.parametrize(
    "confidence, degrees, expected",
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 4, 2.776),
        (0.95, 9, 2.262),
        (0.95, 30, 2.042),
        (0.95, 100, 1.984),
        (0.99, 4, 4.604),
        (0.998, 2, 22.327),
        (0.80, 5, 1.476),
        (0.975, 9, 2.685),
        (0.9998, 4, 13.034),
    ],
)
def test_t_quantiles_are_those_of_the_tables(confidence: float, degrees: int, expected: float) -> None:
    assert stats.t_quantile(confidence, degrees) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("confidence, degrees", [(0.95, 0), (1.0, 4), (0.0, 4)])
def test_there_is_no_t_quantile_of_nothing(confidence: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="no quantile"):
        stats.t_quantile(confidence, degrees)


def noise(source: random.Random, pairs: int, offset: float, spread: float = 0.003) -> tuple[list[float], list[float]]:
    """A session of one kernel against itself whose process favours one side by `offset`."""
    return [1.0] * pairs, [math.exp(source.gauss(offset, spread)) for _ in range(pairs)]


@pytest.mark.parametrize("tau", [0.0, 0.001, 0.003, 0.01], ids=lambda tau: f"tau {tau:.1%}")
@pytest.mark.parametrize("sessions", [3, 5])
def test_processes_that_differ_fool_no_interval_over_several(sessions: int, tau: float) -> None:
    """A kernel against itself, in processes that each favour one side a little: false positives stay below the nominal 2.5 %."""
    source, trials = random.Random(11), 3000
    found = [stats.over_sessions([noise(source, 20, source.gauss(0, tau)) for _ in range(sessions)]) for _ in range(trials)]
    limit = 0.025 + 3 * math.sqrt(0.025 * 0.975 / trials)
    assert sum(f.low > 1 for f in found) / trials < limit
    assert sum(f.high < 1 for f in found) / trials < limit
    assert sum(f.low <= 1 <= f.high for f in found) / trials < 0.97, "an interval that covers everything promises nothing"


@pytest.mark.parametrize("pairs", [20, 200])
def test_where_the_interval_of_one_process_is_fooled_by_them(pairs: int) -> None:
    """Why there are several: with an offset as large as the noise of a pair, every third kernel is faster than itself."""
    source, trials = random.Random(12), 600
    found = [stats.over_sessions([noise(source, pairs, source.gauss(0, 0.003))]) for _ in range(trials)]
    assert sum(f.low > 1 for f in found) / trials > 0.2
    assert all(f.tau is None for f in found)


def test_one_session_has_the_interval_of_its_pairs() -> None:
    session = noise(random.Random(1), 50, 0.01)
    assert stats.over_sessions([session]) == (*stats.paired_speedup(*session), None)


def test_several_sessions_by_hand() -> None:
    """Median ratios of 1.01, 1.02 and 1.03 exactly: the mean of the logs, and t with two degrees of freedom around it."""
    found = stats.over_sessions([([1.0] * 8, [ratio] * 8) for ratio in (1.01, 1.02, 1.03)])
    logs = [math.log(ratio) for ratio in (1.01, 1.02, 1.03)]
    half = 4.30265 * statistics.stdev(logs) / math.sqrt(3)
    assert found.speedup == pytest.approx(math.exp(statistics.fmean(logs)))
    assert (found.low, found.high) == pytest.approx((found.speedup * math.exp(-half), found.speedup * math.exp(half)), rel=1e-6)
    assert found.tau == pytest.approx(statistics.stdev(logs), rel=1e-4), "pairs without noise explain nothing of it"


def test_tau_is_how_much_processes_differ_beyond_their_noise() -> None:
    source = random.Random(5)
    same = stats.over_sessions([noise(source, 50, 0.0, spread=0.02) for _ in range(200)])
    apart = stats.over_sessions([noise(source, 50, source.gauss(0, 0.02), spread=0.02) for _ in range(200)])
    assert same.tau is not None and same.tau < 0.002
    assert apart.tau == pytest.approx(0.02, rel=0.15)


def test_more_confidence_is_a_wider_interval() -> None:
    sessions = [noise(random.Random(seed), 50, 0.001 * seed) for seed in range(5)]
    narrow, wide = stats.over_sessions(sessions), stats.over_sessions(sessions, 0.975)
    assert wide.low < narrow.low < narrow.speedup == wide.speedup < narrow.high < wide.high


def test_no_sessions_are_refused() -> None:
    with pytest.raises(ValueError, match="no sessions"):
        stats.over_sessions([])


def test_what_could_have_been_seen_is_what_just_leaves_1_out() -> None:
    gain = stats.half_width(0.998, 1.002)
    assert gain == pytest.approx(0.002, rel=0.01)
    assert (1 + gain) * 0.998 / math.sqrt(0.998 * 1.002) == pytest.approx(1.0), "the low end of an interval around that gain"
