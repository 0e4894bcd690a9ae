"""Two runs side by side: configs, numbers, and the generated source. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from runner.records import Value
from tracking.contents import metrics
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
    configs = first.variant.config, second.variant.config
    both = {name: (configs[0].get(name), configs[1].get(name)) for name in {**configs[0], **configs[1]}}
    before, after = _numbers(one), _numbers(other)
    return Comparison(
        one.run_id,
        other.run_id,
        _incomparable(one, other),
        {name: pair for name, pair in both.items() if pair[0] != pair[1]},
        tuple(_metric(name, before.get(name), after.get(name)) for name in {**before, **after}),
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
    """Every number of a run by MLflow's name for it, and the state of its device."""
    state = stored.outcome.measurement.state if stored.outcome.measurement else {}
    return {**metrics(stored.outcome, None), **{name: value for name, value in state.items() if isinstance(value, float)}}


def _metric(name: str, one: float | None, other: float | None) -> Metric:
    change = other / one - 1 if one and other is not None else None
    return Metric(name, one, other, change)


def _diff(one: Stored, other: Stored) -> str:
    first, second = (s.outcome.artifact.source.splitlines() if s.outcome.artifact else [] for s in (one, other))
    before, after = (f"{s.run_id[:8]} {s.label}".strip() for s in (one, other))
    return "\n".join(difflib.unified_diff(first, second, before, after, n=CONTEXT, lineterm=""))
