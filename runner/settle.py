"""What became of a variant, as an outcome. Pure."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from runner import stats
from runner.errors import JobFailed
from runner.gate import Reference, decide, judge
from runner.records import Acceptance, Artifact, Baseline, Decision, Failure, Measurement, Outcome, Status, Variant


@dataclass(frozen=True)
class Trial:
    """A variant in its sweep: the how-manieth try this was, and how long its jobs were given."""

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
    variant = trial.variant
    dtype = variant.workload.dtype
    verdicts = judge(measurement, artifact, acceptance, variant.target, dtype, flops, reference, variant.id, baseline)
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
        is_base=trial.is_base,
        attempt=trial.attempt,
        deadlines=trial.deadlines,
    )


def duplicate(trial: Trial, artifact: Artifact, twin: Outcome) -> Outcome:
    """The generated source is the twin's, so its measurement and verdicts are taken over."""
    reason = f"same generated source as {twin.variant.label()}, whose measurement this is: {twin.reason}"
    return Outcome(
        trial.variant,
        Status.DUPLICATE,
        reason,
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


def remembered(outcome: Outcome) -> Outcome:
    """What the driver keeps of an outcome that is recorded, for the table at the end: thousands take little of its memory.

    The samples are few, and have the same median and quantiles; what a table does not show is left out.
    """
    artifact, measurement = outcome.artifact, outcome.measurement
    if artifact is not None:
        artifact = replace(artifact, blob=b"", source="", log="", resources={}, evidence={})
    if measurement is not None:
        worst = sorted(measurement.checks, key=lambda check: check.max_abs_error)[-1:]
        device = outcome.baseline.device if outcome.baseline else measurement.device  # one for all
        measurement = replace(
            measurement,
            device=device if device == measurement.device else measurement.device,
            samples_ms=stats.condensed(measurement.samples_ms),
            checks=tuple(worst),
            state={},
            versions={},
        )
    failure = replace(outcome.failure, output="") if outcome.failure else None
    return replace(outcome, artifact=artifact, measurement=measurement, failure=failure)


def packed(outcome: Outcome) -> bytes:
    """An outcome without its binary in a kilobyte or two, with every sample: for a twin that may come."""
    if outcome.artifact is not None:
        outcome = replace(outcome, artifact=replace(outcome.artifact, blob=b"", source="", log=""))
    return zlib.compress(pickle.dumps(outcome))


def unpacked(data: bytes) -> Outcome:
    found: Outcome = pickle.loads(zlib.decompress(data))
    return found
