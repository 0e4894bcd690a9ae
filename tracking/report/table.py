"""A sweep's ranking as a table: a line per timed variant, a column per swept knob and per number a reader compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.records import RankedRow
from runner.stats import median, quantile
from tracking import contents


def ranking(swept: Sequence[str], rows: Sequence[RankedRow], flops: float | None = None) -> list[dict[str, Any]]:
    """`rows`, best first, as columns and values; a number that is not known is None. `flops` are those of one call."""
    return [{"rank": rank, **_line(swept, row, flops)} for rank, row in enumerate(rows, 1)]


def _line(swept: Sequence[str], row: RankedRow, flops: float | None) -> dict[str, Any]:
    outcome, paired = row.outcome, row.paired
    assert outcome.measurement is not None and outcome.artifact is not None
    samples = outcome.measurement.samples_ms
    latency = median(samples)
    tflops = contents.rate(latency, flops)
    return {
        **{knob: outcome.variant.config.get(knob) for knob in swept},
        "latency_ms": _round(latency),
        "p20_ms": _round(quantile(samples, 0.2)),
        "p80_ms": _round(quantile(samples, 0.8)),
        "tflops": _round(tflops),
        "vs_baseline": _round(outcome.measurement.speedup_vs_baseline),
        "paired_speedup": _round(paired.speedup if paired else None),
        "paired_low": _round(paired.low if paired else None),
        "paired_high": _round(paired.high if paired else None),
        "paired_sessions": len(paired.sessions) if paired else None,
        "paired_tau": _round(paired.tau if paired else None),
        "decision": outcome.decision.value,
        "reason": outcome.reason,
        "mma_count": outcome.artifact.mma_count,
        "max_abs_error": outcome.measurement.max_abs_error if outcome.measurement.checks else None,
        "base": outcome.is_base,
        "status": outcome.status.value,
        "reused": row.reused,
        "variant_id": outcome.variant.id,
        "run_id": row.run_id,
    }


def _round(value: float | None) -> float | None:
    """Five significant digits: what a timing can mean."""
    return None if value is None else float(f"{value:.5g}")
