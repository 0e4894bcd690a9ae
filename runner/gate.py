"""Measurement + reference -> verdicts -> decision. Pure; every rule answers with its evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner import stats
from runner.errors import FailureKind, JobFailed
from runner.pairs import percent, told, visible_gain
from runner.records import (
    Acceptance,
    Accuracy,
    Artifact,
    Baseline,
    Check,
    Decision,
    Device,
    Measurement,
    Paired,
    Ruling,
    Variant,
    Verdict,
)

DRIFT_LIMIT = 0.03
"""A baseline that moved more than this between before and after is told on the runs of its device. It decides nothing."""

LEAST_MARGIN = 0.02
"""By how much processes of one kernel differ on one card, and so a ratio of two kernels' measurements at least may be off."""

EPS = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3": 2.0**-3,
    "float8_e5m2": 2.0**-2,
}
"""The distance from 1 to the next number, by dtype of the output."""

HALF_ULP = 0.25
"""Share of eps that rounding the exact result to the output's dtype may cost: no kernel is better than that."""

ERROR_RATIO, ERROR_RATIO_WIDE = 1.25, 4.0
WIDE = frozenset({"float32", "float64"})
"""Dtypes whose accumulator is no wider than their output: there a plain loop over K = 4096 has 3.3 times torch.mm's error."""

ULP_ALLOWANCE = 0.005
"""Share of elements more than a unit off that a sum in another order may add."""

MATRIX = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "UTCHMMA")
"""Matrix instructions of NVIDIA's machine code."""

LEAST_BY_MATRIX = 0.98
"""Share of a workload's operations that its matrix instructions must make, where their trips are known."""

SLEPT_MS, SLEPT_TIMES = 50.0, 10.0
"""A call before timing that took longer than both together was doing something else than later ones do."""

IN_FINALS = "in the finals: "
"""How the evidence begins of a fault that the finals found: no new judgement of the measurement takes it back."""


@dataclass(frozen=True)
class Reference:
    """What the others are compared with: the best of this workload on this device model, or the sweep's own base.

    `speedup` is over the calls of the baseline beside it, the unit in which all are compared: whatever card or minute.
    """

    role: str  # "best" or "base"
    variant_id: str
    label: str
    speedup: float
    spread: float = 0.0  # of its samples, relative
    source_hash: str = ""

    @classmethod
    def of(
        cls, role: str, variant: Variant, artifact: Artifact | None, measurement: Measurement | None, label: str
    ) -> Reference | None:
        """None where it was not timed, or no call of the baseline was timed beside it."""
        speedup = measurement.speedup_vs_baseline if measurement else None
        if measurement is None or artifact is None or speedup is None:
            return None
        spread = stats.relative_spread(measurement.samples_ms)
        return cls(role, variant.id, label, speedup, spread, artifact.source_hash)

    def is_kernel_of(self, variant: Variant, artifact: Artifact | None) -> bool:
        """Whether a variant is the reference, or has the same generated source."""
        same = artifact is not None and bool(self.source_hash) and artifact.source_hash == self.source_hash
        return same or variant.id == self.variant_id


def judge(
    variant: Variant,
    artifact: Artifact,
    measurement: Measurement,
    baseline: Baseline | None,
    acceptance: Acceptance,
    flops: float,
    reference: Reference | None,
) -> tuple[Verdict, ...]:
    """Every rule's verdict. `reference` None: nothing to compare with, which `faster` says. `baseline` is of the same device."""
    dtype, name = variant.workload.dtype, baseline.name if baseline else "the baseline"
    median = stats.median(measurement.samples_ms)
    return (
        correct(measurement.checks, acceptance),
        _accurate(measurement.accuracy, measurement.baseline_accuracy, acceptance, dtype, name),
        deterministic(measurement.calls, measurement.equal, acceptance),
        _mma(artifact, acceptance, variant, flops),
        plausible(flops / median / 1e9, measurement.device, dtype),
        _stable(measurement, acceptance),
        alone(measurement.contended, acceptance),
        _faster(variant, artifact, measurement, reference, name),
    )


