"""What became of a variant, as an outcome. Pure."""

from __future__ import annotations

from runner.errors import JobFailed
from runner.gate import Reference, decide, judge
from runner.records import Acceptance, Artifact, Baseline, Decision, Failure, Measurement, Outcome, Status, Variant


def pruned(variant: Variant, reason: str, is_base: bool) -> Outcome:
    return Outcome(variant, Status.PRUNED, reason, Decision.REJECTED, is_base=is_base)


def failed(variant: Variant, failure: JobFailed, is_base: bool, attempt: int, artifact: Artifact | None = None) -> Outcome:
    """`artifact` where the build was done: the source of a kernel that crashes is worth keeping."""
    kept = Failure(failure.detail, failure.output)
    status = Status(failure.kind.value)
    return Outcome(
        variant, status, failure.detail, Decision.REJECTED, artifact=artifact, failure=kept, is_base=is_base, attempt=attempt
    )


def cancelled(variant: Variant, is_base: bool, attempt: int) -> Outcome:
    reason = "interrupted before it was measured"
    return Outcome(
        variant, Status.CANCELLED, reason, Decision.REJECTED, failure=Failure(reason), is_base=is_base, attempt=attempt
    )


def measured(
    variant: Variant,
    artifact: Artifact,
    measurement: Measurement,
    baseline: Baseline,
    acceptance: Acceptance,
    flops: float,
    reference: Reference | None,
    is_base: bool,
    attempt: int,
) -> Outcome:
    """Judged by every rule."""
    verdicts = judge(measurement, artifact, acceptance, variant.target, variant.workload.dtype, flops, reference, variant.id)
    decision, reason = decide(verdicts)
    return Outcome(
        variant,
        Status.MEASURED,
        reason,
        decision,
        verdicts,
        artifact,
        measurement,
        baseline,
        is_base=is_base,
        attempt=attempt,
    )


def duplicate(variant: Variant, artifact: Artifact, twin: Outcome, is_base: bool, attempt: int) -> Outcome:
    """The generated source is the twin's, so its measurement and verdicts are taken over."""
    reason = f"same generated source as {twin.variant.label()}, whose measurement this is: {twin.reason}"
    return Outcome(
        variant,
        Status.DUPLICATE,
        reason,
        twin.decision,
        twin.verdicts,
        artifact,
        twin.measurement,
        twin.baseline,
        duplicate_of=twin.variant.id,
        is_base=is_base,
        attempt=attempt,
    )
