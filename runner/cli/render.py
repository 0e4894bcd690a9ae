"""Records -> text. On a terminal tables fit it; elsewhere they are as wide as they need, so that no column is cut."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runner import stats
from runner.accept import never_idle
from runner.compare import Comparison
from runner.evaluate import Row
from runner.executors.jobs import Job
from runner.gate import DRIFT_LIMIT
from runner.pairs import interval, told
from runner.planning import Asked, Planned
from runner.records import Artifact, Baseline, Outcome, RankedRow, to_dict
from runner.remote import Status
from runner.submit import Report, failures
from tracking.recorder import Replayed
from tracking.registry import Best, BestVersion
from tracking.store import Stored, StoredSweep

UNLIMITED = 100_000  # characters: a table takes what it needs of them

MOST_ROWS = 100
"""Lines of a ranking that are shown: nobody reads more, and laying out ten thousand takes half a minute."""

SILENT = 60.0  # seconds without a word from a sweep's driver, which speaks every few: it may be gone

PACKING_SHOWS = 0.05
"""Milliseconds of packing from which a report says so; less is what it takes to find that there is nothing to pack."""

STYLES = {
    "candidate": "green",
    "accepted": "bold green",
    "rejected": "red",
    "beaten": "dim",
    "superseded": "dim",
    "fail": "red",
    "pass": "green",
}


def console() -> Console:
    """Where output goes. Wide where it is no terminal: a log or a pipe has no width."""
    out = Console(highlight=False)
    return out if out.is_terminal else Console(highlight=False, width=UNLIMITED)


def show(parts: Sequence[Any]) -> None:
    """Print lines and tables in order."""
    out = console()
    for part in parts:
        out.print(part, markup=False, soft_wrap=True) if isinstance(part, str) else out.print(part)


def as_json(value: Any) -> None:
    click.echo(json.dumps(to_dict(value), indent=2))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for header in headers:
        last = header == headers[-1]
        made.add_column(header, justify="right" if header in right else "left", no_wrap=not last, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return made


def outcome_line(outcome: Outcome, swept: tuple[str, ...], flops: float) -> str:
    """`measured  b_interleave=4  21.93 ms  0.01224 TFLOPS  0.35x torch.mm  candidate: …`"""
    label = outcome.variant.label(swept) or "base"
    base = " (base)" if outcome.is_base else ""
    if outcome.measurement is None:
        return f"{outcome.status.value:<9} {label}{base}: {outcome.reason}"
    median = stats.median(outcome.measurement.samples_ms)
    against = f"  {ratio:.3f}x {_baseline_name(outcome)}" if (ratio := outcome.measurement.speedup_vs_baseline) else ""
    return (
        f"{outcome.status.value:<9} {label}{base}  {median:.4g} ms  {flops / median / 1e9:.4g} TFLOPS{against}"
        f"  {outcome.decision.value}: {outcome.reason}"
    )


def planned(plan: Planned) -> list[Any]:
    """The plan of a sweep: what would be measured, what is known, what is pruned and why."""
    rows = []
    for variant in plan.expansion.variants:
        label = variant.label(plan.spec.swept) or "base"
        name = f"{label} (base)" if variant.id == plan.expansion.base.id else label
        if variant.id in plan.pruned:
            rows.append((name, variant.id, "pruned", plan.pruned[variant.id]))
        elif variant.id in plan.known:
            stored = plan.known[variant.id]
            rows.append((name, variant.id, stored.outcome.status.value, f"run {stored.run_id[:8]}, {stored.written_at[:16]}"))
        else:
            rows.append((name, variant.id, "to do", ""))
    counts = f"{len(plan.missing)} to measure, {len(plan.known)} known, {len(plan.pruned)} pruned"
    return [*header(plan), *best_so_far(plan), table(("variant", "id", "state", "why"), rows), counts]


def header(asked: Asked) -> list[str]:
    """What is asked, of what, on what; and everything that a target or `auto` decided."""
    where = asked.devices[0].model if asked.devices else f"no {asked.spec.kind} device here: planned from the target's limits"
    question = f"{asked.spec.name}: {asked.spec.question}" if asked.spec.question else asked.spec.name
    return [question, f"{asked.spec.workload.name} on {where}", *_notes(asked.notes)]


def best_so_far(plan: Planned) -> list[str]:
    if plan.best is None:
        return []
    said = f"best so far: {plan.best.stored.outcome.variant.label(plan.spec.swept)}, run {plan.best.run_id[:8]}"
    if plan.best.protocol != plan.spec.protocol.key:
        said += f", under protocol {plan.best.protocol}: not compared in numbers; `runner accept` measures both"
    return [said]


def replayed(late: Replayed) -> str:
    """What became of records that an earlier command could not bring to MLflow."""
    brought = f"brought {late.records} records of sweep {late.sweep_id} to MLflow, which an earlier command could not"
    if not late.problem:
        return brought
    return f"{f'{brought}; others' if late.records else f'records of sweep {late.sweep_id}'} are not there: {late.problem}"


def report(found: Report, flops: float) -> list[Any]:
    """What a sweep came to: the ranked table, the failures by reason, where to look, what to type next."""
    swept = found.sweep.info.swept
    baseline = next((r.outcome.baseline for r in found.rows if r.outcome.baseline), None)
    parts: list[Any] = [ranking(found.rows, swept, flops, baseline), *_not_shown(found.rows)]
    parts += [_baseline_line(baseline, found)] if baseline else []
    parts += [never_idle(found.sweep.info.file)] if found.all_disturbed else []
    parts += [f"note: {note}" for note in found.notes]
    if found.others:
        parts += [f"not measured, {len(found.others)}:", *(f"  {n} x {why}" for why, n in failures(found).items())]
    row = found.candidate
    if found.interrupted:
        parts += ["", f"interrupted; `sweep resume {found.sweep.info.id}` measures the rest"]
    if row is not None:
        parts += [
            "",
            f"candidate: {row.outcome.variant.label(swept) or 'base'}",
            f"  runner accept {row.run_id[:8] or row.outcome.variant.id}",
        ]
    elif found.rows:
        best = found.sweep.best
        stands = f"the best stands, {best.label}" if best else "nothing that passes every rule was shown to be faster"
        parts += ["", f"no candidate: {stands}"]
    return parts


def ranking(rows: Sequence[RankedRow], swept: tuple[str, ...], flops: float, baseline: Baseline | None) -> Table:
    name = baseline.name if baseline else "baseline"
    headers = (
        "#",
        *swept,
        "median ms",
        "p20–p80",
        "TFLOPS",
        f"x {name}",
        "paired",
        "max err",
        "mma",
        "decision",
        "run",
        "reason",
    )
    lines = [_row(n, row, swept, flops) for n, row in enumerate(rows[:MOST_ROWS], 1)]
    return table(headers, lines, right=headers[: len(swept) + 8])


def _not_shown(rows: Sequence[Any]) -> list[str]:
    left = len(rows) - MOST_ROWS
    return [f"… and {left} more: ranking.json of the sweep's own run in MLflow has them all"] if left > 0 else []


def _row(number: int, row: RankedRow, swept: tuple[str, ...], flops: float) -> tuple[str, ...]:
    outcome, measurement = row.outcome, row.outcome.measurement
    assert measurement is not None
    median = stats.median(measurement.samples_ms)
    low, high = (stats.quantile(measurement.samples_ms, q) for q in (0.2, 0.8))
    count = outcome.artifact.mma_count if outcome.artifact else None
    return (
        str(number),
        *(str(outcome.variant.config.get(k, "")) for k in swept),
        f"{median:.4g}",
        f"{low:.4g}–{high:.4g}",
        f"{flops / median / 1e9:.4g}",
        f"{ratio:.3f}" if (ratio := measurement.speedup_vs_baseline) else "",
        told(row.paired) if row.paired else ("base" if outcome.is_base else ""),
        f"{measurement.max_abs_error:.3g}",
        "n/a" if count is None else str(count),
        outcome.decision.value,
        row.run_id[:8],
        f"{'from before; ' if row.reused else ''}{outcome.reason}",
    )


def bests(found: Sequence[Best]) -> Table:
    rows = [
        (
            b.workload,
            b.device_model,
            f"v{b.version}",
            _median_of(b.stored),
            b.stored.label or "base",
            b.run_id[:8],
            b.accepted_at[:16],
        )
        for b in found
    ]
    return table(("workload", "device", "best", "median ms", "config", "run", "accepted"), rows)


def history(lines: Sequence[BestVersion]) -> Table:
    """Every version that was ever best, oldest first: the curve."""
    rows = [
        (
            f"v{line.version}{' *' if line.is_best else ''}",
            f"{line.latency_ms:.4g}",
            _said_in_pairs(line.paired_speedup, line.paired_low, line.paired_high, line.paired_sessions, line.paired_tau)
            or "first",
            f"{line.speedup_vs_baseline:.3f}" if line.speedup_vs_baseline else "",
            line.decision.value,
            line.run_id[:8],
            f"{line.accepted_at[:16]} {line.accepted_by}",
            line.label or "base",
        )
        for line in lines
    ]
    return table(("version", "median ms", "paired speedup", "x baseline", "decision", "run", "accepted", "config"), rows)


def sweeps(found: Sequence[StoredSweep]) -> Table:
    rows = [
        (
            s.id,
            s.name,
            "interrupted" if s.interrupted else s.status.lower(),
            s.started_at[:16],
            _counted(s),
            f"{best:.4g}" if (best := s.best_latency_ms or (s.standing.best_ms if s.standing else None)) else "",
            f"{s.workload} on {s.device_model}",
        )
        for s in found
    ]
    return table(("sweep", "name", "state", "started", "variants", "best ms", "workload"), rows)


def jobs(found: Sequence[Job]) -> Table:
    rows = [(j.sweep_id, j.name, j.status.lower(), j.submitted_at[:16], _said(j)) for j in found]
    return table(("sweep", "name", "job", "submitted", "said"), rows)


def _said(job: Job) -> str:
    """Why a job waits or failed."""
    return "" if job.status in ("RUNNING", "SUCCEEDED") else job.message


def status(found: Status, rows: Sequence[Mapping[str, Any]], now: datetime) -> list[Any]:
    """How a sweep stands: the record's line, what its driver said last, its job on a cluster, and its ranking once it has one."""
    parts: list[Any] = []
    if found.recorded is not None:
        parts += [sweeps([found.recorded]), *standing(found.recorded, now, found.abandoned)]
    if found.address is not None and found.lost is None:
        parts += _job(found, found.address)
    if rows:
        lines = [[str(v) if v is not None else "" for v in row.values()] for row in rows[:MOST_ROWS]]
        parts += [table(list(rows[0]), lines), *_not_shown(rows)]
    if found.record is not None and found.recorded is not None:
        parts.append(found.record.ui_hint(found.recorded.experiment_id, found.recorded.id))
    return parts


