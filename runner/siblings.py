"""Cards of one model that serve one sweep: one that is not as fast as the others would bend its ranking. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from runner import stats
from runner.records import Baseline


def odd(baselines: Iterable[Baseline], limit: float) -> dict[tuple[str, int], float]:
    """The devices whose baseline differs from their siblings' by more than `limit`, and by how much: 0.05 is 5 % slower.

    Compared with the median of all, and of two with the faster one: what slows a card down is the likelier fault.
    """
    medians = {b.device.key: stats.median(b.before_ms) for b in baselines}
    if not medians:
        return {}  # the only one went with the end of its baseline
    usual = sorted(medians.values())[(len(medians) - 1) // 2]
    return {key: found / usual - 1 for key, found in medians.items() if abs(found / usual - 1) > limit}
