"""Kernels that are wrong on purpose, each in one way: none is accepted, and each is named for what it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernels.family import load_family
from runner.errors import FailureKind
from runner.gate import decide, judge
from runner.jobs.requests import BenchJob, ProveJob
from runner.records import Acceptance, Decision, Measurement, Proof, Protocol, Ruling, Status, Value
from tests.planted import PLANTED
from tests.workbench import Workbench, variant

SHAPE = {"M": 32, "N": 64, "K": 48}
PROTOCOL = Protocol(warmup=2, repeat=20)
ACCEPTANCE = Acceptance(max_abs_error=None, mma="none", max_spread=9.0, alone="none")
"""What depends on the machine's peace is left out: who is caught here is caught for what it computes or does."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench()
    yield bench
    bench.close()


def caught(bench: Workbench, behaviour: Value) -> tuple[str, str]:
    """What a variant is refused for on its way to being accepted, as (status or rule, words); ("", "") where it passes."""
    of = variant("tests.planted:FAMILY", SHAPE, behaviour=behaviour)
    artifact = bench.build(of)
    done = bench.do(BenchJob(of, artifact, bench.device, PROTOCOL))
    if done.failure is not None:
        return Status(done.failure.kind.value).value, done.failure.detail
    measurement: Measurement = done.value
    flops = load_family(of.workload.family).flops(of.workload)
    verdicts = judge(of, artifact, measurement, None, ACCEPTANCE, flops, None)
    if decide(verdicts)[0] is Decision.REJECTED:
        failed = next(v for v in verdicts if v.ruling is Ruling.FAIL)
        return failed.rule, failed.evidence
    done = bench.do(ProveJob(of, artifact, bench.device, launches=1_000, seconds=5))
    if done.failure is not None:
        return done.failure.kind.value, done.failure.detail
    proof: Proof = done.value
    return ("deterministic", f"{proof.equal} of {proof.launches}") if proof.equal < proof.launches else ("", "")


def test_the_right_one_passes(bench: Workbench) -> None:
    assert caught(bench, "right") == ("", "")


@pytest.mark.parametrize("behaviour", PLANTED)
def test_a_planted_fault_is_caught_and_named(bench: Workbench, behaviour: str) -> None:
    plant = PLANTED[behaviour]
    rule, words = caught(bench, behaviour)
    assert plant.caught in words, f"{rule}: {words}"
    assert rule == plant.by or (not plant.by and rule in (FailureKind.WRONG_RESULT, FailureKind.SIDE_EFFECT, "wrong_result"))


def test_what_one_did_is_not_visited_on_the_next(bench: Workbench) -> None:
    """In the same warm process, after those that wrote where they should not have."""
    for behaviour in ("writes_past_an_input", "truncates_its_input_after_use", "slows_the_clock"):
        caught(bench, behaviour)
        assert caught(bench, "right") == ("", "")
