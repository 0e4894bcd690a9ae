"""Nothing that was measured is lost on its way to MLflow, and nothing arrives twice: whatever dies, and whenever."""

from __future__ import annotations

import os
import signal
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import ViewType

from runner.errors import InfrastructureLost, RequestError
from runner.paths import SPOOL
from runner.records import Decision, Outcome, RankedRow, Ruling, Status, SweepInfo, Verdict
from tests import outcomes as make
from tests.servers import local_folder
from tracking import connection, journal, recorder
from tracking.journal import Journal
from tracking.recorder import Recorder, Replayed, replay_all
from tracking.store import Store

__all__ = ["local_folder"]

NOT_FASTER = (Verdict("faster", Ruling.FAIL, "1.01x does not clear 1.02"),)

STRIDE = 13

Action = Callable[[Recorder], None]


def new_sweep() -> SweepInfo:
    return make.sweep(id=uuid.uuid4().hex[:8])


def outcomes() -> list[Outcome]:
    """A good one, a failure, and one that was lost before it was measured."""
    return [
        make.outcome(config={"threads": 64}, is_base=True),
        make.outcome(Status.COMPILE_ERROR, config={"threads": 128}),
        make.outcome(Status.LOST, config={"threads": 256}),
        make.outcome(config={"threads": 256}, attempt=2),
    ]


def actions(written: Sequence[Outcome]) -> list[Action]:
    """All that a driver does for a sweep, after opening it."""
    good = next(o for o in written if o.is_base)
    rows = [RankedRow("", o) for o in written if o.measurement]
    return [
        *(lambda r, o=o: r.write(o) for o in written),
        lambda r: r.amend(Outcome(**{**vars(good), "decision": Decision.REJECTED, "verdicts": NOT_FASTER}), "", drift=0.04),
        lambda r: r.close(rows, {"compile_error: too large": 1}, "2 timed, 1 not", "FINISHED"),
    ]


def drive(info: SweepInfo, done: Callable[[], object] = lambda: None) -> None:
    found = Recorder(Store(), info, 3, make.FLOPS, print)
    for action in actions(outcomes()):
        action(found)
        done()


def everything(info: SweepInfo) -> list[Any]:
    """A sweep's runs as MLflow has them, the deleted ones aside."""
    client = Store().client
    experiments = [e.experiment_id for e in client.search_experiments()]
    return client.search_runs(experiments, f"tags.sweep_id = '{info.id}'", run_view_type=ViewType.ACTIVE_ONLY)


def record(info: SweepInfo) -> set[tuple[str, ...]]:
    """What MLflow says of a sweep's variants. Fails where one is there twice, or is not whole."""
    found = [r for r in everything(info) if r.data.tags["kind"] == "variant"]
    keys = [(r.data.tags["variant_id"], r.data.tags["attempt"]) for r in found]
    assert len(set(keys)) == len(keys), "a variant's attempt is recorded once"
    assert all(r.data.tags["complete"] == "true" for r in found)
    assert {s.outcome.variant.id for s in Store().outcomes(Store().find_sweep(info.id))} == {k for k, _ in keys}
    return {(*k, r.data.tags["status"], r.data.tags["decision"], r.info.status) for k, r in zip(keys, found)}


def demand_finished(info: SweepInfo) -> None:
    """The whole record of `drive`, and nothing else."""
    good, failed, lost, again = outcomes()
    assert record(info) == {
        (good.variant.id, "1", "measured", "rejected", "FINISHED"),
        (failed.variant.id, "1", "compile_error", "rejected", "FAILED"),
        (lost.variant.id, "1", "lost", "rejected", "KILLED"),
        (again.variant.id, "2", "measured", "candidate", "FINISHED"),
    }
    store = Store()
    sweep = store.find_sweep(info.id)
    assert sweep.status == "FINISHED"
    ranking = store.ranking(sweep)
    assert {store.load(str(row["run_id"])).variant_id for row in ranking} == {good.variant.id, again.variant.id}
    amended = next(r for r in everything(info) if r.data.tags.get("variant_id") == good.variant.id)
    assert amended.data.metrics["baseline_drift"] == 0.04
    assert not [r for r in everything(info) if r.info.status == "RUNNING"]
    assert not (SPOOL / info.id).exists(), "nothing waits"


@pytest.mark.parametrize("id", ["../../elsewhere", "/tmp/elsewhere", "ab12cd34/..", ""])
def test_an_id_that_somebody_wrote_into_the_record_leads_nowhere_else(id: str, local_folder: Path) -> None:
    with pytest.raises(RequestError, match="8 hex digits"):
        Recorder(Store(), make.sweep(id=id), 1, make.FLOPS, print)
    assert {path.name for path in local_folder.iterdir()} == {"mlflow.db"}