def _job(found: Status, address: str) -> list[str]:
    """A sweep's job on a cluster, and what to do where it ended too early."""
    job, recorded = found.job, found.recorded
    missing = recorded is not None and recorded.status != "FINISHED"
    if job is None:
        return [f"{address} has no job of it" + (f": unless it runs elsewhere, {_resume(found)}" if missing else "")]
    why = f": {_said(job)}" if _said(job) else ""
    lines = [f"{job.name} {job.sweep_id}: job {job.id} {job.status.lower()}{why}"]
    if recorded is None and found.record is None:
        lines.append("its record is not known here: set MLFLOW_TRACKING_URI to the MLflow server of the cluster")
    if missing and job.ended:
        lines.append(("its driver ended before it closed the record: " if found.abandoned else "") + _resume(found))
    return lines


def _resume(found: Status) -> str:
    assert found.recorded is not None
    return f"`sweep resume {found.recorded.id}` measures what is missing"


def _counted(sweep: StoredSweep) -> str:
    """How many variants ended how, and of a sweep that runs how many are to come."""
    known = {"known": sweep.standing.known, **sweep.standing.counts} if sweep.standing else sweep.counts
    counted = " ".join(f"{n} {status}" for status, n in known.items() if n)
    return f"{counted} of {sweep.planned}" if sweep.standing else counted or f"{sweep.planned} planned"


