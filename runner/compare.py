"""Two runs side by side: configs, numbers, and the generated source. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from runner import stats
from runner.records import Value
from tracking.stored import Stored

CONTEXT = 3  # lines around each difference of the source


@dataclass(frozen=True)
class Metric:
    """A number of both runs; `change` is relative to the first: -0.023 is 2.3 % less. None where one has none, or it is 0."""

    name: str
    one: float | None
    other: float | None
    change: float | None


@dataclass(frozen=True)
class Comparison:
    """`config` has only the knobs that differ. `comparable` is empty, or says why the numbers must not be compared."""

    one: str  # run ids
    other: str
    comparable: str
    config: Mapping[str, tuple[Value, Value]]
    metrics: tuple[Metric, ...]
    source: str  # a unified diff


def compare(one: Stored, other: Stored) -> Comparison:
    first, second = one.outcome, other.outcome
    names = [*first.variant.config, *(k for k in second.variant.config if k not in first.variant.config)]
    both = {name: (first.variant.config.get(name), second.variant.config.get(name)) for name in names}
    numbers = _numbers(one), _numbers(other)
    names = [*numbers[0], *(n for n in numbers[1] if n not in numbers[0])]
    return Comparison(
        one.run_id,
        other.run_id,
        _incomparable(one, other),
        {name: pair for name, pair in both.items() if pair[0] != pair[1]},
        tuple(_metric(name, numbers[0].get(name), numbers[1].get(name)) for name in names),
        _diff(one, other),
    )


def _incomparable(one: Stored, other: Stored) -> str:
    """Numbers of two workloads, device models or protocols say nothing about each other."""
    variants = one.outcome.variant, other.outcome.variant
    pairs = {
        "workloads": tuple(v.workload.name for v in variants),
        "devices": (one.device_model, other.device_model),
        "protocols": tuple(v.protocol for v in variants),
    }
    differing = [f"two {what}, {a} and {b}" for what, (a, b) in pairs.items() if a != b]
    return "; ".join(differing)


def _numbers(stored: Stored) -> dict[str, float]:
    outcome, found = stored.outcome, dict[str, float]()
    if outcome.measurement is not None:
        samples = outcome.measurement.samples_ms
        found |= {
            "latency_ms_median": stats.median(samples),
            "latency_ms_p20": stats.quantile(samples, 0.2),
            "latency_ms_p80": stats.quantile(samples, 0.8),
            "max_abs_error": outcome.measurement.max_abs_error,
            "prepack_ms": outcome.measurement.prepack_ms,
        }
        if outcome.baseline is not None:
            found["speedup_vs_baseline"] = stats.median(outcome.baseline.before_ms) / found["latency_ms_median"]
        found |= {name: value for name, value in outcome.measurement.state.items() if isinstance(value, float)}
    if outcome.artifact is not None:
        found |= {"compile_seconds": outcome.artifact.compile_seconds, **outcome.artifact.resources}
        if outcome.artifact.mma_count is not None:
            found["mma_count"] = outcome.artifact.mma_count
    return found


def _metric(name: str, one: float | None, other: float | None) -> Metric:
    change = other / one - 1 if one and other is not None else None
    return Metric(name, one, other, change)


def _diff(one: Stored, other: Stored) -> str:
    first, second = (s.outcome.artifact.source.splitlines() if s.outcome.artifact else [] for s in (one, other))
    before, after = (f"{s.run_id[:8]} {s.label}".strip() for s in (one, other))
    return "\n".join(difflib.unified_diff(first, second, before, after, n=CONTEXT, lineterm=""))
