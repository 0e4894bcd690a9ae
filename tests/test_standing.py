"""Who looks at a sweep that is still running sees how it stands: its driver writes it on the sweep's own run."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from runner import remote
from runner.cli import render
from runner.cli.render import standing as said
from runner.executors.jobs import Job
from runner.records import Status
from tests import command
from tests import outcomes as make
from tests.command import ok
from tests.servers import local_folder  # noqa: F401 - a fixture
from tracking import recorder
from tracking.recorder import Recorder
from tracking.standing import Standing, dumped, loaded
from tracking.store import Store


@pytest.fixture
def running(local_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Recorder:  # noqa: F811
    """A sweep of ten, one of them known before, with three settled."""
    monkeypatch.setattr(recorder, "STANDING", 0.0)
    found = Recorder(Store(), make.sweep(id=uuid.uuid4().hex[:8]), 10, make.FLOPS, print, known=1)
    for number, status in enumerate((Status.MEASURED, Status.MEASURED, Status.CRASH)):
        found.write(make.outcome(status, latency_ms=3.0 - number, config={"b_interleave": 2**number}))
    return found


def test_it_says_what_is_done_where_and_what_leads(running: Recorder) -> None:
    stands = Store().find_sweep(running.info.id).standing
    assert stands is not None
    assert (stands.known, stands.counts, stands.devices) == (1, {"measured": 2, "crash": 1}, {"node-7 1": 2})
    assert (stands.best_ms, stands.best) == (2.0, "b_interleave=2")


def test_the_commands_show_it(running: Recorder, local_folder: Path) -> None:  # noqa: F811
    shown = ok(command.here("sweep", "status", running.info.id, folder=local_folder))
    assert "1 known 2 measured 1 crash of 10" in shown
    assert "best so far 2 ms: b_interleave=2" in shown and "node-7 1: 2 timed" in shown and "left" in shown
    assert "1 known 2 measured 1 crash of 10" in ok(command.here("sweep", "list", folder=local_folder))


def test_once_it_is_closed_its_counts_stand_alone(running: Recorder, local_folder: Path) -> None:  # noqa: F811
    running.close([], {"crash": 1}, "nothing", "FINISHED")
    found = Store().find_sweep(running.info.id)
    assert found.standing is None and found.counts == {"crash": 1}
    assert "left" not in ok(command.here("sweep", "status", running.info.id, folder=local_folder))


START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def stands_at(seconds: float, **counts: int) -> Standing:
    return Standing(2, START.isoformat(), (START + timedelta(seconds=seconds)).isoformat(), counts)


def test_what_is_left_goes_by_the_pace_so_far() -> None:
    assert stands_at(60, measured=3, hang=1).seconds_left(12) == 15 * 6
    assert stands_at(60).seconds_left(12) is None
    assert stands_at(60, measured=30).seconds_left(12) == 0


def test_a_driver_that_says_nothing_may_be_gone(running: Recorder) -> None:
    sweep = Store().find_sweep(running.info.id)
    assert not [line for line in said(sweep, datetime.now(timezone.utc)) if "resume" in line]
    (line,) = [line for line in said(sweep, datetime.now(timezone.utc) + timedelta(minutes=10)) if "resume" in line]
    assert line.startswith("last heard of 10 min ago") and f"`sweep resume {sweep.id}`" in line


HEAD = "http://head:8265"


def seen_with(recorder: Recorder, job: Job | None) -> list[str]:
    """The lines of `sweep status` about a sweep whose record is open, with its job on a cluster."""
    store = Store()
    found = remote.Status(HEAD, store, store.find_sweep(recorder.info.id), job, None)
    parts = render.status(found, found.ranking(), datetime.now(timezone.utc) + timedelta(minutes=10))
    return [part for part in parts if isinstance(part, str)]


def job_of(recorder: Recorder, state: str, message: str) -> Job:
    return Job("sweep-1f0c", recorder.info.id, "blocks", state, "2026-01-02T03:04:05+00:00", message, None)


def test_a_driver_that_died_is_told_from_one_that_is_silent(running: Recorder) -> None:
    resume = f"`sweep resume {running.info.id}`"
    lines = seen_with(running, job_of(running, "FAILED", "its driver was killed by SIGKILL"))
    (line,) = [line for line in lines if "job sweep-1f0c" in line]
    assert line == f"blocks {running.info.id}: job sweep-1f0c failed: its driver was killed by SIGKILL"
    (line,) = [line for line in lines if resume in line]
    assert line == f"its driver ended before it closed the record: {resume} measures what is missing"

    lines = seen_with(running, job_of(running, "RUNNING", "Job is currently running."))
    assert f"blocks {running.info.id}: job sweep-1f0c running" in lines
    (line,) = [line for line in lines if resume in line]
    assert line.startswith("last heard of 10 min ago")

    (line,) = [line for line in seen_with(running, None) if HEAD in line]
    assert line == f"{HEAD} has no job of it: unless it runs elsewhere, {resume} measures what is missing"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"known": 1, "of another version": 2}'])
def test_what_cannot_be_read_is_nothing(text: str) -> None:
    assert loaded(text) is None


def test_it_survives_its_text_also_with_what_a_newer_version_adds() -> None:
    text = dumped(stands_at(3, measured=1))
    assert loaded(text) == loaded(json.dumps({**json.loads(text), "added_later": 1})) == stands_at(3, measured=1)
