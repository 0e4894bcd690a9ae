"""What a sweep's parent run is given at its end: ranking, chart, counts, the failure histogram, a summary. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.records import RankedRow, Status, SweepInfo
from runner.stats import median
from tracking import contents, layout
from tracking.report.chart import latency_chart
from tracking.report.table import ranking

STATUSES = frozenset(s.value for s in Status)
DIVIDER = "\n\n---\n\n"


@dataclass(frozen=True)
class Ending:
    """What is known of a sweep once it has ended, without the outcomes themselves: those are on record by then.

    `ranking` has a line per timed variant, best first. `attempts` are those of the variants whose run is not known yet.
    """

    ranking: Sequence[Mapping[str, Any]]
    attempts: Mapping[str, int]
    metrics: Mapping[str, float]
    failures: Mapping[str, int]  # by status, or by `status: reason`
    summary: str
    status: str  # in MLflow's words
    chart: bytes


def ending(
    info: SweepInfo,
    rows: Sequence[RankedRow],
    failures: Mapping[str, int],
    summary: str,
    status: str = "FINISHED",
    flops: float | None = None,
) -> Ending:
    """`rows` are best first; `flops` are the floating-point operations of one call."""
    attempts = {row.outcome.variant.id: row.outcome.attempt for row in rows if not row.run_id}
    chart = latency_chart(info, rows) if rows else b""
    return Ending(ranking(info.swept, rows, flops), attempts, _metrics(rows, failures), failures, summary, status, chart)


def files(ending: Ending) -> dict[str, bytes]:
    found = {
        layout.RANKING_JSON: contents.table(ending.ranking),
        layout.FAILURES_JSON: contents.table([{"failure": k, "variants": n} for k, n in _commonest(ending.failures)]),
        layout.SUMMARY_TXT: ending.summary.rstrip().encode() + b"\n",
    }
    if ending.chart:
        found[layout.CHART_PNG] = ending.chart
    return found


def _metrics(rows: Sequence[RankedRow], failures: Mapping[str, int]) -> dict[str, float]:
    """Variants by status, how many were taken from earlier sweeps, and the headline of the best."""
    counts = Counter(row.outcome.status.value for row in rows)
    for failure, number in failures.items():
        status = failure.partition(":")[0].strip()
        if status in STATUSES:
            counts[status] += number
    found = {f"{layout.COUNT_PREFIX}{status}": float(n) for status, n in counts.items()}
    found[layout.COUNT_REUSED] = float(sum(row.reused for row in rows))
    best = rows[0].outcome if rows else None
    if best is not None and best.measurement is not None:
        found[layout.BEST_LATENCY] = median(best.measurement.samples_ms)
        if (ratio := best.measurement.speedup_vs_baseline) is not None:
            found[layout.BEST_SPEEDUP] = ratio
    return found


def tags(note: str, ending: Ending) -> dict[str, str]:
    """The description gains the summary; a second closing replaces the first one's."""
    asked = note.partition(DIVIDER)[0]
    tables = contents.table_tag(layout.RANKING_JSON, layout.FAILURES_JSON)
    histogram = ", ".join(f"{n} {failure}" for failure, n in _commonest(ending.failures)) or "none"
    found = {layout.NOTE: f"{asked}{DIVIDER}{ending.summary}", layout.FAILURES: histogram, layout.LOGGED_TABLES: tables}
    return {k: layout.cut(v, layout.MAX_TAG) for k, v in found.items()}


def abandoned(note: str, sweep_id: str) -> dict[str, str]:
    """The description of a sweep whose driver was killed."""
    said = f"its driver died; what was measured is kept, and `sweep resume {sweep_id}` measures the rest"
    return {layout.NOTE: layout.cut(f"{note.partition(DIVIDER)[0]}{DIVIDER}{said}", layout.MAX_TAG)}


def _commonest(failures: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(failures.items(), key=lambda item: (-item[1], item[0]))
