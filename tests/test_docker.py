"""What `docker/` promises: its files are sound, and its entry points hold a cluster up. No image is built here."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml
from mlflow import MlflowClient

from runner.targets.base import BACKENDS
from tests.command import ROOT, clean_environment
from tests.postgres import postgres
from tests.processes import eventually_gone
from tests.servers import free_port

DOCKER = ROOT / "docker"
IMAGES = sorted(DOCKER.glob("*.Dockerfile"))
SCRIPTS = sorted([*DOCKER.glob("*.sh"), *DOCKER.glob("*.slurm")])
TOKEN = "only-for-this-test-" * 3
BIN = Path(sys.executable).parent
LONG = 120.0
"""Seconds in which a node must be up, or up again: it takes ten, and several times that on a busy machine."""


def pinned(name: str) -> str:
    found = re.search(rf"^{name}==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found, name
    return found[1]


def of_kubernetes() -> list[dict[str, Any]]:
    files = (DOCKER / "kubernetes-mlflow.yaml", DOCKER / "kuberay.yaml")
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for document in of_kubernetes() if document["kind"] == kind]


def lint(*command: str) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_images_pass_hadolint(image: Path) -> None:
    lint("hadolint", "--config", str(DOCKER / ".hadolint.yaml"), str(image))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    lint("shellcheck", "--external-sources", str(script))
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


def test_compose_files_are_what_compose_reads(tmp_path: Path) -> None:
    tag_free = tmp_path / "compose.hosts.yaml"  # the schema is of what is left once Compose has obeyed its own tags
    tag_free.write_text((DOCKER / "compose.hosts.yaml").read_text().replace(" !reset", ""))
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(DOCKER / "compose.yaml"), str(tag_free))


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_images_copy_what_there_is_and_what_is_sent(image: Path) -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [
        source for words in re.findall(r"^COPY (?!--from)(.+)$", image.read_text(), re.MULTILINE) for source in words.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in sent), f"{source} is not sent"


def test_every_node_has_one_python_and_one_ray() -> None:
    """Ray takes no node of another version."""
    bases = [b for image in IMAGES for b in re.findall(r"^ARG \w+_IMAGE=(\S+)", image.read_text(), re.MULTILINE)]
    assert len(bases) == len(IMAGES)
    for base in bases:  # Ubuntu 24.04's own Python is 3.12
        assert re.search(r"python:3\.12|py312|ubuntu24\.04", base), base
    assert all("install.sh" in image.read_text() and "constraints.txt" in image.read_text() for image in IMAGES)
    assert of_kind("RayCluster")[0]["spec"]["rayVersion"] == pinned("ray")


def test_kubernetes_names_images_of_this_version() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert version
    ours = {found for document in of_kubernetes() for found in re.findall(r"sweep-runner-[\w-]+:[\w.]+", json.dumps(document))}
    built = {f"sweep-runner-{image.name.removesuffix('.Dockerfile')}:{version[1]}" for image in IMAGES}
    assert ours == built


def test_no_secret_is_in_a_file_that_is_shared() -> None:
    """They are read from files at run time: no file here has one, and no environment or image gets one."""
    for path in [*IMAGES, *DOCKER.glob("*.yaml")]:
        for line in path.read_text().splitlines():
            setting = re.search(r"([A-Z_]*(?:PASSWORD|TOKEN)[A-Z_]*)\b", line.partition(" #")[0])
            assert not setting or setting[1].endswith(("_FILE", "_PATH")) or line.startswith("#"), f"{path.name}: {line}"
    assert "docker/secrets/" in (ROOT / ".gitignore").read_text()


def test_nothing_is_reached_from_elsewhere_by_default() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(published) == {"mlflow", "head"}
    assert all(port.startswith("${BIND_ADDRESS:-127.0.0.1}:") for ports in published.values() for port in ports)
    assert services["postgres"]["networks"] == ["store"]
    assert all("healthcheck" in s and s["restart"] == "unless-stopped" for s in services.values())
    assert {s["spec"].get("type", "ClusterIP") for s in of_kind("Service")} == {"ClusterIP"}


def test_kubernetes_manifests_fit_together() -> None:
    cluster = of_kind("RayCluster")[0]["spec"]
    assert cluster["authOptions"] == {"mode": "token", "secretName": "ray-token"}
    workers = {g["groupName"]: g for g in cluster["workerGroupSpecs"]}
    assert set(workers) == {"cuda", "maca"} < set(BACKENDS)
    for target, group in workers.items():
        assert json.loads(json.loads(group["rayStartParams"]["resources"])) == {f"sweep-{target}": 1}
        (container,) = group["template"]["spec"]["containers"]
        cards = {k: v for k, v in container["resources"]["limits"].items() if "gpu" in k}
        assert cards == {{"cuda": "nvidia.com/gpu", "maca": "metax-tech.com/gpu"}[target]: "1"}, "whole cards"
        assert container["resources"]["requests"] == container["resources"]["limits"]
    known = {d["metadata"]["name"] for d in of_kubernetes()} | {"ray-token", "database-password"}
    named = set(re.findall(r'"(?:secretName|claimName|serviceName)": "([\w-]+)"', json.dumps(of_kubernetes())))
    assert named <= known
    assert {d["metadata"].get("namespace", d["metadata"]["name"]) for d in of_kubernetes()} == {"sweep-runner"}
    for pod in [d["spec"]["template"]["spec"] for d in of_kubernetes() if "template" in d.get("spec", {})]:
        assert pod["securityContext"]["runAsNonRoot"]
        assert all("readinessProbe" in c and "requests" in c["resources"] for c in pod["containers"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's and MLflow's own
def test_the_slurm_script_asks_ray_for_what_it_has() -> None:
    from ray.scripts.scripts import cli

    text = (DOCKER / "sweep.slurm").read_text()
    symmetric = text[text.index("ray symmetric-run") :].split("\n    -- ")[0]
    known = {option for name in ("symmetric-run", "start") for p in cli.commands[name].params for option in p.opts}
    options = set(re.findall(r"--[a-z-]+", symmetric))
    assert options and options <= known


@dataclass
class Nodes:
    """A head and a worker on this machine, each by its entry point. The folder's path is short: Ray makes sockets below it."""

    folder: Path
    environment: dict[str, str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)

    def start(self, name: str, **settings: str) -> None:
        self.agents[name] = free_port()
        settings |= {"TEMP_DIR": str(self.folder / name), "AGENT_PORT": str(self.agents[name])}
        with (self.folder / f"{name}.log").open("ab") as log:
            command, environment = [DOCKER / f"{name}.sh"], self.environment | settings
            self.running[name] = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def end(self, name: str) -> int:
        self.running[name].terminate()
        return self.running[name].wait(LONG)

    def processes(self, name: str) -> dict[int, str]:
        """What runs with the settings of a node, by process id."""
        return processes_with(f"TEMP_DIR={self.folder / name}")

    def raylet(self, name: str) -> int:
        return next(pid for pid, program in self.processes(name).items() if program == "raylet")

    def ask(self, path: str, token: str | None) -> Any:
        address = f"http://127.0.0.1:{self.environment['DASHBOARD_PORT']}{path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
            return json.load(answer)

    def alive(self) -> dict[str, dict[str, Any]]:
        """The nodes that Ray counts, by their ids."""
        try:
            found = self.ask("/api/v0/nodes", TOKEN)["data"]["result"]["result"]
        except OSError:  # no head, for now
            return {}
        return {node["node_id"]: node for node in found if node["state"] == "ALIVE"}

    def worker(self, but: Collection[str] = ()) -> dict[str, Any]:
        """The worker's node, once there is one beside the head's that is none of `but`: Ray takes a while to miss a node."""
        end = time.monotonic() + LONG
        while time.monotonic() < end:
            nodes = self.alive()
            found = [n for n in nodes.values() if not n["is_head_node"] and n["node_id"] not in but]
            if found and len(found) < len(nodes):
                return found[0]
            time.sleep(0.5)
        raise AssertionError("\n".join(log.read_text()[-3000:] for log in self.folder.glob("*.log")))


