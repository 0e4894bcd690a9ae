"""MLflow that is down, broken, silent or slow, and a disk that is full: one line, nothing lost, little time."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from runner.records import Outcome, SweepInfo
from tests import command, servers
from tests import outcomes as make
from tests.command import ok, sweep_file
from tests.proxy import Proxy, proxy
from tests.servers import free_port, local_folder, mlflow_server, running
from tests.test_interrupts import read_until
from tracking import recorder
from tracking.recorder import Recorder, Replayed, replay_all
from tracking.store import Store

__all__ = ["local_folder", "mlflow_server"]

ROOM = 24 << 20
"""Bytes of the disk that is filled: MLflow's database, its artifacts and the journal fit in there, with room to spare."""


@pytest.fixture
def between(mlflow_server: str, local_folder: Path) -> Iterator[Proxy]:
    with proxy(mlflow_server) as made:
        yield made


def runs(uri: str, kind: str, name: str = "") -> list[Run]:
    client = MlflowClient(uri)
    ids = [e.experiment_id for e in client.search_experiments()]
    found = client.search_runs(ids, f"tags.kind = '{kind}'" + (f" AND tags.sweep_name = '{name}'" if name else ""))
    return [run for run in found if kind == "variant" or not name or run.info.run_name.startswith(f"{name} ")]


@pytest.mark.parametrize(("mode", "said"), [("error", "answers with error 500"), ("hang", "does not answer in time")])
def test_a_server_that_is_broken_at_the_start_is_one_line_soon_and_nothing_starts(
    between: Proxy, tmp_path: Path, mode: str, said: str
) -> None:
    between.become(mode)
    started = time.monotonic()
    done = command.run("sweep", "submit", str(sweep_file(tmp_path)), folder=tmp_path, MLFLOW_TRACKING_URI=between.address)
    assert time.monotonic() - started < 40, "15 s on a machine that has nothing else to do"
    assert done.returncode == 3
    (line,) = done.stderr.strip().splitlines()
    assert said in line and between.address in line
    assert "building" not in done.stdout
    assert not (tmp_path / ".runner").exists()


def new_sweep() -> SweepInfo:
    return make.sweep(id=uuid.uuid4().hex[:8])


def outcomes(number: int) -> list[Outcome]:
    return [make.outcome(config={"b_interleave": i}) for i in range(number)]


def recorded(store: Store, info: SweepInfo) -> list[str]:
    """The variants of a sweep, in the order in which MLflow got them."""
    return [s.variant_id for s in store.outcomes(store.find_sweep(info.id))]


@pytest.mark.parametrize("mode", ["error", "hang"])
def test_while_mlflow_fails_a_sweep_goes_on_and_later_everything_is_there_in_order(between: Proxy, mode: str) -> None:
    info, written, said = new_sweep(), outcomes(6), list[str]()
    found = Recorder(Store(between.address), info, 6, make.FLOPS, said.append)
    found.write(written[0])
    between.become(mode)
    started = time.monotonic()
    for outcome in written[1:]:
        found.write(outcome)
    found.close([], {}, "6 timed, 0 not", "FINISHED")
    # Two attempts at most: one when it began to fail, one at the end. A request is given up after four seconds.
    assert time.monotonic() - started < 20
    assert found.pending == 6
    (line,) = said
    assert "outcomes are kept in .runner/spool/" in line and "\n" not in line
    between.become("pass")
    store = Store(between.address)
    assert replay_all(store) == [Replayed(info.id, 6)]
    assert recorded(store, info) == [o.variant.id for o in written]
    assert store.find_sweep(info.id).status == "FINISHED"
    assert not [r for r in runs(between.address, "variant") if r.data.tags["sweep_id"] == info.id and r.info.status == "RUNNING"]


