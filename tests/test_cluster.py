"""A sweep on a cluster of several hosts, with its record on a server: shared fairly, and ended whatever is lost on the way."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests import command
from tests.cluster import Cluster, cluster
from tests.command import ok
from tests.postgres import postgres
from tests.servers import running
from tests.sleeper import BASELINE_MS, SIGNS

SWEEP = """\
name: {name}
kernel: tests.sleeper:SLEEPER
workload: {{M: 4, N: 8, dtype: float32}}
target: cpu
base: {{ms: 1, build_s: 0, number: {first}}}
strategy: list
configs:
{configs}
measure: {{warmup: 1, repeat: 7, finals: 1, siblings: {siblings}}}
accept: {{max_abs_error: 0.0, mma: none, max_spread: 99.0, alone: none}}
{more}
"""

MEASURES = '--resources={"sweep-cpu": 1}'
OTHER_MODEL = "Another CPU @ 1.00GHz"


@dataclass
class Team:
    """Hosts `one` and `two` measure, and `head` builds and runs the drivers."""

    hosts: Cluster
    folder: Path
    store: str
    signs: Path

    def file(self, name: str, first: int, count: int, ms: int, siblings: float = 99.0, more: str = "") -> str:
        """A sweep of `count` kernels beside its base, whose calls take so long."""
        configs = "\n".join(f"  - {{ms: {ms}, number: {first + 1 + n}}}" for n in range(count))
        text = SWEEP.format(name=name, first=first, configs=configs, siblings=siblings, more=more)
        (self.folder / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def sweep(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.hosts.sweep(*arguments, folder=self.folder)

    def submit(self, file: str) -> str:
        """The id of the sweep that a file is handed over as."""
        said = ok(self.sweep("submit", file, "--address", self.hosts.api))
        found = re.search(r"submitted as sweep ([0-9a-f]{8})", said)
        assert found, said
        return found[1]

    def wait(self, sweep_id: str) -> str:
        """What it printed, once it has ended well."""
        return ok(self.sweep("logs", "-f", sweep_id, "--address", self.hosts.api))

    def runs(self, sweep_id: str, kind: str = "variant") -> list[Run]:
        client = MlflowClient(self.store)
        ids = [e.experiment_id for e in client.search_experiments()]
        return list(client.search_runs(ids, f"tags.kind = '{kind}' AND tags.sweep_id = '{sweep_id}'"))

    def await_runs(self, sweep_id: str, count: int) -> None:
        end = time.monotonic() + 120
        while len(self.runs(sweep_id)) < count:
            assert time.monotonic() < end, f"not {count} of sweep {sweep_id} are on record"
            time.sleep(0.3)

    @contextmanager
    def quick(self) -> Iterator[None]:
        """From now on no call takes long."""
        (self.signs / "quick").touch()
        yield
        (self.signs / "quick").unlink()

    def hosts_of(self, sweep_id: str) -> Counter[str]:
        return Counter(run.data.tags["host"] for run in self.runs(sweep_id))

    def join(self, **baseline_ms: int) -> None:
        """Hosts by name, and how much longer the baseline takes there."""
        for name, ms in baseline_ms.items():
            self.hosts.start(name, "--num-cpus=1", MEASURES, **{BASELINE_MS: str(ms)})
        self.hosts.await_hosts("head", *baseline_ms)


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder, record, signs = (tmp_path_factory.mktemp(name) for name in ("team", "record", "signs"))
    with ExitStack() as stack:
        hosts = stack.enter_context(cluster())
        database = stack.enter_context(postgres())
        options = ["--backend-store-uri", database.uri, "--artifacts-destination", str(record / "artifacts")]
        store = stack.enter_context(running(record, *options, MLFLOW_HOST=hosts.gateway))
        hosts.environment |= {SIGNS: str(signs), "MLFLOW_TRACKING_URI": store, "SWEEP_RUNNER_TURN_S": "4"}
        made = Team(hosts, folder, store, signs)
        for name, model in (("head", ""), ("one", ""), ("two", ""), ("other", OTHER_MODEL)):
            hosts.add(name, model)
        hosts.start("head", "--num-cpus=1")
        hosts.await_hosts("head")
        made.join(one=20, two=20)
        yield made


def test_the_doctor_looks_at_every_node(team: Team) -> None:
    said = ok(
        command.alone("runner", "doctor", "--cluster", "--address", team.hosts.api, folder=team.folder, **team.hosts.environment)
    )
    assert re.search(r"ok +versions: on 3 nodes alike: Python 3\S*, ray \S+, tilelang \S+, torch", said), said
    for host in ("head", "one", "two"):
        assert re.search(rf"ok +{host}: no accelerator: it builds", said), said
    assert re.search(rf"ok +store: {re.escape(team.store)}.*there and back", said), said
    assert "fault" not in said and "clock" not in said


@pytest.mark.timeout(400)
def test_a_short_sweep_is_not_kept_waiting_by_a_long_one(team: Team) -> None:
    long = team.submit(team.file("long", first=100, count=8, ms=1500))
    team.await_runs(long, 1)
    short = team.submit(team.file("short", first=200, count=2, ms=1))
    team.wait(short)
    (parent,) = team.runs(long, "sweep")
    assert parent.info.status == "RUNNING", "the short one waited for the end of the long one"
    with team.quick():
        said = team.wait(long)
    assert "runner accept" in said and "Traceback" not in said
    assert Counter(run.data.tags["status"] for run in team.runs(long)) == {"measured": 9}
    assert set(team.hosts_of(long)) == {"one", "two"}, "every host that measures, and no other"


@pytest.mark.timeout(400)
def test_hosts_are_cut_off_and_killed_and_come_back_and_nothing_is_lost(team: Team) -> None:
    sweep_id = team.submit(team.file("robbed", first=300, count=11, ms=400))
    team.await_runs(sweep_id, 3)
    team.hosts.hosts["one"].cut()
    team.hosts.await_end("one")
    # The other goes on, with what was in flight: that must not be lost once more, since then it is given up.
    team.await_runs(sweep_id, len(team.runs(sweep_id)) + 4)
    team.hosts.hosts["two"].kill()
    time.sleep(3)
    team.hosts.hosts["one"].mend()
    team.hosts.hosts["one"].kill()  # what a host does of itself whose Ray has given it up
    team.join(one=20, two=20)
    said = team.wait(sweep_id)
    statuses = Counter(run.data.tags["status"] for run in team.runs(sweep_id))
    assert statuses == {"measured": 12}, said
    assert set(team.hosts_of(sweep_id)) == {"one", "two"}


@pytest.mark.timeout(400)
def test_the_head_is_started_again_and_the_sweep_taken_up(team: Team) -> None:
    sweep_id = team.submit(team.file("headless", first=400, count=5, ms=500))
    team.await_runs(sweep_id, 3)
    for name in ("head", "one", "two"):  # without its head a host's Ray gives up too
        team.hosts.hosts[name].kill()
    before = {run.info.run_id for run in team.runs(sweep_id) if run.info.status == "FINISHED"}  # one may be half written
    team.hosts.start("head", "--num-cpus=1")
    team.hosts.await_hosts("head")
    team.join(one=20, two=40, other=20)
    ok(team.sweep("resume", sweep_id, "--address", team.hosts.api))
    with team.quick():
        team.wait(sweep_id)
    runs = team.runs(sweep_id)
    measured = Counter(run.data.params["number"] for run in runs if run.data.tags["status"] == "measured")
    assert measured == Counter(str(n) for n in range(400, 406)), "each once"
    assert before and before <= {run.info.run_id for run in runs}
    assert all(run.info.status != "RUNNING" for run in (*runs, *team.runs(sweep_id, "sweep")))


@pytest.mark.timeout(400)
def test_models_are_never_mixed_and_a_host_unlike_its_siblings_is_left_out(team: Team) -> None:
    sweep_id = team.submit(team.file("each", first=600, count=2, ms=1, siblings=0.3, more="devices: all"))
    said = team.wait(sweep_id)
    assert re.search(r"0 on two left out: \d+\.\d% slower at torch\.neg than the other .*, limit 30%", said), said
    assert set(team.hosts_of(sweep_id)) == {"one"}
    assert f" on {OTHER_MODEL}\n" in said, "a sweep of its own"
    client = MlflowClient(team.store)
    experiment = client.get_experiment_by_name(f"tests.sleeper:SLEEPER 4x8 float32 on {OTHER_MODEL}")
    assert experiment is not None, [e.name for e in client.search_experiments()]
    runs = client.search_runs([experiment.experiment_id], "tags.kind = 'variant'")
    assert {run.data.tags["host"] for run in runs} == {"other"} and len(runs) == 3
