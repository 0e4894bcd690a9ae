"""Every rule of the gate: passing, failing and not applicable, each with its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.errors import FailureKind, JobFailed
from runner.gate import IN_FINALS, LEAST_MARGIN, Reference, decide, judge, judge_base, judge_finals, judge_pair, refused
from runner.records import Acceptance, Accuracy, Artifact, Check, Decision, Measurement, Ruling, Variant, Verdict
from tests import outcomes

VARIANT = outcomes.variant()
ARTIFACT = outcomes.artifact(VARIANT)
MEASUREMENT = outcomes.measurement(latency_ms=1.0)  # 1.5 times the calls of torch.mm beside it
BASE = Reference("base", "0123456789ab", "b_interleave=1", speedup=1.0)
PASS, FAIL, NOT_APPLICABLE = Ruling.PASS, Ruling.FAIL, Ruling.NOT_APPLICABLE
RULES = ["correct", "accurate", "deterministic", "mma", "plausible", "stable", "alone", "faster"]


def verdict(
    rule: str,
    measurement: Measurement = MEASUREMENT,
    artifact: Artifact = ARTIFACT,
    variant: Variant = VARIANT,
    flops: float = outcomes.FLOPS,
    reference: Reference | None = BASE,
    **acceptance: Any,
) -> Verdict:
    baseline = outcomes.outcome().baseline
    verdicts = judge(variant, artifact, measurement, baseline, Acceptance(**acceptance), flops, reference)
    assert [v.rule for v in verdicts] == RULES
    return next(v for v in verdicts if v.rule == rule)


def judged(measurement: Measurement = MEASUREMENT, reference: Reference | None = BASE) -> tuple[Decision, str]:
    return decide(judge(VARIANT, ARTIFACT, measurement, outcomes.outcome().baseline, Acceptance(), outcomes.FLOPS, reference))


def with_checks(*checks: Check) -> Measurement:
    return replace(MEASUREMENT, checks=checks)


@pytest.mark.parametrize("error, limit, ruling", [(0.0, 0.0, PASS), (0.01, 0.01, PASS), (0.011, 0.01, FAIL), (1e-9, 0.0, FAIL)])
def test_correct_allows_the_limit_itself(error: float, limit: float, ruling: Ruling) -> None:
    said = verdict("correct", with_checks(Check(0, "before timing", 0.0), Check(1, "after timing", error)), max_abs_error=limit)
    assert said.ruling is ruling
    assert f"{error:g}" in said.evidence and f"limit {limit:g}" in said.evidence and "2 seeds" in said.evidence


def test_correct_names_the_worst_check() -> None:
    said = verdict(
        "correct", with_checks(Check(0, "before timing", 0.1), Check(0, "as timed", 0.3), Check(1, "after timing", 0.2))
    )
    assert said.ruling is FAIL and "0.3 (as timed)" in said.evidence


def test_correct_without_a_limit_informs_and_neither_passes_nor_fails() -> None:
    said = verdict("correct", with_checks(Check(0, "as timed", 0.25)), max_abs_error=None)
    assert said.ruling is NOT_APPLICABLE and "0.25 (as timed), no limit asked for" in said.evidence


# What a sum in another order, split parts kept in fp16, a bf16 input and an fp16 accumulator do to 64x512x7168 in fp16.
@pytest.mark.parametrize(
    "error, ulp_share, ruling",
    [(2.07e-4, 0.0, PASS), (2.4e-4, 0.004, PASS), (2.96e-4, 0.05, FAIL), (1.7e-3, 0.6, FAIL), (3.1e-3, 0.7, FAIL)],
)
def test_accurate_is_by_the_baselines_own_error(error: float, ulp_share: float, ruling: Ruling) -> None:
    said = verdict("accurate", replace(MEASUREMENT, accuracy=Accuracy(error, ulp_share, 4096)))
    assert said.ruling is ruling
    assert f"{error:.3g}" in said.evidence and "torch.mm's is 0.000207" in said.evidence and "4,096" in said.evidence


def test_accurate_takes_many_elements_that_are_a_little_off_for_wrong_too() -> None:
    """Split parts that are kept in fp16: the norm hardly shows it, the share of elements does."""
    said = verdict("accurate", replace(MEASUREMENT, accuracy=Accuracy(2.3e-4, 0.02, 4096)))
    assert said.ruling is FAIL and "2.00% of 4,096 elements off by more than one ulp" in said.evidence


@pytest.mark.parametrize("dtype, ruling", [("float16", FAIL), ("float32", PASS), ("float64", PASS)])
def test_accurate_allows_more_where_the_accumulator_is_no_wider_than_the_output(dtype: str, ruling: Ruling) -> None:
    """A plain loop over K = 4096 has 3.3 times the error of torch.mm there, measured, and is right."""
    looped = replace(MEASUREMENT, baseline_accuracy=Accuracy(1e-3, 0.0, 64), accuracy=Accuracy(3.3e-3, 0.0, 64))
    workload = replace(outcomes.WORKLOAD, dtype=dtype)
    assert verdict("accurate", looped, variant=outcomes.variant(workload)).ruling is ruling
    assert verdict("accurate", looped, variant=outcomes.variant(workload), max_error_ratio=3.4).ruling is PASS
    assert verdict("accurate", looped, variant=outcomes.variant(workload), max_error_ratio=3.2).ruling is FAIL


def test_accurate_asks_for_no_less_than_rounding_costs() -> None:
    """Against a baseline without any error, as integers have it, a result that is rounded once is right."""
    exact = replace(MEASUREMENT, baseline_accuracy=Accuracy(0.0, 0.0, 64))
    assert verdict("accurate", replace(exact, accuracy=Accuracy(0.25 * 2**-10, 0.0, 64))).ruling is PASS
    assert verdict("accurate", replace(exact, accuracy=Accuracy(2**-10, 0.0, 64))).ruling is FAIL


def test_accurate_says_where_there_is_nothing_exact_to_compare_with() -> None:
    said = verdict("accurate", replace(MEASUREMENT, accuracy=None))
    assert said.ruling is NOT_APPLICABLE and "float64" in said.evidence


@pytest.mark.parametrize(
    "equal, demanded, ruling", [(60, "required", PASS), (59, "required", FAIL), (59, "none", NOT_APPLICABLE)]
)
def test_deterministic_counts_the_outputs_that_are_equal(equal: int, demanded: str, ruling: Ruling) -> None:
    said = verdict("deterministic", replace(MEASUREMENT, equal=equal), deterministic=demanded)
    assert said.ruling is ruling and f"{equal} of 60 outputs are the first one's" in said.evidence


def test_deterministic_where_nothing_was_compared() -> None:
    assert verdict("deterministic", replace(MEASUREMENT, calls=0, equal=0)).ruling is NOT_APPLICABLE


@pytest.mark.parametrize(
    "count, demanded, ruling, evidence",
    [
        (2, "required", PASS, "2 x tl::mma_sync in the generated source (text only: no disassembler where it was built)"),
        (0, "required", FAIL, "no matrix instruction"),
        (None, "required", FAIL, "say `mma: none`"),
        (None, "none", NOT_APPLICABLE, "asks for no matrix instruction"),
        (0, "none", NOT_APPLICABLE, "asks for no matrix instruction"),
    ],
)
def test_mma(count: int | None, demanded: str, ruling: Ruling, evidence: str) -> None:
    said = verdict("mma", artifact=replace(ARTIFACT, mma_count=count), mma=demanded)
    assert said.ruling is ruling and evidence in said.evidence


@pytest.mark.parametrize(
    "evidence, ruling, said",
    [
        ({"sass_HGMMA": 16, "sass_FFMA": 3}, PASS, "16 x HGMMA in the machine code"),
        ({"sass_HMMA": 8, "sass_IMMA": 1}, PASS, "8 x HMMA, 1 x IMMA in the machine code"),
        ({"sass_FFMA": 512}, FAIL, "no matrix instruction in the machine code"),
    ],
)
def test_mma_believes_the_machine_code_and_not_the_text(evidence: dict[str, int], ruling: Ruling, said: str) -> None:
    """A function that nobody calls holds the instruction in the source, and not in what is launched."""
    found = verdict("mma", artifact=replace(ARTIFACT, mma_count=1, evidence={**evidence, "launch_bounds": 256}))
    assert found.ruling is ruling and found.evidence == said


def test_plausible_is_the_devices_peak() -> None:
    peak = outcomes.DEVICE.peak_tflops["float16"]
    at_peak = peak * 1e12 * 1e-3  # operations that would take 1 ms
    assert verdict("plausible", flops=at_peak).ruling is PASS
    too_fast = verdict("plausible", flops=1.01 * at_peak)
    assert too_fast.ruling is FAIL and "101.0%" in too_fast.evidence and f"{peak:g}" in too_fast.evidence


def test_plausible_says_when_no_peak_is_known() -> None:
    said = verdict("plausible", replace(MEASUREMENT, device=replace(outcomes.DEVICE, peak_tflops={"int8": 1.0})))
    assert said.ruling is NOT_APPLICABLE and outcomes.DEVICE.model in said.evidence


def test_plausible_is_no_share_of_a_peak_where_only_a_bound_is_known() -> None:
    bounded = replace(MEASUREMENT, device=replace(outcomes.DEVICE, peak_tflops={}, bound_tflops={"float16": 0.5}))
    below, above = (verdict("plausible", bounded, flops=tflops * 1e12 * 1e-3) for tflops in (0.5, 0.51))
    assert below.ruling is PASS and "below 0.5, more than any device of this kind can do" in below.evidence
    assert above.ruling is FAIL and "above 0.5" in above.evidence
    assert "%" not in below.evidence + above.evidence


@pytest.mark.parametrize(
    "contended, ruling, evidence",
    [
        ("", PASS, "no other process used the device"),
        ("other processes used 1.0 of 2 cores", FAIL, "other processes used 1.0 of 2 cores"),
        (None, NOT_APPLICABLE, "do not list"),
    ],
)
def test_alone(contended: str | None, ruling: Ruling, evidence: str) -> None:
    said = verdict("alone", replace(MEASUREMENT, contended=contended))
    assert said.ruling is ruling and evidence in said.evidence


def test_alone_is_told_where_it_is_not_asked_for() -> None:
    said = verdict("alone", replace(MEASUREMENT, contended="other processes used 1.0 of 2 cores"), alone="none")
    assert said.ruling is NOT_APPLICABLE and "other processes used 1.0 of 2 cores" in said.evidence
    assert verdict("alone", replace(MEASUREMENT, contended=""), alone="none").ruling is PASS


def test_stable() -> None:
    assert verdict("stable").ruling is PASS
    jumping = replace(MEASUREMENT, samples_ms=(1.0, 2.0) * 5)
    said = verdict("stable", jumping, max_spread=0.5)
    assert said.ruling is FAIL and "66.7%" in said.evidence and "50%" in said.evidence
    assert verdict("stable", jumping, max_spread=0.7).ruling is PASS


def test_stable_sees_a_kernel_that_sleeps_in_its_first_calls() -> None:
    """Ten times the median, and 50 ms for what a host does now and then."""
    said = verdict("stable", replace(MEASUREMENT, settled_call_ms=150.0))
    assert said.ruling is FAIL and "the first calls took 150 ms, later ones 1 ms" in said.evidence
    assert verdict("stable", replace(MEASUREMENT, settled_call_ms=60.0)).ruling is PASS
    assert verdict("stable", replace(MEASUREMENT, first_call_ms=9_000.0)).ruling is PASS, "the very first one loads things"


@pytest.mark.parametrize("reference, decision", [(1.2, Decision.UNPROVEN), (1.5, Decision.UNPROVEN), (1.9, Decision.BEATEN)])
def test_the_calls_of_the_baseline_can_beat_a_kernel_and_prove_none(reference: float, decision: Decision) -> None:
    decided, reason = judged(reference=replace(BASE, speedup=reference))
    assert decided is decision and reason.startswith(f"{1.5 / reference:.4f}x the base by its calls of torch.mm")


def test_slower_by_less_than_the_margin_is_not_beaten() -> None:
    """The samples of both scatter, and two processes of one kernel differ: what lies within that may still win."""
    steady = replace(MEASUREMENT, samples_ms=(1.0,) * 10)
    just_within, just_beyond = 1.5 * (1 + LEAST_MARGIN) - 0.001, 1.5 * (1 + LEAST_MARGIN) + 0.001
    assert judged(steady, replace(BASE, speedup=just_within))[0] is Decision.UNPROVEN
    assert judged(steady, replace(BASE, speedup=just_beyond))[0] is Decision.BEATEN
    assert judged(steady, replace(BASE, speedup=just_beyond, spread=0.1))[0] is Decision.UNPROVEN


def test_faster_is_in_units_of_the_baseline_beside_it_whatever_the_card() -> None:
    """On a card half as fast at everything, and twenty minutes later: the same ratio, so the same verdict."""
    slow = replace(MEASUREMENT, samples_ms=tuple(2 * ms for ms in MEASUREMENT.samples_ms), reference_ms=(3.0,) * 8)
    assert judged(slow) == judged(MEASUREMENT)


def test_faster_says_what_it_compares_with() -> None:
    assert "1.5000x the best by its calls of torch.mm" in verdict("faster", reference=replace(BASE, role="best")).evidence


def test_faster_without_anything_to_compare_with() -> None:
    assert verdict("faster", reference=None).ruling is NOT_APPLICABLE
    itself = verdict("faster", reference=replace(BASE, variant_id=VARIANT.id))
    assert itself.ruling is NOT_APPLICABLE and "this is the base" in itself.evidence
    twin = verdict("faster", reference=replace(BASE, source_hash=ARTIFACT.source_hash))
    assert twin.ruling is NOT_APPLICABLE and "the same generated source as the base" in twin.evidence
    older = verdict("faster", replace(MEASUREMENT, reference_ms=()))
    assert older.ruling is NOT_APPLICABLE and "no call of torch.mm was timed among its own" in older.evidence


def test_a_rejection_names_every_rule_that_failed_and_no_other() -> None:
    wrong = with_checks(Check(0, "before timing", 1.0))
    decision, reason = judged(replace(wrong, contended="python3 (pid 7)", equal=3), replace(BASE, speedup=9.0))
    assert decision is Decision.REJECTED
    assert "correct: max_abs_error 1 " in reason and "alone: python3 (pid 7)" in reason and "deterministic: 3 of 60" in reason
    assert not any(f"{rule}:" in reason for rule in ("accurate", "mma", "plausible", "stable", "faster"))


def test_not_applicable_is_no_failure() -> None:
    verdicts = (Verdict("mma", NOT_APPLICABLE, "none here"), Verdict("faster", PASS, "won"))
    assert decide(verdicts) == (Decision.CANDIDATE, "won")


@pytest.mark.parametrize("low, demanded, ruling", [(1.01, 1.0, PASS), (1.0, 1.0, FAIL), (0.99, 1.0, FAIL), (1.01, 1.02, FAIL)])
def test_a_pair_passes_when_its_whole_interval_clears_the_speedup(low: float, demanded: float, ruling: Ruling) -> None:
    paired = outcomes.paired(outcomes.outcome(), speedup=1.03, low=low)
    said = judge_pair(paired, Acceptance(min_speedup=demanded), "best")
    assert said.rule == "faster" and said.ruling is ruling
    assert "1.0300" in said.evidence and f"[{low:.4f}" in said.evidence and "95%" in said.evidence
    assert "k=3 tau 0.3 %" in said.evidence


def test_a_pair_that_does_not_clear_says_what_would_have_been_seen() -> None:
    tie = outcomes.paired(outcomes.outcome(), speedup=1.0, low=0.996, high=1.004)
    assert "a gain above 0.4 % would have shown" in judge_pair(tie, Acceptance(), "best").evidence
    assert "a gain above 1.4 % would have shown" in judge_pair(tie, Acceptance(min_speedup=1.01), "best").evidence


def test_the_interval_of_one_session_says_so() -> None:
    one = outcomes.paired(outcomes.outcome(), tau=None, sessions=(outcomes.session(),))
    assert "within one session" in judge_pair(one, Acceptance(), "base").evidence


class TestFinals:
    """Four that played in full: a winner, a tie with it, one that cleared the base alone, one that did not."""

    FINALS = {  # noqa: RUF012 - nobody changes it
        "winner": outcomes.paired(outcomes.outcome(), 1.60, low=1.58, high=1.62),
        "tie": outcomes.paired(outcomes.outcome(), 1.59, low=1.57, high=1.61),
        "second": outcomes.paired(outcomes.outcome(), 1.50, low=1.49, high=1.51),
        "slower": outcomes.paired(outcomes.outcome(), 0.96, low=0.95, high=0.97),
    }

    def decisions(self, **acceptance: Any) -> dict[str, tuple[Decision, str]]:
        return {i: decide((v,)) for i, v in judge_finals(self.FINALS, Acceptance(**acceptance), "base").items()}

    def test_the_winner_and_its_ties_are_candidates_and_the_others_are_beaten(self) -> None:
        decisions = {i: decision for i, (decision, _) in self.decisions().items()}
        assert decisions == {
            "winner": Decision.CANDIDATE,
            "tie": Decision.CANDIDATE,
            "second": Decision.BEATEN,
            "slower": Decision.BEATEN,
        }

    def test_who_was_beaten_is_told_by_how_much_and_by_whom(self) -> None:
        reasons = {i: reason for i, (_, reason) in self.decisions().items()}
        assert reasons["second"].startswith("1.5000x the base, 0.9375x the winner")
        assert reasons["slower"].startswith("0.9600x the base, 0.6000x the winner")
        assert "a tie with the winner" in reasons["tie"]

    def test_where_nobody_clears_there_is_no_winner(self) -> None:
        found = self.decisions(min_speedup=2.0)
        assert {decision for decision, _ in found.values()} == {Decision.BEATEN}
        assert not any("winner" in reason for _, reason in found.values())

    def test_one_that_overlaps_the_winner_and_does_not_clear_is_no_candidate(self) -> None:
        finals = {**self.FINALS, "noisy": outcomes.paired(outcomes.outcome(), 1.5, low=0.9, high=2.1)}
        decision, said = decide((judge_finals(finals, Acceptance(), "base")["noisy"],))
        assert decision is Decision.UNPROVEN and "undecided" in said and "would have shown" in said

    def test_one_that_lies_below_what_it_must_clear_is_beaten(self) -> None:
        finals = {"slow": outcomes.paired(outcomes.outcome(), 0.97, low=0.95, high=0.99)}
        assert decide((judge_finals(finals, Acceptance(), "base")["slow"],))[0] is Decision.BEATEN

    def test_the_base_may_be_the_first_best_where_nobody_beat_it(self) -> None:
        assert decide((judge_base(False, "base"),))[0] is Decision.CANDIDATE
        assert decide((judge_base(True, "base"),))[0] is Decision.BEATEN

    @pytest.mark.parametrize(
        "kind, rule, said",
        [
            (FailureKind.WRONG_RESULT, "correct", "integers: off by 3"),
            (FailureKind.SIDE_EFFECT, "pure", "integers: off by 3"),
            (FailureKind.CRASH, "correct", "crash: integers: off by 3"),
        ],
    )
    def test_a_fault_found_in_the_finals_rejects(self, kind: FailureKind, rule: str, said: str) -> None:
        verdict = refused(JobFailed(kind, "integers: off by 3"))
        assert verdict == Verdict(rule, FAIL, IN_FINALS + said) and decide((verdict,))[0] is Decision.REJECTED
