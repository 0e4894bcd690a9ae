"""Every rule of the gate: passing, failing and not applicable, each with its evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runner.gate import Reference, decide, judge, judge_pair
from runner.records import Acceptance, Artifact, Check, Decision, Measurement, Ruling, Target, Verdict
from tests import outcomes

VARIANT = outcomes.variant()
ARTIFACT = outcomes.artifact(VARIANT)
MEASUREMENT = outcomes.measurement(latency_ms=1.0)
BASE = Reference("base", "0123456789ab", "b_interleave=1", 1.5)
PASS, FAIL, NOT_APPLICABLE = Ruling.PASS, Ruling.FAIL, Ruling.NOT_APPLICABLE


def verdict(
    rule: str,
    measurement: Measurement = MEASUREMENT,
    artifact: Artifact = ARTIFACT,
    target: Target = outcomes.TARGET,
    flops: float = outcomes.FLOPS,
    reference: Reference | None = BASE,
    own_id: str = VARIANT.id,
    **acceptance: Any,
) -> Verdict:
    demanded = Acceptance(**acceptance)
    verdicts = judge(measurement, artifact, demanded, target, "float16", flops, reference, own_id)
    assert [v.rule for v in verdicts] == ["correct", "mma", "plausible", "stable", "alone", "faster"]
    return next(v for v in verdicts if v.rule == rule)


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


@pytest.mark.parametrize(
    "count, demanded, ruling, evidence",
    [
        (2, "required", PASS, "2 x tl::mma_sync"),
        (0, "required", FAIL, "no matrix instruction"),
        (None, "required", FAIL, "say `mma: none`"),
        (None, "none", NOT_APPLICABLE, "asks for no matrix instruction"),
        (0, "none", NOT_APPLICABLE, "asks for no matrix instruction"),
    ],
)
def test_mma(count: int | None, demanded: str, ruling: Ruling, evidence: str) -> None:
    said = verdict("mma", artifact=replace(ARTIFACT, mma_count=count), mma=demanded)
    assert said.ruling is ruling and evidence in said.evidence


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
        ("", PASS, "nobody else computed on the device"),
        ("other processes used 1.0 of 2 cores", FAIL, "other processes used 1.0 of 2 cores"),
        (None, NOT_APPLICABLE, "do not tell"),
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


@pytest.mark.parametrize("median, speedup, ruling", [(1.5, 1.0, PASS), (1.0, 1.0, FAIL), (1.04, 1.05, FAIL), (0.9, 1.0, FAIL)])
def test_faster_must_clear_the_speedup_asked_for(median: float, speedup: float, ruling: Ruling) -> None:
    said = verdict("faster", reference=replace(BASE, median_ms=median), min_speedup=speedup)
    assert said.ruling is ruling and f"{median:.4f}x" in said.evidence


def test_faster_says_what_it_compares_with() -> None:
    assert "base (no best yet)" in verdict("faster").evidence
    best = verdict("faster", reference=replace(BASE, role="best"))
    assert "the best" in best.evidence and "no best yet" not in best.evidence


def test_faster_without_anything_to_compare_with() -> None:
    assert verdict("faster", reference=None).ruling is NOT_APPLICABLE
    itself = verdict("faster", own_id=BASE.variant_id)
    assert itself.ruling is NOT_APPLICABLE and "base" in itself.evidence


def test_a_candidate_fails_no_rule() -> None:
    verdicts = judge(MEASUREMENT, ARTIFACT, Acceptance(), outcomes.TARGET, "float16", outcomes.FLOPS, BASE, VARIANT.id)
    decision, reason = decide(verdicts)
    assert decision is Decision.CANDIDATE and "1.5000x the base" in reason


def test_a_rejection_names_every_rule_that_failed_and_no_other() -> None:
    wrong_and_slow = with_checks(Check(0, "before timing", 1.0))
    slow = replace(BASE, median_ms=0.5)
    verdicts = judge(wrong_and_slow, ARTIFACT, Acceptance(), outcomes.TARGET, "float16", outcomes.FLOPS, slow, VARIANT.id)
    decision, reason = decide(verdicts)
    assert decision is Decision.REJECTED
    assert "correct: max_abs_error 1 " in reason and "faster: 0.5000x" in reason
    assert not any(f"{rule}:" in reason for rule in ("mma", "plausible", "stable", "alone"))


def test_not_applicable_is_no_failure() -> None:
    decision, _ = decide((Verdict("mma", NOT_APPLICABLE, "none here"), Verdict("faster", NOT_APPLICABLE, "no best")))
    assert decision is Decision.CANDIDATE


@pytest.mark.parametrize("low, demanded, ruling", [(1.01, 1.0, PASS), (1.0, 1.0, FAIL), (0.99, 1.0, FAIL), (1.01, 1.02, FAIL)])
def test_a_pair_passes_when_its_whole_interval_clears_the_speedup(low: float, demanded: float, ruling: Ruling) -> None:
    paired = replace(outcomes.paired(outcomes.outcome(), speedup=1.03), low=low)
    said = judge_pair(paired, Acceptance(min_speedup=demanded), "best")
    assert said.rule == "faster" and said.ruling is ruling
    assert "1.0300" in said.evidence and f"[{low:.4f}" in said.evidence and "95%" in said.evidence