class Fuse:
    """Ends the process with SIGKILL before or after the n-th thing that is asked of MLflow, or written to disk."""

    ASKED = ((MlflowClient, ("create_run", "update_run", "log_batch", "set_terminated", "delete_run")), (connection, ("upload",)))

    def __init__(self, steps: int):
        self.left = steps
        for owner, names in (*self.ASKED, (os, ("fsync",)), (Path, ("replace", "unlink"))):
            for name in names:
                setattr(owner, name, self._fused(getattr(owner, name)))

    def _fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._burn()
            result = function(*args, **kwargs)
            self._burn()
            return result

        return call

    def _burn(self) -> None:
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)


def drive_until_killed(info: SweepInfo, steps: int) -> tuple[bool, int]:
    """Run `drive` in a process that dies at a step: whether it got to its end, and how many actions were done by then."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Fuse(steps)
            drive(info, lambda: os.write(writer, b"."))
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        done = len(pipe.read())
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), "the driver failed by itself"
    return status == 0, done


def demand_nothing_lost(info: SweepInfo, done: int) -> None:
    """After a replay: what the dead driver had recorded is there, and nothing is half there."""
    recorded = [(o.variant.id, str(o.attempt)) for o in outcomes()[:done]]
    if not everything(info):
        assert not recorded
        return
    found = {entry[:2] for entry in record(info)}
    assert found >= set(recorded), "what was recorded is lost"
    assert found <= {(o.variant.id, str(o.attempt)) for o in outcomes()[: done + 1]}
    assert not [r for r in everything(info) if r.info.status == "RUNNING"]


@pytest.mark.parametrize("first", range(2))
def test_a_driver_killed_at_any_step_loses_nothing_and_leaves_nothing_half_done(local_folder: Path, first: int) -> None:
    """At every `STRIDE`th step there is; the stride is a prime, so that each sort of step has its turn."""
    steps, finished = first * STRIDE // 2, False
    while not finished:
        info = new_sweep()
        finished, done = drive_until_killed(info, steps)
        said = replay_all(Store())
        assert not [late for late in said if late.problem]
        demand_nothing_lost(info, done)
        if not finished:
            drive(info)
        demand_finished(info)
        steps += STRIDE
    assert steps > 60


class Unsteady(Store):
    """A store that is away as often as it is told to be, at one of the steps that it takes to write."""

    def __init__(self, away: Sequence[int]):
        super().__init__()
        self.away = list(away)

    @contextmanager
    def maybe(self, step: int) -> Iterator[None]:
        if self.away and self.away[0] == step:
            self.away.pop(0)
            raise InfrastructureLost("MLflow is away")
        yield

    def write(self, *args: Any, **kwargs: Any) -> str:
        with self.maybe(0):
            return super().write(*args, **kwargs)

    def _upload(self, *args: Any, **kwargs: Any) -> None:
        with self.maybe(1):
            super()._upload(*args, **kwargs)

    def _log(self, *args: Any, **kwargs: Any) -> None:
        with self.maybe(2):
            super()._log(*args, **kwargs)

    def amend(self, *args: Any, **kwargs: Any) -> None:
        with self.maybe(3):
            super().amend(*args, **kwargs)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(4)), away=st.lists(st.integers(0, 3), max_size=6))
def test_any_order_and_any_outages_come_to_the_same_record(local_folder: Path, order: Sequence[int], away: Sequence[int]) -> None:
    info, said = new_sweep(), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "SHORTEST_REST", 0.0)
        patch.setattr(recorder, "REST", 0.0)
        store = Unsteady([])
        found = Recorder(store, info, 3, make.FLOPS, said.append)
        store.away = list(away)
        for action in actions([outcomes()[i] for i in order]):
            action(found)
    assert len([line for line in said if "kept in" in line]) <= len(away)
    waiting = found.pending
    assert [late.records for late in replay_all(Store())] == ([waiting] if waiting else [])
    demand_finished(info)


def leave_waiting(info: SweepInfo) -> Journal:
    """A finished sweep of which MLflow has nothing yet but that it was begun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "SLOW", -1.0)
        store = Unsteady([])
        found = Recorder(store, info, 3, make.FLOPS, print)
        store.away = [0] * 20
        for action in actions(outcomes()):
            action(found)
    assert found.pending == 6
    return Journal(SPOOL / info.id)


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: data[:70] + b"x" + data[71:], lambda data: b""])
@pytest.mark.parametrize("which", [0, 3, 4, 5])
def test_a_damaged_record_is_set_aside_said_once_and_costs_only_itself(
    local_folder: Path, which: int, damage: Callable[[bytes], bytes]
) -> None:
    info = new_sweep()
    path = leave_waiting(info).pending()[which]
    path.write_bytes(damage(path.read_bytes()))
    (late,) = replay_all(Store())
    assert (late.sweep_id, late.records) == (info.id, 5)
    assert f"{path}.damaged" in late.problem and "\n" not in late.problem
    assert Path(f"{path}.damaged").exists(), "kept for a person to look at"
    assert replay_all(Store()) == []

    left = outcomes()
    if which < 4:
        del left[which]
    assert {entry[0] for entry in record(info)} == {o.variant.id for o in left}
    assert Store().find_sweep(info.id).status == ("KILLED" if which == 5 else "FINISHED")
    assert not [r for r in everything(info) if r.info.status == "RUNNING"]


