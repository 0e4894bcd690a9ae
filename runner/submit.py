"""Runs a planned sweep and keeps its record: outcomes go to the store one by one, what is known at the end is added there."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from runner import stats
from runner.errors import InfrastructureLost
from runner.executors.base import Executor
from runner.finals import known_reference
from runner.gate import DRIFT_LIMIT, Reference, decide, judge_base, judge_finals, relative, with_verdict
from runner.interrupt import interrupt
from runner.pipeline import run
from runner.records import TIMED, Decision, Outcome, Paired, RankedRow, Ruling, Status, Verdict
from runner.settle import as_twin, without_binary
from runner.sweep import Progress, Result, Sweep
from runner.targets.base import backend
from tracking.recorder import Recorder
from tracking.store import Store

DEVICES_PER_WRITER = 8
"""Devices whose outcomes one process brings to MLflow with ease; with fewer the driver does it itself."""

CPUS_PER_WRITER = 2  # of the driver's machine, where kernels may be built too
MOST_WRITERS = 8  # of 250 MiB each


@dataclass(frozen=True)
class Report:
    """A sweep at its end. `rows` are the timed variants, best first; `others` the rest."""

    sweep: Sweep
    rows: tuple[RankedRow, ...]
    others: tuple[tuple[str, Outcome], ...]  # with their run ids
    drifts: Mapping[tuple[str, int], float]
    notes: tuple[str, ...]
    interrupted: bool
    parent: str  # MLflow run id; empty where nothing was started
    pending: int = 0  # records that MLflow has not got yet

    @property
    def all_disturbed(self) -> bool:
        """Whether nothing but other processes kept every single variant from being a contender."""
        broken = [{v.rule for v in row.outcome.verdicts if v.ruling is Ruling.FAIL} - {"faster"} for row in self.rows]
        return bool(broken) and all(rules == {"alone"} for rules in broken)

    @property
    def candidate(self) -> RankedRow | None:
        """The variant to accept: the first that passes every rule and is not the best already."""
        best = self.sweep.best
        for row in self.rows:
            if row.outcome.decision is Decision.CANDIDATE and not (best and best.variant_id == row.outcome.variant.id):
                return row
        return None


def submit(
    sweep: Sweep,
    store: Store,
    runs: Mapping[str, str],
    executor: Executor,
    watch: Callable[[Progress], None],
    tell: Callable[[Outcome], None],
    say: Callable[[str], None],
) -> Report:
    """Measure what is missing. `runs` are the run ids of what is known. Raises InfrastructureLost when all devices are gone.

    Every outcome is recorded, and then told, as soon as it is known; whatever ends this early loses nothing measured.
    """
    outcomes: dict[str, Outcome] = dict(sweep.known)
    with interrupt.held_back():
        recorder = Recorder(store, sweep.info, len(sweep.variants), sweep.flops, say, len(sweep.known), _writers(sweep))

        def emit(outcome: Outcome) -> None:
            recorder.write(outcome)
            outcomes[outcome.variant.id] = without_binary(outcome)
            tell(outcome)

        def report(result: Result, drifts: Mapping[tuple[str, int], float]) -> Report:
            run_ids = {i: runs.get(i) or recorder.run_id(o) for i, o in outcomes.items()}
            return report_of(sweep, outcomes, run_ids, result, drifts, recorder.parent)

        try:
            result = run(sweep, executor, emit, watch)
            drifts = _drifts(result)
            before = dict(outcomes)
            outcomes.update(decided(sweep, result, outcomes))
            _amend(sweep, recorder, result, drifts, before, outcomes, runs)
        except BaseException as error:
            _close_early(recorder, report(Result(reference=sweep.best), {}))
            if isinstance(error, InfrastructureLost):
                kept = f"what was measured is kept, and `sweep resume {sweep.info.id}` measures the rest"
                raise InfrastructureLost(f"{error}; {kept}") from error
            raise
        found = report(result, drifts)
        recorder.close(found.rows, failures(found), summary(found), "KILLED" if result.interrupted else "FINISHED")
        found = report(result, drifts)  # by now MLflow has what it may have lacked before
        if recorder.pending:
            waiting = (
                f"{recorder.pending} records wait for MLflow; the next `sweep submit` or `sweep resume` here brings them there"
            )
            return replace(found, notes=(*found.notes, waiting), pending=recorder.pending)
        return found


def _writers(sweep: Sweep) -> int:
    """How many processes record the outcomes beside this one; none where nothing may compute beside what is timed."""
    if backend(sweep.info.target.kind).compiles_disturb_timing:
        return 0
    cpus = len(os.sched_getaffinity(0))
    return min(len(sweep.devices) // DEVICES_PER_WRITER, max(1, cpus // CPUS_PER_WRITER), MOST_WRITERS)


def _close_early(recorder: Recorder, report: Report) -> None:
    """End the record as well as may be: what ended the sweep may keep this from being written too."""
    with contextlib.suppress(InfrastructureLost):
        recorder.close(report.rows, failures(report), f"ended early; {summary(report)}", "FAILED")


def taken_over(sweep: Sweep, runs: Mapping[str, str]) -> Report:
    """The report of a sweep whose every variant is known: nothing is started and nothing is written."""
    result = Result(reference=known_reference(sweep))
    return report_of(sweep, decided(sweep, result, sweep.known), runs, result, {})


def report_of(
    sweep: Sweep,
    outcomes: Mapping[str, Outcome],
    run_ids: Mapping[str, str],
    result: Result,
    drifts: Mapping[tuple[str, int], float],
    parent: str = "",
) -> Report:
    """The ranked table of everything that the sweep's file names, measured now or known from before."""
    finals = _pairs(sweep, result)
    rows = [RankedRow(run_ids[i], o, finals.get(i), reused=i in sweep.known) for i, o in outcomes.items() if o.status in TIMED]
    others = [(run_ids[i], o) for i, o in outcomes.items() if o.status not in TIMED]
    ranked = sorted(rows, key=lambda row: _place(row, result.reference))
    return Report(sweep, tuple(ranked), tuple(others), drifts, tuple(result.notes), result.interrupted, parent)