def decide(verdicts: Sequence[Verdict]) -> tuple[Decision, str]:
    """Rejected is what fails a rule other than `faster`, and the reason names each that it failed. `faster` alone only ranks:
    what fails it is beaten, what passes it has won in pairs, and what is neither is unproven.
    """
    failed = [v for v in verdicts if v.ruling is Ruling.FAIL and v.rule != "faster"]
    if failed:
        return Decision.REJECTED, "; ".join(f"{v.rule}: {v.evidence}" for v in failed)
    faster = next((v for v in verdicts if v.rule == "faster"), None)
    if faster is None:
        return Decision.UNPROVEN, "nobody compared it with anything"
    decisions = {Ruling.PASS: Decision.CANDIDATE, Ruling.FAIL: Decision.BEATEN, Ruling.NOT_APPLICABLE: Decision.UNPROVEN}
    return decisions[faster.ruling], faster.evidence


def with_verdict(verdicts: Sequence[Verdict], verdict: Verdict) -> tuple[Verdict, ...]:
    """The verdicts with this one in the place of its rule's, or before the last where there was none."""
    if any(v.rule == verdict.rule for v in verdicts):
        return tuple(verdict if v.rule == verdict.rule else v for v in verdicts)
    return (*verdicts[:-1], verdict, *verdicts[-1:])


def judge_pair(paired: Paired, acceptance: Acceptance, role: str) -> Verdict:
    """`faster`, decided by alternated calls: the whole interval must clear `min_speedup`. A refusal says what would have."""
    said = f"paired speedup over the {role} {told(paired)} at {100 * paired.confidence:.6g}%"
    least = acceptance.min_speedup
    if paired.low > least:
        return Verdict("faster", Ruling.PASS, f"{said}, clears {least:g}")
    return Verdict("faster", Ruling.FAIL, f"{said}, does not clear {least:g}; {could_have_shown(paired, acceptance)}")


def could_have_shown(paired: Paired, acceptance: Acceptance) -> str:
    return f"a gain above {percent(visible_gain(paired, acceptance.min_speedup))} would have shown"


def judge_finals(finals: Mapping[str, Paired], acceptance: Acceptance, role: str) -> dict[str, Verdict]:
    """`faster` of each finalist, by variant id: of those that clear `min_speedup` the winner, its ties, the rest."""
    clear = {i: p for i, p in finals.items() if p.low > acceptance.min_speedup}
    winner = max(clear.values(), key=lambda p: p.speedup, default=None)
    return {i: _in_finals(p, winner, acceptance, role) for i, p in finals.items()}


def _in_finals(paired: Paired, winner: Paired | None, acceptance: Acceptance, role: str) -> Verdict:
    """Beaten is what lies with its whole interval below the winner, or below what must be cleared; else it is undecided."""
    verdict, least = judge_pair(paired, acceptance, role), acceptance.min_speedup
    if winner is paired:
        return verdict
    behind = f"{paired.speedup:.4f}x the {role}"
    if winner is not None:
        behind += f", {paired.speedup / winner.speedup:.4f}x the winner"
        if paired.high < winner.low and verdict.ruling is Ruling.PASS:
            return Verdict("faster", Ruling.FAIL, f"{behind}: {told(paired)} lies below the winner's {told(winner)}")
        if verdict.ruling is Ruling.PASS:
            return replace(verdict, evidence=f"{verdict.evidence}; a tie with the winner, {winner.speedup:.4f}")
    if paired.high < least or (winner is not None and paired.high < winner.low):
        return replace(verdict, evidence=f"{behind}: {verdict.evidence}")
    return replace(verdict, ruling=Ruling.NOT_APPLICABLE, evidence=f"undecided, {verdict.evidence}")


def judge_base(beaten: bool, role: str) -> Verdict:
    """`faster` of the base where there is no best yet: it may be the first one, unless another beat it in pairs."""
    said = f"this is the {role} that the others are compared with"
    if beaten:
        return Verdict("faster", Ruling.FAIL, f"{said}, and one of them beat it in pairs")
    return Verdict("faster", Ruling.PASS, f"{said}, and none of them beat it")