def standing(sweep: StoredSweep, now: datetime, abandoned: bool = False) -> list[str]:
    """How a sweep stands that is not closed: what it has, how fast it goes, and whether anybody is at it if that is not known."""
    found = sweep.standing
    gone = [f"its driver is gone: `sweep resume {sweep.id}` measures the rest"] if sweep.interrupted and not abandoned else []
    if found is None:
        return gone
    silent = (now - datetime.fromisoformat(found.updated_at)).total_seconds()
    left = found.seconds_left(sweep.planned)
    lines = [f"best so far {found.best_ms:.4g} ms: {found.best}"] if found.best_ms is not None else []
    lines += [f"{device}: {number} timed" for device, number in sorted(found.devices.items())]
    if abandoned or gone:
        return [*lines, *gone]
    if silent > SILENT:
        lines += [f"last heard of {_span(silent)} ago; if its driver is gone, `sweep resume {sweep.id}` measures the rest"]
    elif left is not None:
        lines += [f"about {_span(left)} left"]
    return lines


def _span(seconds: float) -> str:
    """In the unit that leaves a small number."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def shown(stored: Stored) -> list[Any]:
    """One run: what it is, how it ran, and each rule's verdict."""
    outcome = stored.outcome
    variant, measurement = outcome.variant, outcome.measurement
    parts: list[Any] = [
        f"run {stored.run_id}  variant {variant.id}  sweep {stored.sweep_name} {stored.sweep_id}  {stored.written_at[:16]}",
        f"{variant.workload.name} on {stored.device_model}, {variant.target}, protocol {variant.protocol}",
        f"{outcome.status.value}, {stored.decision.value}: {outcome.reason}",
        _attempt(outcome),
        "",
        table(("knob", "value"), [(k, str(v)) for k, v in variant.config.items()]),
    ]
    if measurement is not None:
        state = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{k} {v}" for k, v in measurement.state.items())
        rows = [("median ms", _median_of(stored)), ("samples", str(len(measurement.samples_ms)))]
        if (ratio := measurement.speedup_vs_baseline) is not None:
            rows += [(f"x {_baseline_name(outcome)}", f"{ratio:.4f} by {len(measurement.reference_ms)} calls among its own")]
        rows += [("in pairs", told(stored.paired))] if stored.paired else []
        for name, accuracy in (("", measurement.accuracy), (f" of {_baseline_name(outcome)}", measurement.baseline_accuracy)):
            rows += [(f"relative error{name}", f"{accuracy.relative_error:.3g}")] if accuracy else []
        rows += [("max_abs_error", f"{measurement.max_abs_error:.6g}"), ("prepack ms", f"{measurement.prepack_ms:.4g}")]
        rows += [("first call ms", f"{measurement.first_call_ms:.4g}")] if measurement.first_call_ms else []
        rows += [("outputs equal", f"{measurement.equal} of {measurement.calls}")] if measurement.calls else []
        rows += [("calls at a time", str(measurement.batch))] if measurement.batch > 1 else []
        rows += [("taken again", f"{measurement.exposed} samples, for launches that showed")] if measurement.exposed else []
        rows += [("cache", measurement.cache), ("state", state)]
        rows += [("versions", ", ".join(f"{k} {v}" for k, v in measurement.versions.items()))]
        parts.append(table(("measured", measurement.measured_at[:16]), rows))
    if outcome.artifact is not None:
        parts.append(source_verify(outcome.artifact))
    if outcome.verdicts:
        parts.append(verdicts(outcome))
    if outcome.failure is not None and outcome.failure.output:
        parts += ["it printed:", outcome.failure.output]
    return parts


