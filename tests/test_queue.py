"""Work handed to a real Ray cluster, which asks for a token: sweeps queued, followed, looked at, cancelled and taken up again,
and their runs accepted, evaluated and repeated there."""

from __future__ import annotations

import contextlib
import json
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

from kernels.finding import OURS
from runner.executors.jobs import JOB
from tests import command
from tests.command import FAST, ok
from tests.servers import free_port, shared_server
from tests.sleeper import SIGNS
from tests.test_interrupts import SWEEP as SLEEPING

MINE = "from kernels.gemm import Gemm\n\n\nclass Mine(Gemm):\n    name = 'mine'\n\n\nMINE = Mine()\n"


@dataclass
class Head:
    """A cluster of one node, a folder to submit from, and the environment of those who may."""

    address: str
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    signs: Path = Path()  # where the sleeper's are

    def sweep(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return self.run("sweep", *arguments, **changes)

    def run(self, program: str, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """`sweep …` or `runner …` on the cluster, in the environment of who may submit, with these changes."""
        environment = {**self.environment, **changes}
        return command.alone(program, *arguments, "--address", self.address, folder=self.folder, **environment)

    def forget(self, sweep_id: str) -> None:
        """Take a sweep's jobs out of the cluster's list."""
        program = (
            "import sys; from ray.job_submission import JobSubmissionClient; client = JobSubmissionClient(sys.argv[1])\n"
            "for job in client.list_jobs():\n"
            "    if job.metadata.get('sweep_id') == sys.argv[2]: client.delete_job(job.submission_id)"
        )
        environment = command.clean_environment() | self.environment
        subprocess.run([sys.executable, "-c", program, self.address, sweep_id], env=environment, check=True)

    def file(self, name: str, block_n: str, kernel: str = "gemm") -> str:
        text = FAST.format(name=name, block_n=block_n).replace("kernel: gemm", f"kernel: {kernel}")
        (self.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    folder, signs, token = (tmp_path_factory.mktemp(name) for name in ("submitter", "signs", "token"))
    token /= "token"
    token.write_text("only-for-this-test-" * 3)
    # The agent has a port of its own, which any other Ray on this machine would have too.
    ports = {name: free_port() for name in ("port", "dashboard-port", "dashboard-agent-listen-port")}
    allowed = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    home = tempfile.mkdtemp(dir="/tmp")  # short: Ray makes sockets below it
    options = [f"--{name}={port}" for name, port in ports.items()]
    options += ["--dashboard-host=127.0.0.1", "--num-cpus=2", f"--temp-dir={home}", "--disable-usage-stats", "--block"]
    record = {"MLFLOW_TRACKING_URI": shared_server()}
    environment = (
        command.clean_environment() | allowed | record | {SIGNS: str(signs), "HOME": home, "RAY_JOB_STOP_WAIT_TIME_S": "30"}
    )
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
    found = Head(f"http://127.0.0.1:{ports['dashboard-port']}", folder, {**allowed, **record}, signs)
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


@dataclass(frozen=True)
class Own:
    """A finished sweep of a family in the user's own folder: what was printed, its id, and the run of each block_N."""

    said: str
    id: str
    runs: dict[int, str]


@pytest.fixture(scope="module")
def own(head: Head) -> Own:
    (head.folder / "mine.py").write_text(MINE)
    for name in OURS:  # a project's own folders hide none of ours
        (head.folder / name).mkdir()
        (head.folder / name / "__init__.py").write_text(f"raise RuntimeError('the user's {name}')")
    said = ok(head.sweep("submit", head.file("own", "[16, 48]", "mine:MINE"), "--wait"))
    shown = ok(command.here("sweep", "status", id_of(said), "--json", folder=head.folder, **head.environment))
    return Own(said, id_of(said), {row["block_N"]: row["run_id"] for row in json.loads(shown)["ranking"]})


@pytest.fixture(scope="module")
def accepted(head: Head, own: Own) -> subprocess.CompletedProcess[str]:
    return head.run("runner", "accept", own.runs[48][:8], LOGNAME="ada")


def test_what_is_submitted_is_what_runs(head: Head, own: Own) -> None:
    """A family of the user's own folder travels with the sweep; all is in the shared record, under the id that was said."""
    assert own.said.splitlines()[1] == "own: Which block is fastest?", "nothing of Ray's comes before what the sweep says"
    assert "measured  block_N=48" in own.said and "runner accept" in own.said
    assert [tags["status"] for tags in tags_of(own.id)] == ["measured"] * 2
    assert "succeeded" in ok(head.sweep("list", RAY_ADDRESS="http://127.0.0.1:1")), "the option wins"
    assert ok(head.sweep("logs", own.id)) == own.said.partition("\n")[2]
    status = ok(head.sweep("status", own.id))
    assert "2 measured" in status and re.search(f"own {own.id}: job sweep-{own.id}-[0-9a-f]{{4}} succeeded", status)


def test_a_run_is_accepted_where_the_cards_are(head: Head, own: Own, accepted: subprocess.CompletedProcess[str]) -> None:
    run = own.runs[48]
    proven, measured, *verdicts, last = ok(accepted).splitlines()
    assert proven.startswith("proving block_N=48 on inputs of every kind")
    assert measured.startswith("measuring block_N=48 in pairs with the base, block_N=16, on ")
    rules = ["correct", "accurate", "deterministic", "mma", "plausible", "stable", "alone", "faster"]
    assert [line.split()[0] for line in verdicts] == rules
    assert last.startswith(f"accepted {run[:8]}: version 1, the best mine")
    assert re.fullmatch(rf"accept-{run[:8]}-[0-9a-f]{{4}}: a job at {head.address}\n", accepted.stderr)
    assert "accept" not in ok(head.sweep("list")), "it is no sweep"
    (version,) = json.loads(ok(command.here("runner", "history", "mine", "--json", folder=head.folder, **head.environment)))
    assert (version["run_id"], version["accepted_by"]) == (run, "ada")


@pytest.mark.usefixtures("accepted")
def test_a_job_that_refuses_ends_this_command_as_itself(head: Head, own: Own) -> None:
    """Only the head knows the record here, so that nothing can be said before."""
    refused = head.run("runner", "accept", own.runs[48][:8], MLFLOW_TRACKING_URI="")
    assert (refused.returncode, refused.stdout) == (1, "")
    started, error = refused.stderr.splitlines()
    assert started.endswith(f"a job at {head.address}")
    assert error.startswith(f"error: refused {own.runs[48][:8]}: it is the best already")


@pytest.mark.usefixtures("accepted")
def test_an_evaluation_leaves_its_files_where_it_was_asked_for(head: Head, own: Own) -> None:
    done = head.run("runner", "evaluate", "mine", "--repeat", "20", "--output-dir", "report", "--json")
    baseline, kernel = json.loads(ok(done))
    assert baseline["name"] == "MINE baseline (torch.mm)" and kernel["run_id"] == own.runs[48] and kernel["repeat"] == 20
    folder = head.folder / "report"
    assert json.loads((folder / "evaluation.json").read_text()) == [baseline, kernel]
    assert sorted(path.name for path in folder.iterdir()) == ["evaluation.csv", "evaluation.json", "evaluation.txt"]


def test_ctrl_c_stops_what_only_this_command_waits_for(head: Head, own: Own) -> None:
    """What it prints is seen while it runs."""
    asked = ("repro", own.runs[16], "--address", head.address)
    process = command.start("runner", *asked, folder=head.folder, **head.environment)
    assert process.stdout is not None
    job_id = process.stdout.readline().partition(":")[0]
    assert re.fullmatch(f"repro-{own.runs[16][:8]}-[0-9a-f]{{4}}", job_id)
    assert process.stdout.readline() == "--- the build printed:\n"
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.splitlines()[-3:] == [f"stopping {job_id}", f"{job_id}: stopped", "interrupted"]


@pytest.mark.timeout(400)
def test_a_cancelled_sweep_is_taken_up_again_also_where_the_cluster_forgot_it(head: Head) -> None:
    """As one does whose head was started anew. The record has not forgotten it."""
    configs = "\n".join(f"  - {{ms: 3000, number: {number}}}" for number in (2, 3))  # longer than all that is done meanwhile
    (head.folder / "long.yaml").write_text(SLEEPING.format(name="long", configs=configs))
    said = ok(head.sweep("submit", "long.yaml"))
    sweep_id = id_of(said)
    assert f"  sweep logs -f {sweep_id} --address http" in said, "what to type next is whole"
    watch(head, sweep_id, "building")
    refused = head.sweep("resume", sweep_id)
    assert refused.returncode == 2 and f"sweep {sweep_id} is running at {head.address}" in refused.stderr
    assert "is being ended" in ok(head.sweep("cancel", sweep_id[:5]))
    end = time.monotonic() + 120
    while "stopped" not in (said := ok(head.sweep("status", sweep_id))) and time.monotonic() < end:
        time.sleep(1)
    assert f"stopped: Job was intentionally stopped.\n`sweep resume {sweep_id}` measures what is missing" in said
    assert "had ended already" in ok(head.sweep("cancel", sweep_id))

    head.forget(sweep_id)
    lost = head.sweep("logs", "-f", sweep_id)
    assert lost.returncode == 2 and f"has no job of sweep {sweep_id}, long" in lost.stderr
    (head.signs / "quick").touch()  # from now on no call takes long
    ok(head.sweep("resume", sweep_id[:6]))
    assert head.sweep("logs", "-f", sweep_id).returncode == 0
    settled = [tags for tags in tags_of(sweep_id) if tags["status"] != "cancelled"]
    assert [tags["status"] for tags in settled] == ["measured"] * 3, "each of the three once"


def watch(head: Head, sweep_id: str, until: str) -> None:
    """Follow a sweep until it prints that line, and leave it with Ctrl-C."""
    asked = ("logs", "-f", sweep_id, "--address", head.address)
    process = command.start("sweep", *asked, folder=head.folder, **head.environment)
    assert process.stdout is not None
    assert until in map(str.strip, process.stdout)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and f"sweep {sweep_id} goes on" in said and "Traceback" not in said


@pytest.mark.usefixtures("accepted")
def test_what_is_wrong_is_said_at_once_and_not_submitted(head: Head) -> None:
    before = ok(head.sweep("list"))
    for arguments, environment, reason in (
        (["submit", head.file("bad", "[16, x]")], {}, "bad.yaml:"),
        (["submit", head.file("here", "[16]")], {"MLFLOW_TRACKING_URI": "sqlite:///x.db"}, "a cluster cannot reach it"),
        (["submit", "here.yaml"], {"MLFLOW_TRACKING_URI": "http://me:secret@mlflow"}, "holds a password"),
        (["cancel", "ffffffff"], {}, "no sweep 'ffffffff' in the job list of http"),
        (["resume", "ffffffff"], {}, "in MLflow at http"),
    ):
        refused = head.sweep(*arguments, **environment)
        assert refused.returncode == 2 and reason in refused.stderr, refused
        assert len(refused.stderr.splitlines()) == 1 and "secret" not in refused.stderr
    for command_, id_ in (("accept", "ffffffff"), ("repro", "eeeeeeee"), ("evaluate", "dddddddd")):
        refused = command.here("runner", command_, id_, "--address", head.address, folder=head.folder, **head.environment)
        assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1 and id_ in refused.stderr, refused
    assert ok(head.sweep("list")) == before


def test_without_the_token_nobody_submits(head: Head) -> None:
    refused = head.sweep("submit", head.file("here", "[16]"), RAY_AUTH_TOKEN_PATH=str(head.folder / "none"))
    assert refused.returncode == 3 and "RAY_AUTH_TOKEN" in refused.stderr and "Traceback" not in refused.stderr


def test_where_nobody_listens(head: Head) -> None:
    nowhere = Head(f"http://127.0.0.1:{free_port()}", head.folder)
    refused = nowhere.sweep("submit", head.file("here", "[16]"))
    assert refused.returncode == 3 and f"no Ray takes jobs at {nowhere.address}" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", ["sweep submit blocks.yaml", "sweep resume 1f0c", "runner evaluate", "runner repro 1f0c"])
def test_a_job_without_an_mlflow_server_writes_no_record_that_would_end_with_it(arguments: str, tmp_path: Path) -> None:
    command.sweep_file(tmp_path)
    program, *rest = arguments.split()
    done = command.here(program, *rest, folder=tmp_path, **{JOB: "sweep-1f0c-ab12"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs an MLflow server: set MLFLOW_TRACKING_URI" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["blocks.yaml"], "nothing was started"
