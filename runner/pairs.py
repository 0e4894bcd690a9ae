"""Sessions of pairs -> what they come to. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from runner import stats
from runner.records import Paired, PairSession


def paired(candidate_id: str, reference_id: str, sessions: Sequence[PairSession], confidence: float = stats.CONFIDENCE) -> Paired:
    """The speedup of a candidate over a reference, with the interval that its sessions allow. There is one at least."""
    found = stats.over_sessions([(s.candidate_ms, s.reference_ms) for s in sessions], confidence)
    return Paired(candidate_id, reference_id, found.speedup, found.low, found.high, confidence, found.tau, tuple(sessions))


def told(paired: Paired) -> str:
    """`1.0266 [1.0200, 1.0330] k=3 tau 0.3 %`: the speedup, its interval, over how many processes, how much those differ."""
    return interval(paired.speedup, paired.low, paired.high, len(paired.sessions), paired.tau)


def interval(speedup: float, low: float, high: float, sessions: int, tau: float | None) -> str:
    """The same where only its numbers are at hand."""
    over = "within one session" if tau is None else f"k={sessions} tau {percent(tau)}"
    return f"{speedup:.4f} [{low:.4f}, {high:.4f}] {over}"


def visible_gain(paired: Paired, least: float = 1.0) -> float:
    """The gain that an interval as wide as this one would have shown to be above `least`: 0.004 is 0.4 %."""
    return least * (1 + stats.half_width(paired.low, paired.high)) - 1


def percent(share: float) -> str:
    """`12.0 %`, `0.3 %`, `0.04 %`, `0 %`."""
    return f"{share * 100:.{1 if share >= 0.00095 else 2}f} %" if share >= 5e-5 else "0 %"
