"""Children are forked from a process that has imported torch and TileLang, and end with whoever asked for them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import FailureKind, JobFailed
from runner.executors.base import measure_child
from runner.process import forkserver
from runner.process.child import Child
from runner.records import Device
from tests import child_jobs as jobs
from tests.command import ROOT
from tests.processes import eventually_gone, with_a_child


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def test_a_child_finds_everything_imported(child: Child) -> None:
    assert child.run(jobs.has_imported, ("torch", "tilelang"), deadline=60)


def test_a_child_has_what_importing_left_in_the_environment() -> None:
    """Asked from a process that never imported TileLang: here some test has, and everything inherits it."""
    program = (
        "from runner.process.child import Child; from tests import child_jobs as jobs\n"
        "child = Child(); print(child.run(jobs.environment, 'TL_TEMPLATE_PATH', deadline=60)); child.close()"
    )
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("TL_", "TVM_"))}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**rest, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip(), "tl_templates").is_dir(), done.stdout


def test_it_is_of_the_servers_making_and_not_ours(child: Child) -> None:
    server = child.run(os.getppid, deadline=60)
    assert server != os.getpid()
    assert forkserver.ADDRESS.encode() not in Path(f"/proc/{server}/environ").read_bytes()


def test_what_comes_to_the_end_of_the_path_needs_no_other_server(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    server = child.run(os.getppid, deadline=60)
    child.close()
    monkeypatch.setattr(sys, "path", [*sys.path, "/somewhere"])
    assert child.run(os.getppid, deadline=60) == server and "/somewhere" in child.run(jobs.path, deadline=60)


def test_what_comes_first_on_the_path_does(child: Child, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It may hide what the server has imported."""
    (tmp_path / "tilelang").mkdir()
    (tmp_path / "tilelang" / "__init__.py").write_text("HIDDEN = True")
    monkeypatch.syspath_prepend(tmp_path)
    assert child.run(jobs.attribute, "tilelang", "HIDDEN", deadline=60) is True


def test_children_end_with_their_server_and_there_is_another(child: Child) -> None:
    pid, server = child.run(jobs.process_id, deadline=60), child.run(os.getppid, deadline=60)
    os.kill(server, 9)
    assert eventually_gone(pid)
    assert child.run(os.getppid, deadline=60) not in (server, os.getpid())


def test_a_job_whose_server_dies_is_lost_and_no_crash_of_its_own(child: Child) -> None:
    server = child.run(os.getppid, deadline=60)
    killer = threading.Timer(0.5, os.kill, (server, 9))
    killer.start()
    with pytest.raises(JobFailed) as raised:
        child.run(time.sleep, 600, deadline=60)
    assert raised.value.kind is FailureKind.LOST


def test_where_nobody_can_fork_a_child_is_spawned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(forkserver.ADDRESS, str(tmp_path / "nobody"))
    child = Child()
    assert child.run(os.getppid, deadline=60) == os.getpid()
    child.close()


def test_who_shares_a_server_takes_its_child_along(tmp_path: Path) -> None:
    """As a Ray worker does, whose server is the driver's: the child ends although the server goes on."""
    address = forkserver.start()
    sharer, pid = with_a_child(tmp_path, "jobs.spin_in_native_code", **{forkserver.ADDRESS: address})
    sharer.kill()
    sharer.wait()
    assert eventually_gone(pid)
    assert forkserver.start() == address


def test_who_shares_a_server_starts_none(tmp_path: Path) -> None:
    program = "from runner.process import forkserver; print(forkserver.start())"
    env = {**os.environ, "PYTHONPATH": str(ROOT), forkserver.ADDRESS: str(tmp_path / "shared")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(tmp_path / "shared")


def test_a_server_is_shown_no_device_since_one_that_opened_it_could_not_be_forked(child: Child) -> None:
    server = child.run(os.getppid, deadline=60)
    environment = Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    assert {b"CUDA_VISIBLE_DEVICES=", b"MACA_VISIBLE_DEVICES="} <= set(environment)


def test_a_child_that_is_to_open_a_device_is_not_forked() -> None:
    child = measure_child(Device("cuda", "NVIDIA H200", 0, uuid="GPU-1"))
    assert child.run(os.getppid, deadline=60) == os.getpid()
    child.close()
