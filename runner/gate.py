"""Measurement + reference -> verdicts -> decision. Pure; every rule answers with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner import stats
from runner.records import (
    Acceptance,
    Artifact,
    Baseline,
    Decision,
    Device,
    Measurement,
    Outcome,
    Paired,
    Ruling,
    Target,
    Verdict,
)

DRIFT_LIMIT = 0.03
"""A baseline that moved more than this between before and after makes every result of its device suspect."""


@dataclass(frozen=True)
class Reference:
    """What `faster` compares with: the best of this workload on this device model, or the sweep's own base."""

    role: str  # "best" or "base"
    variant_id: str
    label: str
    median_ms: float
    baseline: Baseline | None = None  # of the device that it was measured on

    @classmethod
    def of(cls, role: str, outcome: Outcome, label: str) -> Reference:
        """An outcome that was timed, as what others are compared with."""
        assert outcome.measurement is not None
        return cls(role, outcome.variant.id, label, stats.median(outcome.measurement.samples_ms), outcome.baseline)


def beside(measurement: Measurement, baseline: Baseline | None, reference: Reference | None) -> float:
    """The median in milliseconds, to compare with the reference's.

    Where the reference was measured on another card, it is what this would be there: each is taken as a share of its own
    card's baseline, since two cards of a model are never equally fast.
    """
    median = stats.median(measurement.samples_ms)
    theirs = reference.baseline if reference is not None else None
    if baseline is None or theirs is None or theirs.device.key == baseline.device.key:
        return median
    return median * stats.median(theirs.before_ms) / stats.median(baseline.before_ms)


def judge(
    measurement: Measurement,
    artifact: Artifact,
    acceptance: Acceptance,
    target: Target,
    dtype: str,
    flops: float,
    reference: Reference | None,
    own_id: str,
    baseline: Baseline | None = None,
) -> tuple[Verdict, ...]:
    """Every rule's verdict. `reference` None: nothing to compare with, which `faster` says. `baseline` is of the same device."""
    median = stats.median(measurement.samples_ms)
    return (
        _correct(measurement, acceptance),
        _mma(artifact, acceptance, target),
        _plausible(flops / median / 1e9, measurement.device, dtype),
        _stable(measurement.samples_ms, acceptance),
        _alone(measurement.contended, acceptance),
        _faster(median, beside(measurement, baseline, reference), reference, acceptance, own_id),
    )


def decide(verdicts: Sequence[Verdict]) -> tuple[Decision, str]:
    """A candidate fails no rule; a rejected one's reason names each rule that it failed."""
    failed = [v for v in verdicts if v.ruling is Ruling.FAIL]
    if failed:
        return Decision.REJECTED, "; ".join(f"{v.rule}: {v.evidence}" for v in failed)
    return Decision.CANDIDATE, next((v.evidence for v in verdicts if v.rule == "faster"), "passes every rule")


def judge_pair(paired: Paired, acceptance: Acceptance, role: str) -> Verdict:
    """`faster`, decided by an alternating measurement: the whole interval must clear `min_speedup`."""
    said = f"paired speedup over the {role} {paired.speedup:.4f} [{paired.low:.4f}, {paired.high:.4f}] at {paired.confidence:.0%}"
    ok = paired.low > acceptance.min_speedup
    disturbed = f"; {paired.contended}" if paired.contended else ""
    clears = f"{'clears' if ok else 'does not clear'} {acceptance.min_speedup:g}"
    return Verdict("faster", _ruling(ok), f"{said}, {clears}{disturbed}")


def _correct(measurement: Measurement, acceptance: Acceptance) -> Verdict:
    worst = max(measurement.checks, key=lambda c: c.max_abs_error)
    ok = worst.max_abs_error <= acceptance.max_abs_error
    seeds = len({c.seed for c in measurement.checks})
    evidence = (
        f"max_abs_error {worst.max_abs_error:.6g} ({worst.when}), limit {acceptance.max_abs_error:g};"
        f" {len(measurement.checks)} checks, {seeds} seeds, every element written"
    )
    return Verdict("correct", _ruling(ok), evidence)


def _mma(artifact: Artifact, acceptance: Acceptance, target: Target) -> Verdict:
    if acceptance.mma == "none":
        return Verdict("mma", Ruling.NOT_APPLICABLE, "the sweep asks for no matrix instruction")
    if artifact.mma_count is None:
        return Verdict("mma", Ruling.FAIL, f"the {target.kind} target has no matrix instruction: say `mma: none` for it")
    evidence = f"{artifact.mma_count} x {artifact.mma_instruction}" if artifact.mma_count else "no matrix instruction"
    return Verdict("mma", _ruling(artifact.mma_count > 0), f"{evidence} in the generated source")


def _plausible(tflops: float, device: Device, dtype: str) -> Verdict:
    peak, bound = device.peak_tflops.get(dtype), device.bound_tflops.get(dtype)
    if peak is not None:
        return Verdict("plausible", _ruling(tflops <= peak), f"{tflops:.4g} TFLOPS, {tflops / peak:.1%} of the device's {peak:g}")
    if bound is not None:
        ok = tflops <= bound
        said = f"{tflops:.4g} TFLOPS, {'below' if ok else 'above'} {bound:g}, more than any device of this kind can do"
        return Verdict("plausible", _ruling(ok), said)
    return Verdict("plausible", Ruling.NOT_APPLICABLE, f"{tflops:.4g} TFLOPS; the peak of {device.model} is not known")


def _stable(samples: Sequence[float], acceptance: Acceptance) -> Verdict:
    spread = stats.relative_spread(samples)
    return Verdict(
        "stable",
        _ruling(spread <= acceptance.max_spread),
        f"p80 - p20 is {spread:.1%} of the median, limit {acceptance.max_spread:.0%}",
    )


def _alone(contended: str | None, acceptance: Acceptance) -> Verdict:
    if contended is None:
        return Verdict("alone", Ruling.NOT_APPLICABLE, "this device's tools do not tell who else computed on it")
    if contended and acceptance.alone == "none":
        return Verdict("alone", Ruling.NOT_APPLICABLE, f"the sweep does not ask for it; {contended}")
    return Verdict("alone", _ruling(not contended), contended or "nobody else computed on the device while this was timed")


def _faster(median: float, counts_as: float, reference: Reference | None, acceptance: Acceptance, own_id: str) -> Verdict:
    if reference is None:
        return Verdict("faster", Ruling.NOT_APPLICABLE, "no best yet, and the base was not measured: nothing to compare with")
    if reference.variant_id == own_id:
        return Verdict("faster", Ruling.NOT_APPLICABLE, f"this is the {reference.role} that the others are compared with")
    speedup = reference.median_ms / counts_as
    ok = speedup > acceptance.min_speedup
    none_yet = " (no best yet)" if reference.role == "base" else ""
    evidence = f"{speedup:.4f}x the {reference.role}{none_yet}, {median:.4g} against {reference.median_ms:.4g} ms"
    if counts_as != median:
        evidence += f" on another card, where it counts as {counts_as:.4g} by the two cards' baselines"
    return Verdict("faster", _ruling(ok), evidence)


def _ruling(ok: bool) -> Ruling:
    return Ruling.PASS if ok else Ruling.FAIL