def source_verify(artifact: Artifact) -> Table:
    """What the generated code shows: matrix instruction, launch bounds, how inputs are read, what the compiler used."""
    matrix = (
        "none on this target" if artifact.mma_count is None else f"{artifact.mma_count} x {artifact.mma_instruction or 'none'}"
    )
    rows = [("matrix instruction", matrix), *((k.replace("_", " "), str(v)) for k, v in artifact.evidence.items())]
    rows += [(k.replace("_", " "), str(v)) for k, v in artifact.resources.items()]
    return table(("source verify", f"compiled in {artifact.compile_seconds:.1f} s"), rows)


def evaluation(rows: Sequence[Row]) -> Table:
    """The baseline's row and the kernel's, in pairs of rows."""
    headers = ("", "workload", "device", "median ms", "TFLOPS", "error to float64", "max err", "x baseline, paired", "note")
    return table(headers, [_evaluated(row) for row in rows], right=headers[3:7])


def _evaluated(row: Row) -> tuple[str, ...]:
    paired = _said_in_pairs(row.speedup_vs_baseline, row.speedup_low, row.speedup_high, row.sessions, row.tau)
    packed = f"packed in {row.prepack_ms:.3g} ms, not timed" if row.prepack_ms and row.prepack_ms > PACKING_SHOWS else ""
    notes = "; ".join(filter(None, (f"run {row.run_id[:8]}" if row.run_id else "", packed, row.contended or "")))
    errors = ("" if error is None else f"{error:.3g}" for error in (row.relative_error, row.max_abs_error))
    return row.name, row.workload, row.device, f"{row.latency_ms_median:.4g}", f"{row.tflops:.4g}", *errors, paired, notes


