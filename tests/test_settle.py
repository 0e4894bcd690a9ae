"""What the driver keeps of an outcome that is on record, for the end of the sweep and for a twin that may come."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner import settle
from runner.records import RankedRow, Status
from tests import outcomes as make
from tracking.report.table import ranking

BINARY = {"blob": b"", "source": "", "log": ""}


@given(samples=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=60), error=st.floats(0, 1))
def test_the_table_at_the_end_shows_what_was_measured(samples: list[float], error: float) -> None:
    taken = replace(make.measurement(error=error), samples_ms=tuple(samples))
    outcome = make.outcome(measurement=taken)
    full, kept = (ranking(["b_interleave"], [RankedRow("run", o)], make.FLOPS) for o in (outcome, settle.remembered(outcome)))
    assert full == kept


@pytest.mark.parametrize("status", list(Status))
def test_what_is_kept_is_an_outcome_all_the_same(status: Status) -> None:
    outcome = make.outcome(status)
    kept = settle.remembered(outcome)
    assert (kept.variant, kept.status, kept.reason, kept.decision) == (outcome.variant, status, outcome.reason, outcome.decision)
    assert kept.verdicts == outcome.verdicts and kept.baseline == outcome.baseline


def test_what_is_kept_takes_little_however_much_there_was() -> None:
    small, large = (
        settle.remembered(
            make.outcome(
                artifact=make.artifact(make.variant(), blob=b"x" * size, source="s" * size, log="l" * size),
                measurement=replace(make.measurement(), samples_ms=(1.0,) * size),
            )
        )
        for size in (10, 100_000)
    )
    assert len(pickle.dumps(large)) <= len(pickle.dumps(small)) + 100


def test_a_packed_outcome_comes_back_with_every_sample_and_without_its_binary() -> None:
    outcome = make.outcome()
    assert outcome.artifact is not None
    assert settle.unpacked(settle.packed(outcome)) == replace(outcome, artifact=replace(outcome.artifact, **BINARY))
