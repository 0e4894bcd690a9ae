"""A real Ray cluster of several hosts on this machine: namespaces with an address, a name, processes and leases of their own.

A host is cut off, killed with all that runs on it, or started again, as hosts are. Needs root, iproute2 and util-linux.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import command

PORT, DASHBOARD = 6379, 8265
CPUINFO = Path("/proc/cpuinfo")
SEPARATE = (Path("/tmp/ray"), Path("/tmp/sweep-runner-lease-cpu-0.lock"))
"""What each host has of its own below /tmp: Ray's files, and the file by which timings take turns."""

READY = 120.0  # seconds that a host may take until its Ray answers
FAST_TO_NOTICE = {
    # Ray asks a node every second, and takes it for dead after five without an answer; a minute is its default.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}


@dataclass
class Host:
    """`address` is its own in the cluster's network. `model` is what its processor calls itself, where not what it is."""

    name: str
    address: str
    model: str = ""
    process: subprocess.Popen[bytes] | None = None

    def cut(self) -> None:
        _ip("link", "set", self.name, "down")

    def mend(self) -> None:
        _ip("link", "set", self.name, "up")

    def kill(self) -> None:
        """With all that runs on it, at once: it is the first process of its own."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@dataclass
class Cluster:
    """`gateway` is this machine's own address in the cluster's network."""

    number: int
    bridge: str
    gateway: str
    home: Path
    environment: dict[str, str]
    hosts: dict[str, Host] = field(default_factory=dict)

    @property
    def api(self) -> str:
        return f"http://{self.hosts['head'].address}:{DASHBOARD}"

    def add(self, name: str, model: str = "") -> Host:
        """A host without anything on it."""
        host = Host(f"{self.bridge}-{name}"[:15], f"10.77.{self.number}.{len(self.hosts) + 2}", model)
        inside = host.name
        _ip("netns", "add", inside)
        _ip("link", "add", host.name, "type", "veth", "peer", "name", "eth0", "netns", inside)
        _ip("link", "set", host.name, "master", self.bridge, "up")
        _ip("-n", inside, "addr", "add", f"{host.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", inside, "link", "set", device, "up")
        self.hosts[name] = host
        return host

    def start(self, name: str, *options: str, **environment: str) -> None:
        """Ray on a host: the head's, or one that joins it."""
        host = self.hosts[name]
        own = [f"--address={self.hosts['head'].address}:{PORT}"]
        if name == "head":
            own = ["--head", f"--port={PORT}", f"--dashboard-host={host.address}", f"--dashboard-port={DASHBOARD}"]
        ray = [str(Path(sys.executable).parent / "ray"), "start", *own, f"--node-ip-address={host.address}"]
        host.process = self.run(name, *ray, "--block", "--disable-usage-stats", *options, **environment)

    def run(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """A command as the first process of a host that was just switched on."""
        host, own = self.hosts[name], self.home / name
        own.mkdir(exist_ok=True)
        mounts = {}
        for place in SEPARATE:
            mounts[own / place.name] = place
            for path in (own / place.name, place):
                path.touch() if place.suffix else path.mkdir(exist_ok=True)
        if host.model:
            (own / "cpuinfo").write_text(re.sub(r"(?m)^(model name\s*: ).*", rf"\1{host.model}", CPUINFO.read_text()))
            mounts[own / "cpuinfo"] = CPUINFO
        steps = [
            "hostname " + name,
            "mount --make-rprivate /",
            *(f"mount --bind {a} {b}" for a, b in mounts.items()),
            'exec "$@"',
        ]
        inside = ["unshare", "--uts", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"]
        with (own / "log").open("ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", host.name, *inside, "sh", "-c", " && ".join(steps), "sh", *arguments],
                env=self.environment | {"HOME": str(own)} | environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def sweep(self, *arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return command.alone("sweep", *arguments, folder=folder, **self.environment, **environment)

    def await_hosts(self, *names: str) -> None:
        """Until each of these has joined."""
        wanted = {self.hosts[name].address for name in names}
        end = time.monotonic() + READY
        while missing := wanted - self._living():
            if time.monotonic() > end:
                said = "\n".join((self.home / name / "log").read_text()[-2000:] for name in names)
                raise RuntimeError(f"not there within {READY:.0f} s: {missing}\n{said}")
            time.sleep(0.5)

    def await_end(self, name: str) -> None:
        """Until the cluster has given a host up."""
        end = time.monotonic() + READY
        while self.hosts[name].address in self._living():
            if time.monotonic() > end:
                raise RuntimeError(f"{name} counts as living after {READY:.0f} s")
            time.sleep(0.5)

    def _living(self) -> set[str]:
        token = Path(self.environment["RAY_AUTH_TOKEN_PATH"]).read_text()
        asked = urllib.request.Request(f"{self.api}/nodes?view=summary", headers={"Authorization": f"Bearer {token}"})
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                found = json.load(answer)["data"]["summary"]
        except OSError:
            return set()
        return {node["raylet"]["nodeManagerAddress"] for node in found if node["raylet"].get("state") == "ALIVE"}


@contextmanager
def cluster() -> Iterator[Cluster]:
    """A network with nothing in it yet. What was started in it ends with the block."""
    number = os.getpid() % 200 + 10
    home = Path(tempfile.mkdtemp(prefix="cluster-", dir="/tmp"))
    token = home / "token"
    token.write_text(uuid.uuid4().hex * 2)
    environment = command.clean_environment() | FAST_TO_NOTICE
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_JOB_STOP_WAIT_TIME_S": "30"}
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])  # a job's `python`
    made = Cluster(number, f"sw{number}", f"10.77.{number}.1", home, environment)
    _ip("link", "add", made.bridge, "type", "bridge")
    try:
        _ip("addr", "add", f"{made.gateway}/24", "dev", made.bridge)
        _ip("link", "set", made.bridge, "up")
        yield made
    finally:
        for host in made.hosts.values():
            host.kill()
            with suppress(subprocess.CalledProcessError):
                _ip("link", "del", host.name)  # before its namespace, which leaves it here
                _ip("netns", "del", host.name)
        _ip("link", "del", made.bridge)
        shutil.rmtree(home, ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
