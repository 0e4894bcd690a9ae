"""The formal evaluator of a workload: the baseline's row and the best kernel's, measured in pairs, as a report to keep."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path

from kernels.family import load_family
from runner import stats
from runner.accept import artifact_of, device_of
from runner.errors import JobFailed, NotFound, Refused
from runner.executors.base import Executor
from runner.finals import pair_deadline
from runner.jobs.requests import BASELINE, PairJob
from runner.pairs import paired
from runner.paths import atomic_write, search_folders
from runner.records import Accuracy, Device, Paired, Protocol, TargetKind, from_dict
from runner.sessions import measured
from tracking.registry import Best
from tracking.store import Store

NOTHING = "nothing was accepted yet: runner accept RUN"

SESSIONS = 3

ROW = "evaluated "
"""How a row's line begins."""

TABLE, CSV, JSON = "evaluation.txt", "evaluation.csv", "evaluation.json"


@dataclass(frozen=True)
class Row:
    """One way to compute the workload. What only a kernel has is None for the baseline. Times are in milliseconds.

    `speedup_vs_baseline` is over `sessions` fresh processes of `repeat` pairs each, low and high its 95 % interval, `tau` how
    much processes differ. `relative_error` is against float64, as the kernel's sweep measured it; `max_abs_error` is against the
    baseline.
    """

    name: str
    workload: str
    device: str
    latency_ms_median: float
    latency_ms_p20: float
    latency_ms_p80: float
    tflops: float
    relative_error: float | None = None
    max_abs_error: float | None = None
    speedup_vs_baseline: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    sessions: int = 0
    tau: float | None = None
    prepack_ms: float | None = None
    mma_count: int | None = None
    contended: str | None = None
    config: str = ""
    run_id: str = ""
    warmup: int = 0
    repeat: int = 0
    measured_at: str = ""


def measurable(bests: Sequence[Best], executor: Executor) -> list[Best]:
    """Those of a device model that is here. Raises NotFound where there is none."""
    demand_any(bests)
    models = {kind: {d.model for d in executor.devices(kind)} for kind in {b.stored.outcome.variant.target.kind for b in bests}}
    here = [b for b in bests if b.device_model in models[b.stored.outcome.variant.target.kind]]
    if not here:
        raise NotFound(f"nothing was accepted yet on {_here(models)}: runner accept RUN")
    return here


def demand_any(bests: Sequence[Best]) -> None:
    """Raises NotFound where there is nothing to evaluate, anywhere."""
    if not bests:
        raise NotFound(NOTHING)


def _here(models: Mapping[TargetKind, set[str]]) -> str:
    return " or ".join(sorted(model for found in models.values() for model in found)) or "a device of this machine"


def evaluate(best: Best, store: Store, executor: Executor, protocol: Protocol, sessions: int = SESSIONS) -> tuple[Row, Row]:
    """The baseline and the accepted kernel, alternated call by call on one device of the model it was accepted on.

    Raises InfrastructureLost where this machine has no such device, Refused where the kernel fails by now.
    """
    device, artifact = device_of(best.stored, executor), artifact_of(best.stored, store)
    outcome = best.stored.outcome
    assert outcome.measurement is not None
    form = outcome.baseline.form if outcome.baseline else ""
    search = search_folders()
    job = PairJob(outcome.variant, artifact, None, None, device, protocol, search, form=form, pairs=protocol.repeat)
    deadline = pair_deadline(protocol, stats.median(outcome.measurement.samples_ms))
    try:
        taken = list(measured(executor, job, sessions, deadline, undisturbed=True))
    except JobFailed as failure:
        raise Refused(f"run {best.run_id[:8]} of {best.workload}: {failure}") from failure
    return _rows(best, device, protocol, paired(outcome.variant.id, BASELINE, taken))


def _rows(best: Best, device: Device, protocol: Protocol, found: Paired) -> tuple[Row, Row]:
    outcome = best.stored.outcome
    family = load_family(outcome.variant.workload.family, search_folders())
    flops = family.flops(outcome.variant.workload)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def row(name: str, samples: Sequence[float], accuracy: Accuracy | None) -> Row:
        median = stats.median(samples)
        low, high = (stats.quantile(samples, q) for q in (0.2, 0.8))
        error = accuracy.relative_error if accuracy else None
        made = Row(name, best.workload, device.model, median, low, high, flops / median / 1e9, error)
        made = replace(made, warmup=protocol.warmup, repeat=protocol.repeat, sessions=len(found.sessions))
        return replace(made, contended=found.contended, measured_at=now)

    assert outcome.artifact is not None and outcome.measurement is not None
    kernel = row(f"TileLang {family.name.upper()}", found.candidate_ms, outcome.measurement.accuracy)
    baseline = f"{family.name.upper()} baseline ({family.baseline_name})"
    return row(baseline, found.reference_ms, outcome.measurement.baseline_accuracy), replace(
        kernel,
        max_abs_error=max((c.max_abs_error for c in found.checks), default=None),
        speedup_vs_baseline=found.speedup,
        speedup_low=found.low,
        speedup_high=found.high,
        tau=found.tau,
        prepack_ms=outcome.measurement.prepack_ms,
        mma_count=outcome.artifact.mma_count,
        config=" ".join(f"{k}={v}" for k, v in outcome.variant.config.items() if v is not None),
        run_id=best.run_id,
    )


def as_line(row: Row) -> str:
    """A row as a line of a job's log."""
    return ROW + json.dumps(asdict(row))


def from_line(line: str) -> Row | None:
    """The inverse, also where the cluster runs another version; None for any other line."""
    return from_dict(Row, json.loads(line.removeprefix(ROW))) if line.startswith(ROW) else None


def write(folder: Path, rows: Sequence[Row], text: str) -> tuple[Path, ...]:
    """The rows as a table for people, as CSV and as JSON, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    said = io.StringIO()
    writer = csv.DictWriter(said, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    contents = {TABLE: text, CSV: said.getvalue(), JSON: json.dumps([asdict(row) for row in rows], indent=2) + "\n"}
    for name, content in contents.items():
        atomic_write(folder / name, content.encode())
    return tuple(folder / name for name in contents)
