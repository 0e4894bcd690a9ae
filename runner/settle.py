"""What became of a variant, as an outcome. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runner.errors import JobFailed
from runner.gate import Reference, decide, judge
from runner.records import Acceptance, Artifact, Baseline, Decision, Failure, Measurement, Outcome, Status, Variant


@dataclass(frozen=True)
class Trial:
    """A variant in its sweep: which attempt this is, and how long its jobs were given."""

    variant: Variant
    is_base: bool
    attempt: int = 1
    deadlines: Mapping[str, float] = field(default_factory=dict)


def pruned(trial: Trial, reason: str) -> Outcome:
    return Outcome(trial.variant, Status.PRUNED, reason, Decision.REJECTED, is_base=trial.is_base)


def failed(trial: Trial, failure: JobFailed, artifact: Artifact | None = None) -> Outcome:
    """`artifact` where the build was done: the source of a kernel that crashes is worth keeping."""
    return Outcome(
        trial.variant,
        Status(failure.kind.value),
        failure.detail,
        Decision.REJECTED,
        artifact=artifact,
        failure=Failure(failure.detail, failure.output),
        is_base=trial.is_base,
        attempt=trial.attempt,
        deadlines=trial.deadlines,
    )


def cancelled(trial: Trial) -> Outcome:
    reason = "interrupted before it was measured"
    return Outcome(
        trial.variant,
        Status.CANCELLED,
        reason,
        Decision.REJECTED,
        failure=Failure(reason),
        is_base=trial.is_base,
        attempt=trial.attempt,
        deadlines=trial.deadlines,
    )


def measured(
    trial: Trial,
    artifact: Artifact,
    measurement: Measurement,
    baseline: Baseline,
    acceptance: Acceptance,
    flops: float,
    reference: Reference | None,
) -> Outcome:
    """Judged by every rule."""
    verdicts = judge(trial.variant, artifact, measurement, baseline, acceptance, flops, reference)
    decision, reason = decide(verdicts)
    return Outcome(
        trial.variant,
        Status.MEASURED,
        reason,
        decision,
        verdicts,
        artifact,
        measurement,
        baseline,
        is_base=trial.is_base,
        attempt=trial.attempt,
        deadlines=trial.deadlines,
    )


def duplicate(trial: Trial, artifact: Artifact, twin: Outcome) -> Outcome:
    """The generated source is the twin's, so its measurement and verdicts are taken over."""
    return Outcome(
        trial.variant,
        Status.DUPLICATE,
        _as_of(twin),
        twin.decision,
        twin.verdicts,
        artifact,
        twin.measurement,
        twin.baseline,
        duplicate_of=twin.variant.id,
        is_base=trial.is_base,
        attempt=trial.attempt,
        deadlines=trial.deadlines,
    )


def as_twin(outcome: Outcome, twin: Outcome) -> Outcome:
    """A duplicate with what was decided of its twin since."""
    return replace(outcome, verdicts=twin.verdicts, decision=twin.decision, reason=_as_of(twin))


def _as_of(twin: Outcome) -> str:
    return f"same generated source as {twin.variant.label()}, whose measurement this is: {twin.reason}"


def without_binary(outcome: Outcome) -> Outcome:
    """What the driver remembers of an outcome that is recorded: thousands of kernels do not belong in its memory."""
    if outcome.artifact is None:
        return outcome
    return replace(outcome, artifact=replace(outcome.artifact, blob=b"", source="", log=""))
