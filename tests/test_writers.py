"""Processes that record beside the driver: whatever becomes of them, of the driver or of MLflow, all is there, and once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.errors import InfrastructureLost
from runner.paths import SPOOL
from runner.records import Decision, Outcome, RankedRow, SweepInfo
from tests import outcomes as make
from tests.processes import children, eventually_gone
from tests.proxy import Proxy
from tests.servers import local_folder, mlflow_server
from tests.test_outages import between
from tests.test_recorder import NOT_FASTER, actions, demand_finished, everything, new_sweep, outcomes, record
from tracking import recorder, writers
from tracking.recorder import Recorder, replay_all
from tracking.store import Store

__all__ = ["between", "local_folder", "mlflow_server"]

MANY = 24


def many(number: int = MANY) -> list[Outcome]:
    return [make.outcome(config={"b_interleave": i}) for i in range(number)]


def begin(info: SweepInfo, say: Callable[[str], None] = print) -> Recorder:
    return Recorder(Store(), info, MANY, make.FLOPS, say, writers=2)


def end(found: Recorder, written: list[Outcome]) -> None:
    """With the first outcome's decision changed, as a sweep's end may."""
    found.amend(Outcome(**{**vars(written[0]), "decision": Decision.REJECTED, "verdicts": NOT_FASTER}), "", drift=0.04)
    found.close([RankedRow(found.run_id(o), o) for o in written], {}, f"{len(written)} timed, 0 not", "FINISHED")


def demand_all_once(info: SweepInfo, written: list[Outcome]) -> None:
    """In MLflow, and nowhere else any more."""
    found = {(id, decision, ended) for id, _, _, decision, ended in record(info)}
    assert found == {(o.variant.id, "rejected" if o is written[0] else "candidate", "FINISHED") for o in written}
    assert not [run for run in everything(info) if run.info.status == "RUNNING"]
    assert {str(row["run_id"]) for row in Store().ranking(Store().find_sweep(info.id))} == {
        run.info.run_id for run in everything(info) if run.data.tags["kind"] == "variant"
    }
    assert not (SPOOL / info.id).exists(), "nothing waits"


def write_half(found: Recorder, written: list[Outcome]) -> list[Outcome]:
    """Returns the other half once a writer has brought MLflow one: others are under way then."""
    for outcome in written[: MANY // 2]:
        found.write(outcome)
    await_ended(found.info, 1)
    return written[MANY // 2 :]


def await_ended(info: SweepInfo, number: int) -> None:
    end = time.monotonic() + 120
    while len([run for run in everything(info) if run.info.status == "FINISHED"]) < number:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_several_processes_write_is_the_record_that_one_would_write(local_folder: Path) -> None:
    info = new_sweep()
    found = begin(info)
    pids = children(os.getpid(), "writer.py")
    for action in actions(outcomes()):
        action(found)
    assert len(pids) == 2
    assert all(map(eventually_gone, pids))
    demand_finished(info)


def test_every_outcome_is_there_before_what_changes_one_and_the_end_is_last(local_folder: Path) -> None:
    info, written = new_sweep(), many()
    found = begin(info)
    for outcome in written:
        found.write(outcome)
    end(found, written)
    assert all(found.run_id(o) for o in written)
    demand_all_once(info, written)


@pytest.mark.parametrize("killed", [1, 2])
def test_a_writer_that_dies_costs_nothing(local_folder: Path, killed: int) -> None:
    info, written, said = new_sweep(), many(), list[str]()
    found = begin(info, said.append)
    left = write_half(found, written)
    for pid in children(os.getpid(), "writer.py")[:killed]:
        os.kill(pid, signal.SIGKILL)
    for outcome in left:
        found.write(outcome)
    end(found, written)
    assert not said, "the driver could write, so there was nothing to tell"
    demand_all_once(info, written)


def test_a_writer_that_hangs_is_ended_and_what_it_had_is_written_all_the_same(
    local_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info, written = new_sweep(), many()
    found = begin(info)
    left = write_half(found, written)
    stopped = children(os.getpid(), "writer.py")
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(writers, "SILENCE", 0.2)
    for outcome in left:
        time.sleep(0.1)
        found.write(outcome)
    end(found, written)
    assert all(map(eventually_gone, stopped))
    demand_all_once(info, written)


def test_a_record_that_is_damaged_before_a_writer_reads_it_is_set_aside_and_costs_only_itself(local_folder: Path) -> None:
    info, written, said = new_sweep(), many(6), list[str]()
    found = begin(info, said.append)
    pids = children(os.getpid(), "writer.py")
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for outcome in written:
        found.write(outcome)
    path = max((SPOOL / info.id).glob("*.record"))
    path.write_bytes(path.read_bytes()[:-40])
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    end(found, written[:-1])
    assert [line for line in said if "damaged" in line] == said and len(said) == 1 and str(path) in said[0]
    assert {entry[0] for entry in record(info)} == {o.variant.id for o in written[:-1]}
    assert Store().find_sweep(info.id).status == "FINISHED"


@pytest.mark.parametrize("wanted", [0, 1, 7])
def test_a_driver_killed_beside_its_writers_loses_nothing_and_leaves_none_of_them(local_folder: Path, wanted: int) -> None:
    """Killed when so many outcomes were written by them, and others are under way."""
    info, written = new_sweep(), many()
    reader, pipe = os.pipe()
    driver = os.fork()
    if driver == 0:
        try:
            found = begin(info)
            for outcome in written:
                found.write(outcome)
                os.write(pipe, b".")
            signal.pause()
        finally:
            os._exit(1)
    os.close(pipe)
    done = len(os.read(reader, 1))
    await_ended(info, wanted)
    pids = children(driver, "writer.py")
    os.kill(driver, signal.SIGKILL)
    os.waitpid(driver, 0)
    with os.fdopen(reader, "rb") as rest:
        done += len(rest.read())
    assert all(map(eventually_gone, pids))
    assert len(pids) == 2
    assert not [late for late in replay_all(Store()) if late.problem]
    found_ids = {entry[0] for entry in record(info)}
    assert found_ids >= {o.variant.id for o in written[:done]}, "what was recorded is lost"
    assert not [run for run in everything(info) if run.info.status == "RUNNING"]
    assert not (SPOOL / info.id).exists()


@pytest.mark.parametrize("mode", ["error", "hang"])
def test_while_mlflow_fails_a_sweep_goes_on_and_its_writers_bring_what_was_kept_once_it_is_back(
    between: Proxy, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    info, written, said = new_sweep(), many(), list[str]()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", between.address)
    found = begin(info, said.append)
    left = write_half(found, written)
    between.become(mode)
    started = time.monotonic()
    for outcome in left[:5]:
        found.write(outcome)
    while not said:
        time.sleep(0.1)
        written.append(make.outcome(config={"b_interleave": len(written)}))
        found.write(written[-1])
    # A writer's request and then the driver's are given up after four seconds each; from then on nobody asks for a while.
    assert time.monotonic() - started < 40
    (line,) = said
    assert "outcomes are kept in .runner/spool/" in line and "\n" not in line
    assert not children(os.getpid(), "writer.py"), "none of them waits where nobody answers"
    between.become("pass")
    monkeypatch.setattr(found, "_not_before", 0.0)  # the rest is over
    for outcome in left[5:]:
        found.write(outcome)
    assert children(os.getpid(), "writer.py")
    end(found, written)
    assert [line.split(":")[0] for line in said] == ["MLflow at http", "MLflow answers again"]
    demand_all_once(info, written)


def test_a_disk_that_takes_no_record_leaves_no_writer(local_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = begin(new_sweep())
    pids = children(os.getpid(), "writer.py")

    def full(*_: object) -> Path:
        raise InfrastructureLost("cannot write: no room")

    monkeypatch.setattr(recorder.Journal, "add", full)
    with pytest.raises(InfrastructureLost, match="no room"):
        found.close([], {}, "", "FAILED")
    assert all(map(eventually_gone, pids))