def refused(failure: JobFailed, where: str = IN_FINALS) -> Verdict:
    """Why a run is refused that failed on other inputs or in pairs: the rule that says what it did, and `where` that was."""
    rules = {FailureKind.SIDE_EFFECT: "pure", FailureKind.WRONG_RESULT: "correct"}
    said = failure.detail if failure.kind in rules else f"{failure.kind.value.replace('_', ' ')}: {failure.detail}"
    return Verdict(rules.get(failure.kind, "correct"), Ruling.FAIL, where + said)


def refused_as_disturbed(by: str, where: str = IN_FINALS) -> Verdict:
    return Verdict("alone", Ruling.FAIL, f"{where}disturbed twice in one session: {by}")


def relative(measurement: Measurement, reference: Reference | None) -> float | None:
    """How many times the reference's speed, each by its own calls of the baseline; None where there is nothing to go by."""
    own = measurement.speedup_vs_baseline
    return None if own is None or reference is None else own / reference.speedup


def margin(measurement: Measurement, reference: Reference) -> float:
    """By how much the ratio of two measurements may be off: as far as the samples of both scatter, since processes differ by
    about as much, and `LEAST_MARGIN` at least.
    """
    return max(LEAST_MARGIN, math.hypot(stats.relative_spread(measurement.samples_ms), reference.spread))


def correct(checks: Sequence[Check], acceptance: Acceptance, what: str = "") -> Verdict:
    """The largest difference from the baseline. `what` says more of the checks."""
    worst = max(checks, key=lambda c: c.max_abs_error)
    limit = acceptance.max_abs_error
    ruling = Ruling.NOT_APPLICABLE if limit is None else _ruling(worst.max_abs_error <= limit)
    limited = "no limit asked for, the element is told" if limit is None else f"limit {limit:g}"
    seeds = len({c.seed for c in checks})
    said = f"max_abs_error {worst.max_abs_error:.6g} ({worst.when}), {limited};"
    return Verdict("correct", ruling, f"{said} {len(checks)} checks, {seeds} seeds, every element written{what}")


def deterministic(calls: int, equal: int, acceptance: Acceptance) -> Verdict:
    """Whether every output was the first one's, bit for bit."""
    if not calls:
        return Verdict("deterministic", Ruling.NOT_APPLICABLE, "no outputs were compared with each other")
    said = f"{equal:,} of {calls:,} outputs are the first one's, bit for bit"
    if acceptance.deterministic == "none":
        return Verdict("deterministic", Ruling.NOT_APPLICABLE, f"the sweep does not ask for it; {said}")
    return Verdict("deterministic", _ruling(equal == calls), said)


def plausible(tflops: float, device: Device, dtype: str) -> Verdict:
    peak, bound = device.peak_tflops.get(dtype), device.bound_tflops.get(dtype)
    if peak is not None:
        return Verdict("plausible", _ruling(tflops <= peak), f"{tflops:.4g} TFLOPS, {tflops / peak:.1%} of the device's {peak:g}")
    if bound is not None:
        ok = tflops <= bound
        said = f"{tflops:.4g} TFLOPS, {'below' if ok else 'above'} {bound:g}, more than any device of this kind can do"
        return Verdict("plausible", _ruling(ok), said)
    return Verdict("plausible", Ruling.NOT_APPLICABLE, f"{tflops:.4g} TFLOPS; the peak of {device.model} is not known")


def steady(spread: float, acceptance: Acceptance, where: str = "") -> Verdict:
    said = f"p80 - p20 is {spread:.1%} of the median{where}, limit {acceptance.max_spread:.0%}"
    return Verdict("stable", _ruling(spread <= acceptance.max_spread), said)


def alone(contended: str | None, acceptance: Acceptance) -> Verdict:
    if contended is None:
        return Verdict("alone", Ruling.NOT_APPLICABLE, "this device's tools do not list its other processes")
    if contended and acceptance.alone == "none":
        return Verdict("alone", Ruling.NOT_APPLICABLE, f"the sweep does not ask for it; {contended}")
    return Verdict("alone", _ruling(not contended), contended or "no other process used the device while this was timed")