def test_mlflow_that_comes_back_gets_what_was_kept_while_the_sweep_goes_on(
    between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SHORTEST_REST", 0.0)
    monkeypatch.setattr(recorder, "REST", 0.0)
    info, written, said = new_sweep(), outcomes(4), list[str]()
    store = Store(between.address)
    found = Recorder(store, info, 4, make.FLOPS, said.append)
    between.become("error")
    found.write(written[0])
    found.write(written[1])
    between.become("pass")
    found.write(written[2])
    assert found.pending == 0
    assert [line.split(";")[0].split(":")[0] for line in said] == ["MLflow at http", "MLflow answers again"]
    assert found.run_id(written[0]) == store.find(written[0].variant.id).run_id
    found.write(written[3])
    found.close([], {}, "4 timed, 0 not", "FINISHED")
    assert recorded(store, info) == [o.variant.id for o in written]


class HangsAt(Store):
    """A store whose server stops answering when it is told how the sweep stands."""

    way: Proxy

    def stand(self, *args: object) -> None:
        self.way.become("hang")
        super().stand(*args)  # type: ignore[arg-type]


def test_a_server_that_hangs_while_it_is_told_how_a_sweep_stands_holds_it_no_longer_than_a_record_does(
    between: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "STANDING", 0.0)
    info, said = new_sweep(), list[str]()
    store = HangsAt(between.address)
    store.way = between
    found = Recorder(store, info, 1, make.FLOPS, said.append)
    started = time.monotonic()
    found.write(outcomes(1)[0])
    assert time.monotonic() - started < 15, "a request is given up after four seconds"
    assert len(said) == 1 and found.pending == 0
    between.become("pass")
    found.close([], {}, "1 timed, 0 not", "FINISHED")


class Slow(Store):
    """A store that takes its time for each outcome."""

    seconds = 0.0

    def write(self, *args: object, **kwargs: object) -> str:
        time.sleep(self.seconds)
        return super().write(*args, **kwargs)  # type: ignore[arg-type]


def test_slow_mlflow_gets_a_share_of_a_sweeps_time_and_no_more(local_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"SLOW": 0.2, "SHORTEST_REST": 0.0, "LAST_DELIVERY": 2.0}.items():
        monkeypatch.setattr(recorder, name, seconds)
    info, said, store = new_sweep(), list[str](), Slow()
    found = Recorder(store, info, 24, make.FLOPS, said.append)
    found.write(outcomes(1)[0])
    store.seconds = 1.0
    started, waited = time.monotonic(), 0.0
    for outcome in outcomes(24)[1:]:
        before = time.monotonic()
        found.write(outcome)
        waited += time.monotonic() - before
        time.sleep(0.3)  # the next one is being measured
    share = waited / (time.monotonic() - started)
    assert share < 0.35, "a rest of nine times its length follows each wait"
    before = time.monotonic()
    found.close([], {}, "24 timed, 0 not", "FINISHED")
    assert time.monotonic() - before < 8
    assert found.pending
    assert len(said) == 1 and "slow" in said[0]
    store.seconds = 0.0
    replay_all(store)
    assert recorded(store, info) == [o.variant.id for o in outcomes(24)]


@pytest.mark.timeout(900)
def test_a_server_that_dies_in_the_middle_costs_nothing_but_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole sweep through the command line, with a real server that is killed and comes back."""
    port = free_port()
    monkeypatch.setattr(servers, "free_port", lambda: port)
    home, work = tmp_path / "server", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    options = ("--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--artifacts-destination", str(home / "artifacts"))
    file = str(sweep_file(work, block_n="[16, 48, 64, 96]"))
    with running(home, *options) as address:
        process = command.start("sweep", "submit", file, folder=work, MLFLOW_TRACKING_URI=address)
        said = read_until(process, lambda line: line.startswith("measured"))
    # Here the server's whole process group was killed.
    rest, _ = process.communicate(timeout=250)
    said += rest
    assert process.returncode == 0, said
    assert said.count("\nmeasured") == 4, "measuring went on"
    assert said.count("outcomes are kept in .runner/spool/") == 1
    assert "records wait for MLflow; the next `sweep submit` or `sweep resume` here brings them there" in said
    assert "in MLflow" not in said and "x torch.mm" in said
    with running(home, *options) as address:
        again = ok(command.run("sweep", "submit", file, folder=work, MLFLOW_TRACKING_URI=address))
        assert "to MLflow, which an earlier command could not" in again
        assert "nothing was started" in again
        found = runs(address, "variant")
        assert sorted(r.data.params["block_N"] for r in found) == ["16", "48", "64", "96"]
        assert {r.info.status for r in found} == {"FINISHED"}
        assert [r.info.status for r in runs(address, "sweep")] == ["FINISHED"]
        # The artifacts went through the server too, and nothing of it all is kept here.
        assert found[0].info.artifact_uri.startswith("mlflow-artifacts:")
        files = {f.path for f in MlflowClient(address).list_artifacts(found[0].info.run_id)}
        assert files >= {"outcome.json", "samples.json", "verdicts.json"}
    assert not (work / "mlflow.db").exists()
    assert not any((work / ".runner" / "spool").iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the room there is."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return path


@pytest.mark.timeout(600)
def test_a_full_disk_stops_a_sweep_with_one_line_and_it_is_resumed_with_room(small_disk: Path) -> None:
    file = str(sweep_file(small_disk, block_n="[16, 48, 64, 96]"))
    process = command.start("sweep", "submit", file, folder=small_disk)
    said = read_until(process, lambda line: line.startswith("measured"))
    filler = fill(small_disk)
    rest, _ = process.communicate(timeout=200)
    said += rest
    assert process.returncode == 3, said
    (error,) = [line for line in rest.splitlines() if line.startswith("error: ")]
    assert "cannot write .runner/spool/" in error and "No space left on device" in error and "make room" in error
    assert "Traceback" not in said
    filler.unlink()
    uri = f"sqlite:///{small_disk}/mlflow.db"
    (sweep,) = runs(uri, "sweep")
    last = ok(command.run("sweep", "resume", sweep.data.tags["sweep_id"], folder=small_disk))
    assert "damaged" not in last
    found = runs(uri, "variant")
    assert sorted((r.data.params["block_N"], r.data.tags["status"]) for r in found) == [
        (n, "measured") for n in ("16", "48", "64", "96")
    ]
    assert [r.info.status for r in runs(uri, "sweep")] == ["FINISHED"]
    assert {r.info.status for r in found} == {"FINISHED"}
    assert not any((small_disk / ".runner" / "spool").iterdir())


def test_nothing_that_was_half_written_is_read_back(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small_disk)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    from runner.errors import InfrastructureLost
    from tracking.journal import Journal

    journal = Journal(Path("journal"))
    journal.add({"n": 0}, b"whole")
    with pytest.raises(InfrastructureLost, match="No space left on device"):
        for number in range(1, 100):
            journal.add({"n": number}, os.urandom(1 << 20))
    records = [Journal.read(path) for path in Journal(Path("journal")).pending()]
    assert all(record is not None for record in records)
    assert [record[0]["n"] for record in records if record] == list(range(len(records)))
    assert not list(Path("journal").glob(".*")), "what was not finished is gone"
    shutil.rmtree("journal")
