"""What `runner accept` promotes and what it refuses, over sessions that end as they are told to, in a real store."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kernels.family import code_hash, load_family
from runner.accept import DOUBT, PAIRS, SESSIONS, Accepted, accept, confidence_of, told_apart, with_itself
from runner.errors import FailureKind, JobFailed, Refused
from runner.evaluate import evaluate
from runner.jobs.requests import PairJob, ProveJob
from runner.records import Acceptance, Decision, Device, Protocol, Ruling, Try, Verdict
from tests import outcomes as make
from tests.fake_executor import FakeExecutor, Fate
from tests.servers import local_folder
from tracking.registry import Registry
from tracking.store import Store
from tracking.stored import Stored

__all__ = ["local_folder"]

BUSY = "python3 (pid 7) at 59 %"
VERDICTS = tuple(
    Verdict(rule, Ruling.PASS, "so it was in the sweep")
    for rule in ("correct", "accurate", "deterministic", "mma", "plausible", "stable", "alone", "faster")
)
NAMES = {"old": 4, "new": 8}
"""The runs, and the knob that tells one from the other."""

FASTER = [1 / 1.02, 1 / 1.021, 1 / 1.019, 1 / 1.02, 1 / 1.022]
"""Milliseconds of five sessions, in a reference's 1 ms: every one is 2 % faster."""

NO_BETTER = [1 / 1.004, 1 / 0.998, 1 / 1.003, 1 / 0.997, 1 / 1.002]


@dataclass
class Place:
    """A store with a best and runs that challenge it, and what measures. What is said is kept."""

    store: Store
    device: Device
    fates: dict[str, Fate]
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = FakeExecutor(self.fates, lambda v: next(n for n, i in NAMES.items() if i == v.config["b_interleave"]))
        self.executor.at_hand = (self.device,)

    def add(self, name: str, acceptance: Acceptance = Acceptance(), **changes: Any) -> Stored:  # noqa: B008 - it is frozen
        """A measured run of its own sweep."""
        info = make.sweep(id=uuid.uuid4().hex[:8], device=self.device, acceptance=acceptance)
        code = code_hash(load_family("gemm"))
        made = replace(make.variant(b_interleave=NAMES[name]), code=code, **changes)
        outcome = make.outcome(variant=made, artifact=make.artifact(made), verdicts=VERDICTS, decision=Decision.CANDIDATE)
        return self.store.load(self.store.write(self.store.open_sweep(info, 1), info, outcome, make.FLOPS))

    def promote(self, run: Stored) -> None:
        Registry(self.store).promote(run, None, VERDICTS, None)

    def accept(self, run: Stored) -> Accepted:
        return accept(run.run_id, self.store, self.executor, self.said.append)

    def best(self) -> str:
        found = Registry(self.store).best(make.WORKLOAD, self.device.model)
        assert found is not None
        return found.run_id

    def pairs(self) -> list[PairJob]:
        return [job for job in self.executor.jobs if isinstance(job, PairJob)]

    def verdict(self, rule: str) -> str:
        return next(line for line in self.said if line.startswith(f"  {rule} "))


@pytest.fixture
def place(local_folder: Path) -> Place:
    """The best takes 1 ms. Tests say how long `new` takes in each session."""
    found = Place(Store(), make.DEVICE, {"old": Fate("old"), "new": Fate("new", pairs=list(FASTER))})
    found.promote(found.add("old"))
    return found


def test_the_faster_one_is_proven_paired_in_five_fresh_processes_and_promoted(place: Place) -> None:
    run = place.add("new")
    accepted = place.accept(run)
    assert place.best() == run.run_id and accepted.paired
    proof = place.executor.jobs[0]
    assert isinstance(proof, ProveJob) and (proof.launches, proof.seconds) == (1_000, 10.0)
    assert len(place.pairs()) == SESSIONS and len({job.session for job in place.pairs()}) == SESSIONS
    assert {job.pairs for job in place.pairs()} == {PAIRS}
    assert len(accepted.paired.sessions) == SESSIONS and accepted.paired.tau is not None
    assert "1.0204 [1.0190, 1.0218] k=5" in place.verdict("faster") and "clears 1" in place.verdict("faster")
    assert "1,250 of 1,250 outputs" in place.verdict("deterministic")
    assert "max_abs_error 0 (before timing)" in place.verdict("correct"), "what other inputs leave has another scale"
    assert "also on integers" in place.verdict("correct")
    assert "p80 - p20 is 0.0% of the median in the middle session" in place.verdict("stable")
    assert place.store.tries(run.run_id) == []