def _accurate(own: Accuracy | None, baseline: Accuracy | None, acceptance: Acceptance, dtype: str, name: str) -> Verdict:
    if own is None or baseline is None:
        return Verdict("accurate", Ruling.NOT_APPLICABLE, "there is no result in float64 to compare with")
    ratio = acceptance.max_error_ratio or (ERROR_RATIO_WIDE if dtype in WIDE else ERROR_RATIO)
    error_limit = ratio * max(baseline.relative_error, HALF_ULP * EPS.get(dtype, 0.0))
    share_limit = min(1.0, ratio * baseline.ulp_share + ULP_ALLOWANCE)
    said = (
        f"relative error {own.relative_error:.3g} against float64, {name}'s is {baseline.relative_error:.3g}, limit"
        f" {error_limit:.3g}; {own.ulp_share:.2%} of {own.elements:,} elements off by more than one ulp,"
        f" {name}'s {baseline.ulp_share:.2%}, limit {share_limit:.2%}"
    )
    return Verdict("accurate", _ruling(own.relative_error <= error_limit and own.ulp_share <= share_limit), said)


def _mma(artifact: Artifact, acceptance: Acceptance, variant: Variant, flops: float) -> Verdict:
    """That there is one where the kernel is launched, and that its trips make about as much work as the workload has."""
    if acceptance.mma == "none":
        return Verdict("mma", Ruling.NOT_APPLICABLE, "the sweep asks for no matrix instruction")
    if artifact.mma_count is None:
        return Verdict("mma", Ruling.FAIL, f"the {variant.target.kind} target has no matrix instruction: say `mma: none` for it")
    share = float(artifact.evidence.get("matrix_flops", 0)) / flops
    trips = f"; by its loops it makes {share:.1%} of the workload's operations" if share else ""
    enough = not share or share >= LEAST_BY_MATRIX
    if any(key.startswith("sass_") for key in artifact.evidence):
        counted = {name: int(artifact.evidence.get(f"sass_{name}", 0)) for name in MATRIX}
        found = ", ".join(f"{number} x {name}" for name, number in counted.items() if number)
        said = f"{found or 'no matrix instruction'} in the machine code{trips}"
        return Verdict("mma", _ruling(bool(found) and enough), said)
    evidence = f"{artifact.mma_count} x {artifact.mma_instruction}" if artifact.mma_count else "no matrix instruction"
    where = "in the generated source (text only: no disassembler where it was built)"
    return Verdict("mma", _ruling(artifact.mma_count > 0 and enough), f"{evidence} {where}{trips}")


def _stable(measurement: Measurement, acceptance: Acceptance) -> Verdict:
    """Also the calls before timing: a kernel that sleeps in its first calls is none that anybody wants."""
    median, first = stats.median(measurement.samples_ms), measurement.settled_call_ms
    if first > SLEPT_TIMES * median + SLEPT_MS:
        return Verdict("stable", Ruling.FAIL, f"the first calls took {first:.4g} ms, later ones {median:.4g} ms")
    return steady(stats.relative_spread(measurement.samples_ms), acceptance)


def _faster(
    variant: Variant, artifact: Artifact, measurement: Measurement, reference: Reference | None, baseline_name: str
) -> Verdict:
    """By the calls of the baseline among its own. They can show that a kernel is slower; that it is faster, only pairs can."""
    if reference is None:
        return Verdict(
            "faster", Ruling.NOT_APPLICABLE, "there is no best, and the base was not measured: nothing to compare with"
        )
    if reference.is_kernel_of(variant, artifact):
        what = "is" if reference.variant_id == variant.id else "has the same generated source as"
        said = f"this {what} the {reference.role} that the others are compared with"
        return Verdict("faster", Ruling.NOT_APPLICABLE, said)
    ratio = relative(measurement, reference)
    if ratio is None:
        return Verdict("faster", Ruling.NOT_APPLICABLE, f"no call of {baseline_name} was timed among its own")
    said = f"{ratio:.4f}x the {reference.role} by its calls of {baseline_name}"
    slack = margin(measurement, reference)
    if ratio * (1 + slack) < 1:
        return Verdict("faster", Ruling.FAIL, f"{said}, slower by more than the {slack:.1%} that this may be off")
    return Verdict("faster", Ruling.NOT_APPLICABLE, said)


def _ruling(ok: bool) -> Ruling:
    return Ruling.PASS if ok else Ruling.FAIL
