"""A sweep handed to a real Ray cluster, which asks for a token: queued, followed, looked at, cancelled and taken up again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests import command
from tests.command import FAST, ok
from tests.servers import free_port, shared_server

MINE = "from kernels.gemm import Gemm\n\n\nclass Mine(Gemm):\n    name = 'mine'\n\n\nMINE = Mine()\n"


@dataclass
class Head:
    """A cluster of one node, a folder to submit from, and the environment of those who may."""

    address: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def sweep(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **changes}
        return command.alone("sweep", *arguments, "--address", self.address, folder=self.folder, **environment)

    def file(self, name: str, block_n: str, kernel: str = "gemm") -> str:
        text = FAST.format(name=name, block_n=block_n).replace("kernel: gemm", f"kernel: {kernel}")
        (self.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder, token = tmp_path_factory.mktemp("submitter"), tmp_path_factory.mktemp("token") / "token"
    token.write_text("only-for-this-test-" * 3)
    # The agent has a port of its own, which any other Ray on this machine would have too.
    ports = {name: free_port() for name in ("port", "dashboard-port", "dashboard-agent-listen-port")}
    allowed = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    home = tempfile.mkdtemp(dir="/tmp")  # short: Ray makes sockets below it
    options = [f"--{name}={port}" for name, port in ports.items()]
    options += ["--dashboard-host=127.0.0.1", "--num-cpus=2", f"--temp-dir={home}", "--disable-usage-stats", "--block"]
    environment = command.clean_environment() | allowed | {"HOME": home, "RAY_JOB_STOP_WAIT_TIME_S": "30"}
    # The interpreter's folder first, since a job's `python` is found there.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    ray = Path(sys.executable).parent / "ray"
    process = subprocess.Popen(
        [str(ray), "start", "--head", *options],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    found = Head(f"http://127.0.0.1:{ports['dashboard-port']}", folder, {**allowed, "MLFLOW_TRACKING_URI": shared_server()})
    end = time.monotonic() + 90
    while (said := found.sweep("list")).returncode and time.monotonic() < end:
        time.sleep(1)
    assert said.returncode == 0, said.stderr
    yield found
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def id_of(said: str) -> str:
    found = re.search(r"submitted as sweep ([0-9a-f]{8}) to http", said)
    assert found, said
    return found[1]


def tags_of(sweep_id: str) -> list[dict[str, str]]:
    client = MlflowClient(shared_server())
    ids = [e.experiment_id for e in client.search_experiments()]
    query = f"tags.sweep_id = '{sweep_id}' AND tags.kind = 'variant'"
    return [run.data.tags for run in client.search_runs(ids, query)]


def test_what_is_submitted_is_what_runs(head: Head) -> None:
    """A family of the user's own folder travels with the sweep; all is in the shared record, under the id that was said."""
    (head.folder / "mine.py").write_text(MINE)
    said = ok(head.sweep("submit", head.file("own", "[16, 48]", "mine:MINE"), "--wait"))
    sweep_id = id_of(said)
    assert "measured  block_N=48" in said and "runner accept" in said
    assert [tags["status"] for tags in tags_of(sweep_id)] == ["measured"] * 2
    assert "succeeded" in ok(head.sweep("list"))
    assert "measured  block_N=48" in ok(head.sweep("logs", sweep_id))
    status = ok(command.run("sweep", "status", sweep_id, folder=head.folder, **head.environment))
    assert "2 measured" in status and "own" in status


@pytest.mark.timeout(400)
def test_a_cancelled_sweep_is_taken_up_again(head: Head) -> None:
    sweep_id = id_of(ok(head.sweep("submit", head.file("long", "[16, 48, 96]"))))
    end = time.monotonic() + 240
    while "building" not in ok(head.sweep("logs", sweep_id)) and time.monotonic() < end:
        time.sleep(0.5)
    assert "is being ended" in ok(head.sweep("cancel", sweep_id[:5]))
    while "running" in ok(head.sweep("list")) and time.monotonic() < end:
        time.sleep(0.5)
    assert "stopped" in ok(head.sweep("list"))
    assert "had ended already" in ok(head.sweep("cancel", sweep_id))

    ok(head.sweep("resume", sweep_id))
    assert head.sweep("logs", "-f", sweep_id).returncode == 0
    settled = [tags for tags in tags_of(sweep_id) if tags["status"] != "cancelled"]
    assert [tags["status"] for tags in settled] == ["measured"] * 3, "each of the three once"


def test_what_is_wrong_is_said_at_once_and_not_submitted(head: Head) -> None:
    before = ok(head.sweep("list"))
    for arguments, environment, reason in (
        (["submit", head.file("bad", "[16, x]")], {}, "bad.yaml:"),
        (["submit", head.file("here", "[16]")], {"MLFLOW_TRACKING_URI": "sqlite:///x.db"}, "a cluster cannot reach it"),
        (["submit", "here.yaml"], {"MLFLOW_TRACKING_URI": "http://me:secret@mlflow"}, "holds a password"),
        (["cancel", "ffffffff"], {}, "no sweep 'ffffffff'"),
    ):
        refused = head.sweep(*arguments, **environment)
        assert refused.returncode == 2 and reason in refused.stderr, refused
        assert len(refused.stderr.splitlines()) == 1 and "secret" not in refused.stderr
    assert ok(head.sweep("list")) == before


def test_without_the_token_nobody_submits(head: Head) -> None:
    refused = head.sweep("submit", head.file("here", "[16]"), RAY_AUTH_TOKEN_PATH=str(head.folder / "none"))
    assert refused.returncode == 3 and "RAY_AUTH_TOKEN" in refused.stderr and "Traceback" not in refused.stderr


def test_where_nobody_listens(head: Head) -> None:
    nowhere = Head(f"http://127.0.0.1:{free_port()}", head.folder)
    refused = nowhere.sweep("submit", head.file("here", "[16]"))
    assert refused.returncode == 3 and f"no Ray takes jobs at {nowhere.address}" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