def processes_with(setting: str) -> dict[int, str]:
    """The names of all processes that have a setting in their environment, by process id."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if setting in (process / "environ").read_bytes().decode(errors="replace").split("\0"):
                found[int(process.name)] = (process / "comm").read_text().strip()
    return found


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "token").write_text(TOKEN + "\n")
    head, dashboard = free_port(), free_port()
    settings = {
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "HOME": str(folder),
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "HEAD_PORT": str(head),
        "HEAD_ADDRESS": f"127.0.0.1:{head}",
        "DASHBOARD_PORT": str(dashboard),
        "MAX_PAUSE": "1",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # a node that waits for a head that is gone gives up after a minute
    }
    found = Nodes(folder, clean_environment() | settings)
    found.start("head")
    found.start("worker", MEASURES="cpu", NUM_CPUS="1")
    yield found
    for process in found.running.values():
        process.terminate()
    for name, process in found.running.items():
        process.wait(LONG)
        for pid in found.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def test_a_worker_joins_and_says_what_it_measures(nodes: Nodes) -> None:
    resources = nodes.worker()["resources_total"]
    assert (resources["sweep-cpu"], resources["CPU"]) == (1, 1)
    (head,) = (node for node in nodes.alive().values() if node["is_head_node"])
    assert "CPU" not in head["resources_total"], "the head runs drivers alone"


def test_who_has_no_token_is_told_nothing_but_that_the_head_is_well(nodes: Nodes) -> None:
    nodes.worker()
    for token, status in ((None, 401), ("a-guess", 403)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            nodes.ask("/api/jobs/", token)
        assert refused.value.code == status
    for port, path in ((nodes.environment["DASHBOARD_PORT"], "gcs"), (nodes.agents["worker"], "local_raylet")):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}_healthz", timeout=10) as answer:
            assert answer.status == 200


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_whose_ray_has_ended_joins_again(nodes: Nodes, how: signal.Signals) -> None:
    """Killed, it takes `ray start` along; ended in good order, it does not."""
    nodes.worker()
    before = nodes.alive()
    os.kill(nodes.raylet("worker"), how)
    nodes.worker(but=before)


def test_a_worker_joins_a_head_that_was_started_anew(nodes: Nodes) -> None:
    nodes.worker()
    before = nodes.alive()
    assert nodes.end("head") == 0
    assert not [pid for pid in nodes.processes("head") if not eventually_gone(pid)]
    nodes.start("head")
    nodes.worker(but=before)
    assert nodes.running["worker"].poll() is None


def test_asked_to_end_a_node_leaves_nothing_behind(nodes: Nodes) -> None:
    nodes.worker()
    for name in ("worker", "head"):
        assert nodes.end(name) == 0
        assert not [pid for pid in nodes.processes(name) if not eventually_gone(pid)]


@pytest.mark.parametrize(
    "script, settings, reason",
    [
        ("head.sh", {"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "no token in /nowhere/token"),
        ("worker.sh", {"HEAD_ADDRESS": "127.0.0.1:1"}, "no token in"),
        ("worker.sh", {"RAY_AUTH_TOKEN": "x"}, "HEAD_ADDRESS is ''"),
        ("worker.sh", {"RAY_AUTH_TOKEN": "x", "HEAD_ADDRESS": "head:6379", "MEASURES": "gpu"}, "cpu, cuda and maca"),
        ("mlflow.sh", {}, "set MLFLOW_BACKEND_STORE_URI"),
        ("mlflow.sh", {"MLFLOW_BACKEND_STORE_URI": "postgresql://me:hidden@db/mlflow"}, "holds a password"),
        ("mlflow.sh", {"MLFLOW_BACKEND_STORE_URI": "sqlite:///x", "DATABASE_PASSWORD_FILE": "/nowhere"}, "cannot be read"),
    ],
)
def test_a_setting_that_is_wrong_is_one_line(script: str, settings: dict[str, str], reason: str, tmp_path: Path) -> None:
    environment = clean_environment() | {"HOME": str(tmp_path)} | settings
    done = subprocess.run([DOCKER / script], env=environment, capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 2 and reason in done.stderr
    assert len(done.stderr.splitlines()) == 1 and "hidden" not in done.stderr


def test_a_second_head_on_a_port_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"HEAD_PORT": str(taken.getsockname()[1]), "RAY_AUTH_TOKEN": "x", "HOME": str(tmp_path)}
        done = subprocess.run([DOCKER / "head.sh"], env=clean_environment() | settings, capture_output=True, text=True)
    assert done.returncode == 3 and "listens on port" in done.stderr


@contextlib.contextmanager
def mlflow_server(folder: Path, **settings: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`docker/mlflow.sh` in a folder: where it answers, and its process."""
    port, log = free_port(), folder / "mlflow.log"
    environment = clean_environment() | settings | {"MLFLOW_PORT": str(port), "MLFLOW_WORKERS": "1", "TMPDIR": str(folder)}
    environment["PATH"] = os.pathsep.join([str(BIN), environment["PATH"]])
    with log.open("wb") as output:
        command = [DOCKER / "mlflow.sh"]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        end = time.monotonic() + LONG
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}", process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_mlflow_keeps_the_record_in_postgresql_by_a_password_that_nothing_shows(tmp_path: Path) -> None:
    with postgres() as database:
        (tmp_path / "password").write_text(database.password + "\n")
        settings = {"MLFLOW_BACKEND_STORE_URI": database.address, "DATABASE_PASSWORD_FILE": str(tmp_path / "password")}
        with mlflow_server(tmp_path, MLFLOW_SERVER_ALLOWED_HOSTS=allowed_hosts(), **settings) as (address, process):
            client = MlflowClient(address)
            run = client.create_run(client.create_experiment("kept"))
            client.log_text(run.info.run_id, "kernel", "source.txt")
            assert (tmp_path / "mlartifacts" / run.info.experiment_id / run.info.run_id).is_dir()
            with psycopg2.connect(database.uri.replace("+psycopg2", "")) as link, link.cursor() as cursor:
                cursor.execute("SELECT run_uuid FROM runs")
                assert cursor.fetchall() == [(run.info.run_id,)]
            asked = {
                host: status_for(address, host) for host in ("mlflow:5000", "10.0.0.3:5000", "172.20.0.3:5000", "evil.test:5000")
            }
            assert list(asked.values()) == [200, 200, 200, 403]

            servers = processes_with(f"TMPDIR={tmp_path}")
            shown = [(Path("/proc") / str(pid) / what).read_text() for pid in servers for what in ("cmdline", "environ")]
            assert len(servers) > 2 and not [text for text in shown if database.password in text]
            assert "only-for" not in (tmp_path / "mlflow.log").read_text()
            process.terminate()
            assert process.wait(LONG) == 0
            assert not [pid for pid in servers if not eventually_gone(pid)]
        assert not list(tmp_path.glob("tmp.*")), "the password file is gone"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlflow_upgrades_an_older_database_when_asked(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    make_older_store(uri)
    with mlflow_server(tmp_path, MLFLOW_BACKEND_STORE_URI=uri) as (_, process):
        assert process.wait(LONG) == 3
        (said,) = (tmp_path / "mlflow.log").read_text().splitlines()
        assert "UPGRADE_DATABASE=1" in said
    with mlflow_server(tmp_path, MLFLOW_BACKEND_STORE_URI=uri, UPGRADE_DATABASE="1") as (address, _):
        assert MlflowClient(address).search_experiments()


def allowed_hosts() -> str:
    """What compose.yaml lets MLflow be called by, where no name was added."""
    found: str = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["mlflow"]["environment"][
        "MLFLOW_SERVER_ALLOWED_HOSTS"
    ]
    return re.sub(r"\$\{\w+:-(.+?)\}", r"\1", found)


def status_for(address: str, host: str) -> int:
    request = urllib.request.Request(f"{address}/api/2.0/mlflow/experiments/search?max_results=1", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def make_older_store(uri: str) -> None:
    """A store as an earlier MLflow left it: its tables lack the newest change."""
    from alembic import command
    from alembic.script import ScriptDirectory
    from mlflow.store.db.utils import _get_alembic_config
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    Base.metadata.create_all(create_engine(uri))
    config = _get_alembic_config(uri)
    newest = ScriptDirectory.from_config(config).get_revision("head")
    assert newest is not None and isinstance(newest.down_revision, str)
    command.upgrade(config, newest.down_revision)


def test_a_wheelhouse_has_what_a_node_lacks_in_the_pinned_versions(tmp_path: Path) -> None:
    """On a small scale: `product` needs `needed` and `torch`, and `torch` needs what no node without one has to have."""
    registry = tmp_path / "registry"
    registry.mkdir()
    for name, version, needs in (
        ("product", "1.0", ("needed", "torch>=2")),
        ("needed", "1.0", ()),
        ("needed", "2.0", ()),
        ("torch", "3.0", ("only-for-torch",)),
        ("only-for-torch", "1.0", ()),
    ):
        make_wheel(registry, name, version, needs)
    (tmp_path / "constraints.txt").write_text("needed==1.0\ntorch==2.5\n")
    settings = {
        "PYTHON": sys.executable,
        "CONSTRAINTS": str(tmp_path / "constraints.txt"),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(registry),
        "PIP_CONFIG_FILE": os.devnull,
    }
    house = tmp_path / "wheelhouse"
    done = subprocess.run(
        [DOCKER / "wheelhouse.sh", house, "product"], env=clean_environment() | settings, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in house.iterdir()} == {"product-1.0-py3-none-any.whl", "needed-1.0-py3-none-any.whl"}


def make_wheel(folder: Path, name: str, version: str, needs: tuple[str, ...]) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(f"Requires-Dist: {n}\n" for n in needs)
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(
            f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