def test_a_damaged_header_is_set_aside_and_said_once(local_folder: Path) -> None:
    info = new_sweep()
    header = leave_waiting(info).folder / "header.json"
    header.write_bytes(header.read_bytes()[:-1])
    (late,) = replay_all(Store())
    assert (late.sweep_id, late.records) == (info.id, 0)
    assert str(SPOOL / f"{info.id}.damaged") in late.problem
    assert replay_all(Store()) == []
    assert len(Journal(SPOOL / f"{info.id}.damaged").pending()) == 6


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A sealed file whose record is another."""
    found = Journal.read(path)
    assert found is not None
    record, blob = found
    change(record)
    path.write_bytes(journal._sealed(record, blob))


def test_what_a_newer_version_adds_to_what_waits_is_passed_over(local_folder: Path) -> None:
    info = new_sweep()
    waiting = leave_waiting(info)
    for path in (waiting.folder / "header.json", *waiting.pending()):
        rewritten(path, lambda record: record.update(added_later=1, **({"schema": 2} if "schema" in record else {})))
    rewritten(waiting.folder / "header.json", lambda header: header["info"].update(added_later=1))
    rewritten(waiting.pending()[0], lambda record: record["outcome"]["measurement"].update(added_later=1))
    assert replay_all(Store()) == [Replayed(info.id, 6)]
    demand_finished(info)


def test_what_waits_and_only_another_version_can_read_is_left_for_it_and_said_in_one_line(local_folder: Path) -> None:
    info = new_sweep()
    waiting = leave_waiting(info)
    rewritten(waiting.folder / "header.json", lambda header: header.update(schema=2) or header["info"].pop("workload"))
    for _ in range(2):
        (late,) = replay_all(Store())
        assert (late.sweep_id, late.records) == (info.id, 0)
        assert "its schema is 2, this version reads 1; info: SweepInfo lacks workload" in late.problem
        assert "\n" not in late.problem
    assert len(Journal(waiting.folder).pending()) == 6


def test_records_for_another_store_wait_for_it_and_are_mentioned(local_folder: Path) -> None:
    info = new_sweep()
    leave_waiting(info)
    other = Store(f"sqlite:///{local_folder}/other.db")
    assert replay_all(other) == [Replayed(info.id, 0, f"they are for MLflow at {Store().uri}")]
    assert replay_all(Store()) == [Replayed(info.id, 6)]
    demand_finished(info)


def test_a_sweep_is_recorded_by_one_process_at_a_time_and_its_journal_is_left_alone(local_folder: Path) -> None:
    info = new_sweep()
    first = Recorder(Store(), info, 3, make.FLOPS, print)
    first.write(outcomes()[0])
    with pytest.raises(RequestError, match="another process"):
        Recorder(Store(), info, 3, make.FLOPS, print)
    assert replay_all(Store()) == []
    assert Store().find_sweep(info.id).status == "RUNNING"
    for action in actions(outcomes())[1:]:
        action(first)
    demand_finished(info)


RECORDS = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(), st.text(max_size=20), st.floats(allow_nan=False)), max_size=4
)


@settings(max_examples=60, deadline=None)
@given(record=RECORDS, blob=st.binary(max_size=200), position=st.integers(0), byte=st.integers(1, 255), cut=st.booleans())
def test_no_change_to_a_record_goes_unseen(record: dict[str, Any], blob: bytes, position: int, byte: int, cut: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "sweep")
        path = journal.add(record, blob)
        assert Journal.read(path) == (record, blob)
        data = bytearray(path.read_bytes())
        at = position % len(data)
        data[at] ^= byte
        path.write_bytes(bytes(data[:at]) if cut else bytes(data))
        assert Journal.read(path) is None


@settings(max_examples=30, deadline=None)
@given(blobs=st.lists(st.binary(max_size=50), max_size=12), taken=st.integers(0, 12))
def test_records_come_back_in_the_order_they_were_added_also_to_the_next_process(blobs: list[bytes], taken: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder))
        for number, blob in enumerate(blobs):
            journal.add({"n": number}, blob)
        for path in journal.pending()[:taken]:
            path.unlink()
        (Path(folder) / ".00000099.tmp").write_bytes(b"never finished")
        (Path(folder) / "notes.record").write_bytes(b"not one of ours")
        later = Journal(Path(folder))
        later.add({"n": len(blobs)}, b"last")
        assert [Journal.read(p) for p in later.pending()] == [
            *(({"n": n}, blob) for n, blob in enumerate(blobs) if n >= taken),
            ({"n": len(blobs)}, b"last"),
        ]
