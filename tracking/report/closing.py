"""What a sweep's parent run is given at its end: ranking, chart, counts, the failure histogram, a summary. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from runner.records import RankedRow, Status, SweepInfo
from runner.stats import median
from tracking import contents, layout
from tracking.report.chart import latency_chart
from tracking.report.table import ranking

STATUSES = frozenset(s.value for s in Status)
DIVIDER = "\n\n---\n\n"


def files(
    info: SweepInfo, rows: Sequence[RankedRow], failures: Mapping[str, int], summary: str, flops: float | None
) -> dict[str, bytes]:
    found = {
        layout.RANKING_JSON: contents.table(ranking(info.swept, rows, flops)),
        layout.FAILURES_JSON: contents.table([{"failure": k, "variants": n} for k, n in _commonest(failures)]),
        layout.SUMMARY_TXT: summary.rstrip().encode() + b"\n",
    }
    if rows:
        found[layout.CHART_PNG] = latency_chart(info, rows)
    return found


def metrics(rows: Sequence[RankedRow], failures: Mapping[str, int]) -> dict[str, float]:
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
        latency = median(best.measurement.samples_ms)
        found[layout.BEST_LATENCY] = latency
        if best.baseline is not None:
            found[layout.BEST_SPEEDUP] = median(best.baseline.before_ms) / latency
    return found


def tags(note: str, failures: Mapping[str, int], summary: str) -> dict[str, str]:
    """The description gains the summary; a second closing replaces the first one's."""
    asked = note.partition(DIVIDER)[0]
    tables = contents.table_tag(layout.RANKING_JSON, layout.FAILURES_JSON)
    histogram = ", ".join(f"{n} {failure}" for failure, n in _commonest(failures)) or "none"
    found = {layout.NOTE: f"{asked}{DIVIDER}{summary}", layout.FAILURES: histogram, layout.LOGGED_TABLES: tables}
    return {k: layout.cut(v, layout.MAX_TAG) for k, v in found.items()}


def abandoned(note: str, sweep_id: str) -> dict[str, str]:
    """The description of a sweep whose driver was killed."""
    said = f"its driver died; what was measured is kept, and `sweep resume {sweep_id}` measures the rest"
    return {layout.NOTE: layout.cut(f"{note.partition(DIVIDER)[0]}{DIVIDER}{said}", layout.MAX_TAG)}


def _commonest(failures: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(failures.items(), key=lambda item: (-item[1], item[0]))
