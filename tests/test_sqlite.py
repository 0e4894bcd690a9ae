"""A store in one file: its commits wait for the disk once and for no reader, where the file system allows that."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests import outcomes as make
from tests.test_recorder import new_sweep, outcomes, record
from tracking import connection, sqlite
from tracking.recorder import Recorder
from tracking.store import Store

SHOWS = "SELECT count(*) FROM runs"


@pytest.fixture
def new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def journal_mode(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "mlflow.db")) as db:
        (mode,) = db.execute("PRAGMA journal_mode").fetchone()
    return str(mode)


def on(mounts: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    mounts.write_text("".join(f"{line}\n" for line in lines))
    monkeypatch.setattr(sqlite, "MOUNTS", mounts)


def test_a_new_file_is_written_while_somebody_reads_it(new_folder: Path) -> None:
    info = new_sweep()
    found = Recorder(Store(), info, 2, make.FLOPS, print)
    with closing(sqlite3.connect(new_folder / "mlflow.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        (before,) = reader.execute(SHOWS).fetchone()
        for outcome in outcomes():
            found.write(outcome)
        assert found.pending == 0, "the reader holds nobody up"
        assert reader.execute(SHOWS).fetchone() == (before,), "and is still in the middle of it"
    assert {entry[0] for entry in record(info)} == {o.variant.id for o in outcomes()}


def test_a_file_that_was_there_keeps_the_journal_that_it_has(new_folder: Path) -> None:
    with closing(sqlite3.connect(new_folder / "mlflow.db")) as db:
        db.execute("PRAGMA user_version = 1")
    Store().check()
    assert journal_mode(new_folder) == "delete"


def test_a_file_that_machines_share_is_left_as_mlflow_makes_it(new_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on(new_folder / "mounts", monkeypatch, "/dev/vda / ext4 rw 0 0", f"server:/home {new_folder} nfs4 rw 0 0")
    Store().check()
    assert journal_mode(new_folder) == "delete"


def test_where_a_folder_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [
        "rootfs / rootfs rw 0 0",
        "/dev/vda / ext4 rw 0 0",
        f"a {tmp_path} tmpfs rw 0 0",
        f"b {tmp_path}/my\\040disk nfs rw 0 0",
        f"d {tmp_path}/Größe nfs4 rw 0 0",
        "c /other xfs rw 0 0",
    ]
    on(tmp_path / "mounts", monkeypatch, *mounts)
    found = {name: sqlite.file_system(tmp_path / name) for name in ("..", ".", "my", "my disk", "my disk/below", "Größe")}
    shared = {"my disk": "nfs", "my disk/below": "nfs", "Größe": "nfs4"}
    assert found == {"..": "ext4", ".": "tmpfs", "my": "tmpfs", **shared}


def test_a_machine_that_does_not_tell_its_mounts(new_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "MOUNTS", new_folder / "none")
    connection.connect(f"sqlite:///{new_folder}/mlflow.db")
    assert journal_mode(new_folder) == "delete"
