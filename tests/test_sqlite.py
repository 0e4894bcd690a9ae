"""A store in one file: its commits wait for the disk once and for no reader, where the file system allows that."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests import outcomes as make
from tests.test_recorder import new_sweep, outcomes, record
from tracking import connection, sqlite
from tracking.recorder import Recorder
from tracking.store import Store

COUNTING = """
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
static int counted(const char *name, int fd) {
    int to = open(getenv("WAITS"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    (void)!write(to, ".", 1);
    close(to);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(fd);
}
extern "C" int fsync(int fd) { return counted("fsync", fd); }
extern "C" int fdatasync(int fd) { return counted("fdatasync", fd); }
"""
"""Writes a dot for each time that a process waits for the disk."""

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


def begin_as_mlflow_does(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "mlflow.db")) as db:
        db.execute("PRAGMA user_version = 1")


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


@pytest.fixture
def waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As many bytes as the processes that are started from now on have waited for the disk."""
    source, library, counted = (tmp_path / name for name in ("counting.cpp", "counting.so", "waits"))
    source.write_text(COUNTING)
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    counted.touch()
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("WAITS", str(counted))
    return counted


def record_many(number: int) -> None:
    info = new_sweep()
    found = Recorder(Store(), info, number, make.FLOPS, print, writers=1)
    for i in range(number):
        found.write(make.outcome(config={"b_interleave": i}))
    found.close([], {}, "", "FINISHED")
    assert len(record(info)) == number and found.pending == 0


def test_a_writer_waits_for_the_disk_once_for_a_run(new_folder: Path, waits: Path) -> None:
    Store().check()
    record_many(20)
    assert 20 <= waits.stat().st_size < 30, "once for each, and now and then for what moves from the log into the file"


def test_a_writer_waits_for_each_commit_where_there_is_no_log(new_folder: Path, waits: Path) -> None:
    begin_as_mlflow_does(new_folder)
    record_many(20)
    assert waits.stat().st_size > 20 * 5, "else a crash could break the file"


def test_a_file_that_was_there_keeps_the_journal_that_it_has(new_folder: Path) -> None:
    begin_as_mlflow_does(new_folder)
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
