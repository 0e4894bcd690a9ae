"""What comes back out of MLflow: a variant's outcome and a sweep, each with where it lies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from runner.records import Acceptance, Decision, Outcome, Paired, from_dict, paired_from_dict
from tracking import layout
from tracking.standing import Standing, loaded

if TYPE_CHECKING:
    from mlflow.entities import Run


@dataclass(frozen=True)
class Stored:
    """One variant's outcome as MLflow holds it. `decision` is today's: it changes after the outcome was written."""

    run_id: str
    experiment_id: str
    parent_run_id: str
    sweep_id: str
    sweep_name: str
    outcome: Outcome
    decision: Decision
    acceptance: Acceptance
    device_model: str
    swept: tuple[str, ...]
    written_at: str  # UTC, ISO 8601
    paired: Paired | None = None  # with what it was last compared with, where it was

    @property
    def variant_id(self) -> str:
        return self.outcome.variant.id

    @property
    def label(self) -> str:
        """The knobs that the sweep varied: `b_interleave=4`."""
        return self.outcome.variant.label(self.swept)


@dataclass(frozen=True)
class StoredSweep:
    """A sweep's parent run. `status` is MLflow's: RUNNING, FINISHED, FAILED or KILLED."""

    run_id: str
    experiment_id: str
    id: str
    name: str
    question: str
    workload: str
    device_model: str
    status: str
    started_at: str  # UTC, ISO 8601
    planned: int
    counts: Mapping[str, int] = field(default_factory=dict)  # by status, once the sweep was closed
    best_latency_ms: float | None = None
    best_speedup: float | None = None
    standing: Standing | None = None  # while it runs
    interrupted: bool = False  # open still, and its driver on this machine is gone


def stored(run: Run, data: Mapping[str, Any], paired: Mapping[str, Any] | None = None) -> Stored:
    """A child run, and the content of its `outcome.json` and of its `paired.json` where it has one.

    Raises ValueError or KeyError where they are of another version.
    """
    tags = run.data.tags
    outcome, decision = from_dict(Outcome, data), Decision(tags[layout.DECISION])
    return Stored(
        run_id=run.info.run_id,
        experiment_id=run.info.experiment_id,
        parent_run_id=tags[layout.PARENT],
        sweep_id=tags[layout.SWEEP_ID],
        sweep_name=tags[layout.SWEEP_NAME],
        outcome=replace(outcome, decision=decision),
        decision=decision,
        acceptance=from_dict(Acceptance, json.loads(tags[layout.ACCEPTANCE])),
        device_model=tags[layout.DEVICE],
        swept=tuple(json.loads(tags[layout.SWEPT])),
        written_at=moment(run.info.start_time),
        paired=paired_from_dict(paired) if paired is not None else None,
    )


def stored_sweep(run: Run) -> StoredSweep:
    """A sweep's own run. Raises ValueError or KeyError where it is of another version."""
    tags, metrics = run.data.tags, run.data.metrics
    prefix = layout.COUNT_PREFIX
    return StoredSweep(
        run_id=run.info.run_id,
        experiment_id=run.info.experiment_id,
        id=tags[layout.SWEEP_ID],
        name=tags[layout.SWEEP_NAME],
        question=tags.get(layout.QUESTION, ""),
        workload=tags[layout.WORKLOAD],
        device_model=tags[layout.DEVICE],
        status=run.info.status,
        started_at=moment(run.info.start_time),
        planned=int(tags[layout.PLANNED]),
        counts={k[len(prefix) :]: int(v) for k, v in metrics.items() if k.startswith(prefix)},
        best_latency_ms=metrics.get(layout.BEST_LATENCY),
        best_speedup=metrics.get(layout.BEST_SPEEDUP),
        standing=loaded(tags.get(layout.STANDING, "")) if run.info.status == "RUNNING" else None,
    )


def moment(milliseconds: int) -> str:
    """MLflow's time as UTC, ISO 8601, to the second."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).isoformat(timespec="seconds")