def test_one_that_is_no_better_is_refused_and_told_what_could_have_been_seen(place: Place) -> None:
    place.fates["new"].pairs = list(NO_BETTER)
    run = place.add("new")
    with pytest.raises(Refused, match="faster; the best is unchanged"):
        place.accept(run)
    assert place.best() != run.run_id
    assert "does not clear 1; a gain above 0.4 % would have shown" in place.verdict("faster")


@pytest.mark.parametrize("alone", ["required", "none"])
def test_one_that_others_disturbed_twice_is_not_promoted(place: Place, alone: str) -> None:
    """It was: who disturbed the pair stood in the sentence that it was promoted by."""
    place.fates["new"].disturbed = ["", BUSY, BUSY, ""]
    run = place.add("new", Acceptance(alone=alone))
    if alone == "none":
        assert place.accept(run).paired and place.best() == run.run_id
        assert BUSY in place.verdict("alone") and "not applicable" in place.verdict("alone")
        return
    with pytest.raises(Refused, match="alone; the best is unchanged"):
        place.accept(run)
    assert place.best() != run.run_id and len(place.pairs()) == 3
    assert f"disturbed twice in one session: {BUSY}" in place.verdict("alone")
    assert "sweep submit sweeps/interleave.yaml --set accept.alone=none" in place.said[-1]
    (tried,) = place.store.tries(run.run_id)
    assert len(tried.sessions) == 1 and tried.reason.startswith("alone: ")


def test_a_session_that_was_disturbed_once_is_repeated(place: Place) -> None:
    place.fates["new"].disturbed = ["", BUSY, "", "", "", ""]
    place.fates["new"].pairs = [*FASTER[:2], FASTER[1], *FASTER[2:]]
    accepted = place.accept(place.add("new"))
    assert len(place.pairs()) == SESSIONS + 1 and accepted.paired and accepted.paired.contended == ""
    assert place.pairs()[1].session == place.pairs()[2].session != place.pairs()[3].session


@pytest.mark.parametrize(
    "changes, rule, said",
    [
        (
            {"proofs": [JobFailed(FailureKind.WRONG_RESULT, "integers, seed 7: off by 3")]},
            "correct",
            "integers, seed 7: off by 3",
        ),
        ({"proofs": [JobFailed(FailureKind.SIDE_EFFECT, "started 3 threads")]}, "pure", "started 3 threads"),
        ({"unequal": 1}, "deterministic", "1,249 of 1,250 outputs"),
        ({"pairs": [1.0, JobFailed(FailureKind.CRASH, "killed by SIGSEGV")]}, "correct", "in pairs: crash: killed by SIGSEGV"),
        ({"pairs": [1e-5]}, "plausible", "of the device's 989"),
    ],
)
def test_what_shows_before_it_is_promoted_refuses_it(place: Place, changes: dict[str, Any], rule: str, said: str) -> None:
    place.fates["new"] = replace(place.fates["new"], **changes)
    run = place.add("new")
    with pytest.raises(Refused, match=rule):
        place.accept(run)
    assert place.best() != run.run_id
    assert said in place.verdict(rule) and "fail" in place.verdict(rule)
    assert len(place.store.tries(run.run_id)) == 1


def test_what_failed_a_rule_in_its_sweep_is_not_measured(place: Place) -> None:
    run = place.add("new")
    failed = (*VERDICTS[:6], Verdict("alone", Ruling.FAIL, BUSY), VERDICTS[7])
    place.store.amend(run.run_id, Decision.REJECTED, "alone", failed)
    with pytest.raises(Refused, match="alone"):
        place.accept(run)
    assert place.executor.jobs == [] and place.store.tries(run.run_id) == []
    assert "--set accept.alone=none" in place.said[-1]


def test_a_second_try_counts_the_first_ones_sessions_and_asks_for_more(place: Place) -> None:
    place.fates["new"].pairs = [*NO_BETTER, *FASTER]
    run = place.add("new")
    with pytest.raises(Refused):
        place.accept(run)
    run_tags = place.store.client.get_run(run.run_id).data.tags
    assert run_tags["refused_accepts"] == "1"
    place.said.clear()
    accepted = place.accept(run)
    assert "2nd try: 10 sessions, 500 pairs in all" in place.said
    assert accepted.paired and accepted.paired.confidence == 0.975 and len(accepted.paired.sessions) == 10
    assert "k=10" in place.verdict("faster") and "97.5%" in place.verdict("faster")
    assert place.best() == run.run_id


def test_trying_for_ever_accepts_what_is_not_faster_in_less_than_a_twentieth() -> None:
    assert sum((1 - confidence_of(n)) / 2 for n in range(1, 200)) <= DOUBT
    assert confidence_of(1) == 0.95


