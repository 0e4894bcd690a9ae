"""What a plan makes of runs that are known from before."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from runner.gate import IN_FINALS
from runner.planning import _disturbed, _judge, _played_before
from runner.records import Acceptance, Decision, Outcome, Ruling, Verdict
from tests import outcomes as make
from tracking.stored import Stored

BUSY = "python3 (pid 7) at 59 %"
LENIENT = Acceptance(mma="none", alone="none")


def stored(outcome: Outcome, acceptance: Acceptance = LENIENT, **changes: Any) -> Stored:
    found = Stored("run", "1", "parent", "ab12cd34", "sweep", outcome, outcome.decision, acceptance, "NVIDIA H200", (), "now")
    return replace(found, **changes)


def planned(acceptance: Acceptance = LENIENT, **known: Stored) -> Any:
    """As much of a plan as is looked at."""
    base = make.variant(b_interleave=1)
    spec = SimpleNamespace(acceptance=acceptance, swept=())
    return SimpleNamespace(spec=spec, expansion=SimpleNamespace(base=base), best=None, known=known)


@pytest.mark.parametrize("rule", ["correct", "pure"])
def test_what_the_finals_found_no_new_judgement_takes_back(rule: str) -> None:
    """Its own measurement passes every rule still."""
    fault = Verdict(rule, Ruling.FAIL, f"{IN_FINALS}one-hot rows, seed 7: off by 3")
    refused = make.outcome(verdicts=(fault,), decision=Decision.REJECTED)
    assert _judge(stored(refused), planned(), None, make.FLOPS).decision is Decision.REJECTED
    assert _judge(stored(make.outcome()), planned(), None, make.FLOPS).decision is Decision.UNPROVEN


def test_but_that_others_disturbed_them_is_only_held_against_it_where_quiet_is_asked_for() -> None:
    fault = Verdict("alone", Ruling.FAIL, f"{IN_FINALS}disturbed twice in one session: {BUSY}")
    refused = stored(make.outcome(verdicts=(fault,), decision=Decision.REJECTED))
    strict = replace(LENIENT, alone="required")
    assert _judge(refused, planned(), None, make.FLOPS).decision is Decision.UNPROVEN
    assert _judge(refused, planned(strict), None, make.FLOPS).decision is Decision.REJECTED


@pytest.mark.parametrize("now, then, again", [("required", "none", True), ("none", "required", True), ("none", "none", False)])
def test_a_run_that_was_disturbed_is_measured_again_where_it_could_not_be_accepted(now: str, then: str, again: bool) -> None:
    """With `--set accept.alone=none` on a machine that is never idle: runs from before stay rejected by their own rules."""
    measured = make.outcome(measurement=replace(make.measurement(), contended=BUSY))
    run = stored(measured, Acceptance(alone=then))
    assert _disturbed(run, planned(Acceptance(alone=now)).spec) is again
    assert not _disturbed(stored(make.outcome(), Acceptance(alone=then)), planned(Acceptance(alone=now)).spec)


def test_only_pairs_with_todays_reference_are_taken_over() -> None:
    base = make.variant(b_interleave=1)
    mine, anothers = (make.paired(make.outcome(), reference_id=i) for i in (base.id, "f" * 12))
    known = {"a": stored(make.outcome(), paired=mine), "b": stored(make.outcome(), paired=anothers), "c": stored(make.outcome())}
    assert _played_before(planned(**known), None) == {"a": mine}
