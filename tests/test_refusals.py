"""What cannot be kept, written or shown is said in one line before anything starts, or does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner import remote
from runner.errors import RequestError
from runner.executors.jobs import JOB
from runner.paths import demand_writable, here, search_folders
from runner.planning import COMMIT
from tests import command

IN_MEMORY = ("sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file::memory:?cache=shared&uri=true")
COMMANDS = ("sweep submit blocks.yaml", "sweep list", "sweep plan blocks.yaml", "runner accept 1f0c", "runner best")


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command was refused with."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("arguments", COMMANDS)
@pytest.mark.parametrize("uri", [*IN_MEMORY, "sqlite+pysqlite:///file:x?mode=memory&uri=true"])
def test_a_store_that_ends_with_the_process(uri: str, arguments: str, tmp_path: Path) -> None:
    command.sweep_file(tmp_path)
    program, *rest = arguments.split()
    line = refused(command.here(program, *rest, folder=tmp_path, MLFLOW_TRACKING_URI=uri))
    assert "in memory, and ends with the command" in line and "sqlite:///mlflow.db" in line
    assert [path.name for path in tmp_path.iterdir()] == ["blocks.yaml"], "nothing was started"


@pytest.mark.parametrize("arguments", COMMANDS)
def test_a_store_below_a_file(arguments: str, tmp_path: Path) -> None:
    file = command.sweep_file(tmp_path)
    program, *rest = arguments.split()
    started = time.monotonic()
    line = refused(command.here(program, *rest, folder=tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{file}/mlflow.db"))
    assert "cannot be written" in line and str(file) in line and "is no folder" in line
    assert time.monotonic() - started < 10, "MLflow would try for a minute"


def test_a_folder_on_a_read_only_mount(tmp_path: Path) -> None:
    """Root's rights do not help there either. Mounted where no other process sees it."""
    command.sweep_file(tmp_path)
    script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" && cd "$1" && shift && exec "$@"'
    for arguments in (("sweep", "submit", "blocks.yaml"), ("sweep", "list"), ("runner", "best")):
        ours = (sys.executable, "-m", f"runner.cli.{arguments[0]}", *arguments[1:])
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), *ours],
            capture_output=True,
            text=True,
            env=command.clean_environment(),
            timeout=60,
        )
        assert "it is read-only" in refused(done), arguments
    assert [path.name for path in tmp_path.iterdir()] == ["blocks.yaml"]


def test_what_is_missing_is_judged_by_the_folder_that_it_would_be_made_in(tmp_path: Path) -> None:
    demand_writable(tmp_path / "a" / "b" / "mlflow.db", "the file")
    assert list(tmp_path.iterdir()) == [], "nothing is written for it"
    with pytest.raises(RequestError, match="/proc/version: it is no folder"):
        demand_writable(Path("/proc/version/a"), "the folder")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "ascii:strict"])
def test_what_a_terminal_cannot_show_is_replaced(encoding: str, tmp_path: Path) -> None:
    file = command.sweep_file(tmp_path)
    file.write_text(file.read_text().replace("Which block", "Wie groß – ≤ 5 µs – which block"))

    def shown(program: str, *arguments: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", f"runner.cli.{program}", *arguments],
            cwd=tmp_path,
            env=command.clean_environment() | {"PYTHONIOENCODING": encoding},
            capture_output=True,
            timeout=60,
        )
        return done.returncode, (done.stdout + done.stderr).decode("latin-1")

    code, said = shown("sweep", "plan", "blocks.yaml")
    assert (code, "Traceback" in said) == (0, False), said
    assert ("groß ? ? 5 µs" if encoding == "latin-1" else "gro? ? ? 5 ?s") in said
    code, said = shown("runner", "show", "≤")
    assert (code, "Traceback" in said) == (2, False), said


def test_a_commit_in_the_environment_makes_no_job_of_a_cluster_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv(COMMIT, "x")
    remote.demand_record()
    monkeypatch.setenv(JOB, "sweep-1f0c-ab12")
    with pytest.raises(RequestError, match="job of a cluster"):
        remote.demand_record()


def test_a_current_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a job's is where two of Ray's processes share the folder of a session."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert search_folders() == (str(gone),)
    gone.rmdir()
    assert (here(), search_folders()) == ("", ())
    os.chdir(tmp_path)
    leave = f"import os; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})"
    for program, *rest in (["sweep", "list"], ["runner", "best"], ["sweep", "submit", "blocks.yaml"]):
        ours = [sys.executable, "-c", f"{leave}; from runner.cli.{program} import main; main()", *rest]
        done = subprocess.run(ours, cwd=tmp_path, env=command.clean_environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode in (2, 3) and "Traceback" not in done.stderr, done.stderr
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