def _said_in_pairs(speedup: float | None, low: float | None, high: float | None, sessions: int, tau: float | None) -> str:
    """As `told` of the pairs themselves, which are not at hand; empty where there are none."""
    if speedup is None or low is None or high is None:
        return ""
    return interval(speedup, low, high, sessions, tau)


def comparison(found: Comparison, source: bool) -> list[Any]:
    """Two runs: what differs in their configs, every number with its change, and the difference of the source."""
    one, other = found.one[:8], found.other[:8]
    parts: list[Any] = [f"not comparable: {found.comparable}"] if found.comparable else []
    rows = [(name, str(a), str(b)) for name, (a, b) in found.config.items()]
    parts.append(table(("knob", one, other), rows) if rows else "the configs are the same")
    numbers = [(m.name, _number(m.one), _number(m.other), "" if m.change is None else f"{m.change:+.2%}") for m in found.metrics]
    parts.append(table(("metric", one, other, "change"), numbers, right=(one, other, "change")))
    if source:
        parts.append(found.source or "the generated source is the same")
    return parts


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def as_text(part: Any) -> str:
    """A table as plain text, as wide as it needs."""
    out = Console(file=io.StringIO(), width=UNLIMITED, highlight=False, color_system=None)
    out.print(part)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def _attempt(outcome: Outcome) -> str:
    """`attempt 1; deadlines: build 300 s, measure 120 s`."""
    deadlines = ", ".join(f"{what} {seconds:.0f} s" for what, seconds in outcome.deadlines.items())
    return f"attempt {outcome.attempt}" + (f"; deadlines: {deadlines}" if deadlines else "")


def verdicts(outcome: Outcome) -> Table:
    return table(("rule", "verdict", "evidence"), [(v.rule, v.ruling.value, v.evidence) for v in outcome.verdicts])


def _baseline_line(baseline: Baseline, found: Report) -> str:
    drift = found.drifts.get(baseline.device.key)
    said = f"{baseline.name} on {baseline.device.model}: {stats.median(baseline.before_ms):.4g} ms"
    said += f" as {baseline.form}, the fastest of {len(baseline.forms)} ways" if len(baseline.forms) > 1 else ""
    said += f", disturbed: {baseline.contended}" if baseline.contended else ""
    if drift is None:
        return said
    drifted = "; the device has drifted, which its calls among each variant's own follow" if abs(drift) > DRIFT_LIMIT else ""
    return f"{said}, {drift:+.1%} after the sweep{drifted}"


def _notes(notes: Sequence[str]) -> list[str]:
    """One line for each thing that decided something: `on cpu: M 131072 -> 512, N 2048 -> 512`."""
    grouped: dict[str, list[str]] = {}
    for note in notes:
        who, _, what = note.partition(": ")
        grouped.setdefault(who, []).append(what)
    return [f"note: {who}: {', '.join(what)}" for who, what in grouped.items()]


def _baseline_name(outcome: Outcome) -> str:
    return outcome.baseline.name if outcome.baseline else "baseline"


def _median_of(stored: Stored) -> str:
    measurement = stored.outcome.measurement
    return f"{stats.median(measurement.samples_ms):.4g}" if measurement else ""