@pytest.mark.parametrize("differs", ["reference_id", "protocol", "device_model"])
def test_tries_of_another_sort_are_not_counted(place: Place, differs: str) -> None:
    run, old = place.add("new"), Registry(place.store).best(make.WORKLOAD, place.device.model)
    assert old is not None
    tried = Try(old.variant_id, Protocol().key, place.device.model, "faster", "2026-01-02T03:04:05+00:00", (make.session(0.5),))
    place.store.add_try(run.run_id, replace(tried, **{differs: "another"}))
    accepted = place.accept(run)
    assert accepted.paired and len(accepted.paired.sessions) == SESSIONS and accepted.paired.confidence == 0.95


def test_a_best_of_an_older_protocol_can_be_challenged(local_folder: Path) -> None:
    """The pairs are taken today, of both kernels; the old numbers are compared with nothing."""
    place = Place(Store(), make.DEVICE, {"old": Fate("old"), "new": Fate("new", pairs=list(FASTER))})
    place.promote(place.add("old", protocol="v1/w10/r50"))
    run = place.add("new")
    place.accept(run)
    assert place.best() == run.run_id and len(place.pairs()) == SESSIONS


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("v1/w10/r100", "v2/w10/r50", "the best under v1/w10/r100"),
        ("v2/w10/r50", "v1/w10/r50", "measured under protocol v1/w10/r50, today's is v2"),
    ],
)
def test_other_settings_and_older_runs_are_refused(local_folder: Path, old: str, new: str, said: str) -> None:
    place = Place(Store(), make.DEVICE, {"old": Fate("old"), "new": Fate("new")})
    place.promote(place.add("old", protocol=old))
    with pytest.raises(Refused, match=said):
        place.accept(place.add("new", protocol=new))
    assert place.executor.jobs == []


def test_a_run_against_itself_promotes_nothing_and_says_what_can_be_told(place: Place) -> None:
    place.fates["new"].pairs = list(NO_BETTER)
    run, before = place.add("new"), place.best()
    found = with_itself(run.run_id, place.store, place.executor, place.said.append)
    assert place.executor.log == ["pair new with new"] * SESSIONS
    assert place.best() == before and place.store.tries(run.run_id) == []
    first, second = told_apart(found).splitlines()
    assert first.startswith("against itself: ") and "k=5" in first and "250 pairs" in first
    assert second == "this machine can tell a difference of 0.4 % in as many"


def test_a_base_becomes_the_first_best_on_its_proof(local_folder: Path) -> None:
    place = Place(Store(), make.DEVICE, {"old": Fate("old")})
    info = make.sweep(device=place.device)
    made = replace(make.variant(b_interleave=NAMES["old"]), code=code_hash(load_family("gemm")))
    beaten = (*VERDICTS[:7], Verdict("faster", Ruling.FAIL, "one of them beat it in pairs"))
    outcome = make.outcome(variant=made, artifact=make.artifact(made), verdicts=beaten, is_base=True)
    run = place.store.load(place.store.write(place.store.open_sweep(info, 1), info, outcome, make.FLOPS))
    assert place.accept(run).paired is None
    assert place.executor.log[0] == "prove old" and place.pairs() == [] and place.best() == run.run_id
    assert "1,000 of 1,000 outputs" in place.verdict("deterministic")
    assert "there is no best" in place.verdict("faster"), "others beat it, and may be accepted after it"


def test_an_evaluation_is_over_sessions_and_tells_the_baselines_own_error(place: Place) -> None:
    best = Registry(place.store).best(make.WORKLOAD, place.device.model)
    assert best is not None
    place.fates["old"].pairs = [1 / 1.01, 1 / 1.02, 1 / 1.03]
    baseline, kernel = evaluate(best, place.store, place.executor, Protocol(10, 20), sessions=3)
    assert {job.form for job in place.pairs()} == {"plain"} and {job.pairs for job in place.pairs()} == {20}
    assert len({job.session for job in place.pairs()}) == 3
    assert (baseline.relative_error, kernel.relative_error) == (2.07e-4, 2.1e-4)
    assert (baseline.max_abs_error, kernel.max_abs_error) == (None, 0.0)
    assert kernel.sessions == 3 and kernel.tau == pytest.approx(0.01, rel=0.02)
    assert kernel.speedup_vs_baseline == pytest.approx(1.02, rel=1e-3)
    assert json.loads(json.dumps(vars(kernel)))["speedup_low"] < 1.0, "three sessions so far apart show little"