def failures(report: Report) -> dict[str, int]:
    """How often each reason kept a variant from being measured."""
    return dict(Counter(f"{o.status.value}: {o.reason}" for _, o in report.others).most_common())


def summary(report: Report) -> str:
    """Two lines at most: what was tried, and what came of it."""
    tried = f"{len(report.rows)} timed, {len(report.others)} not"
    row = report.candidate
    if row is None:
        return f"{tried}; no candidate: nothing that passes every rule beat in pairs what there is"
    return f"{tried}; candidate {row.outcome.variant.label(report.sweep.info.swept) or 'base'}: {row.outcome.reason}"


def decided(sweep: Sweep, result: Result, outcomes: Mapping[str, Outcome]) -> dict[str, Outcome]:
    """What the end of a sweep says of everything that was timed: who won in pairs, who was beaten, who never played in full."""
    changed = _verdicts_at_end(sweep, result, outcomes)
    found: dict[str, Outcome] = dict(outcomes)
    for variant_id, verdict in changed.items():
        verdicts = with_verdict(outcomes[variant_id].verdicts, verdict)
        decision, reason = decide(verdicts)
        if outcomes[variant_id].decision is not Decision.ACCEPTED:
            found[variant_id] = replace(outcomes[variant_id], verdicts=verdicts, decision=decision, reason=reason)
    for variant_id, outcome in found.items():
        twin = found.get(outcome.duplicate_of)
        if outcome.status is Status.DUPLICATE and twin is not None and outcome.duplicate_of in changed:
            found[variant_id] = as_twin(outcome, twin)
    return found


def _verdicts_at_end(sweep: Sweep, result: Result, outcomes: Mapping[str, Outcome]) -> dict[str, Verdict]:
    """By variant id, of those that only the end of the sweep tells of."""
    reference, acceptance = result.reference, sweep.info.acceptance
    if reference is None:
        return {}
    unproven = {i: Verdict("faster", Ruling.NOT_APPLICABLE, said) for i, said in result.unproven.items()}
    played = {i: p for i, p in _pairs(sweep, result).items() if i in outcomes and outcomes[i].decision is not Decision.REJECTED}
    paired = judge_finals(played, acceptance, reference.role)
    found = {i: v for i, v in {**unproven, **paired, **result.refused}.items() if i in outcomes}
    if reference.role == "base" and not result.interrupted:
        beaten = any(verdict.ruling is Ruling.PASS for verdict in paired.values())
        kernels = [o for o in outcomes.values() if o.measurement and reference.is_kernel_of(o.variant, o.artifact)]
        found |= {o.variant.id: judge_base(beaten, reference.role) for o in kernels}
    return found


def _pairs(sweep: Sweep, result: Result) -> dict[str, Paired]:
    """Of all that ever played against this reference and were not refused since."""
    found = {**sweep.pairs, **result.finals}
    return {i: paired for i, paired in found.items() if i not in result.refused}


def _place(row: RankedRow, reference: Reference | None) -> tuple[bool, float]:
    """What to sort by: who won in pairs before all others, and each by how many times the reference's speed it has.

    That is the paired speedup of one that played in full, and of one that did not what its own calls of the baseline say.
    """
    assert row.outcome.measurement is not None
    if row.paired is not None:
        return row.outcome.decision not in (Decision.CANDIDATE, Decision.ACCEPTED), -row.paired.speedup
    if reference is not None and row.outcome.variant.id == reference.variant_id:
        return True, -1.0
    own = row.outcome.measurement.speedup_vs_baseline or 0.0
    return True, -(relative(row.outcome.measurement, reference) or own)


def _amend(
    sweep: Sweep,
    recorder: Recorder,
    result: Result,
    drifts: Mapping[tuple[str, int], float],
    before: Mapping[str, Outcome],
    outcomes: Mapping[str, Outcome],
    runs: Mapping[str, str],
) -> None:
    """Write what only the end of a sweep tells: paired speedups, decisions that are others than `before`, a baseline's drift."""
    for variant_id, outcome in outcomes.items():
        if outcome.measurement is None:
            continue
        paired = result.finals.get(variant_id)
        drift = None if variant_id in sweep.known else drifts.get(outcome.measurement.device.key)
        if drift is not None and abs(drift) <= DRIFT_LIMIT:
            drift = None
        if paired is not None or drift is not None or outcome != before[variant_id]:
            recorder.amend(outcome, runs.get(variant_id, ""), paired, drift)


def _drifts(result: Result) -> dict[tuple[str, int], float]:
    return {k: stats.drift(b.before_ms, b.after_ms) for k, b in result.baselines.items() if b.after_ms}
