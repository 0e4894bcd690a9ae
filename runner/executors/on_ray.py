"""Jobs on a Ray cluster, or on a Ray of our own where none is named. Scheduling is Ray's.

Ray's retries are off for everything that a kernel can break: a kernel that crashes its process must not be run
four times. A device is an actor; inside it a child process does the device's work, so that a crash costs the child.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import threading
from typing import Any, cast

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runner.artifacts import environment
from runner.build import BuildJob
from runner.errors import FailureKind, InfrastructureLost, JobFailed
from runner.executors.base import Done, Job, build_child, measure_child, run_build, run_measure, warm
from runner.interrupt import interrupt
from runner.process import forkserver
from runner.process.child import Child
from runner.records import Device, TargetKind
from runner.targets.base import BACKENDS, backend

LOOK = 2.0
"""Seconds between two looks at whether Ray is still there: it does not say so itself for a minute, and then ends the process."""

ANSWER = 3.0  # seconds that it may take to answer
PATIENCE = 3  # looks in a row without an answer

_builder: Child | None = None


@ray.remote(num_cpus=1, max_retries=0)
def _build(job: BuildJob, deadline: float) -> Done:
    """Ray reuses its workers, so the child stays warm from one build to the next."""
    global _builder
    _builder = _builder or build_child()
    return run_build(_builder, job, deadline)


@ray.remote(num_cpus=0, max_retries=0)
def _devices(kind: TargetKind) -> tuple[Device, ...]:
    return backend(kind).devices()


@ray.remote(max_restarts=0)
class _Measurer:
    """Holds one device for as long as the sweep runs. Which one is Ray's choice; the actor says which."""

    def __init__(self, kind: TargetKind):
        self._device = backend(kind).devices()[0]  # of those visible: Ray shows this process the ones it gave it
        self._child = measure_child(self._device)

    def device(self) -> Device:
        return self._device

    def warm(self) -> None:
        warm(self._child)

    def run(self, job: Any, deadline: float) -> Done:
        return run_measure(self._child, dataclasses.replace(job, device=self._device), deadline)


class RayExecutor:
    """`address` None starts a Ray on this machine that ends with the sweep."""

    def __init__(self, address: str | None = None):
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default, chosen now: no warning
        where = address or "this machine"
        if address:
            demand_answer(address)
        _hush()
        terminate = signal.getsignal(signal.SIGTERM)
        try:
            with contextlib.nullcontext() if address else environment(_ours()):
                ray.init(
                    **({"address": address} if address else _own_ray()),
                    logging_level=logging.ERROR,
                    log_to_driver=False,
                )
        except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
            raise InfrastructureLost(f"no Ray at {where}: {' '.join(str(error).split())[:400]}") from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminate)  # Ray takes it for itself
        self._running: dict[Any, tuple[Job, Device | None]] = {}
        self._measurers: dict[tuple[str, int], Any] = {}
        self._cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._vital = _vital()
        self._unanswered = 0

    def devices(self, kind: TargetKind) -> tuple[Device, ...]:
        """Of every node, as its own vendor tool lists them."""
        try:
            strategies = [NodeAffinitySchedulingStrategy(n["NodeID"], soft=False) for n in ray.nodes() if n["Alive"]]
            found = ray.get([_devices.options(scheduling_strategy=s).remote(kind) for s in strategies], timeout=120)
        except RayError as error:
            raise InfrastructureLost(f"Ray does not tell of its devices: {_first_line(error)}") from error
        return tuple(device for node in found for device in node)

    def submit(self, job: Job, deadline: float) -> None:
        if isinstance(job, BuildJob):
            self._running[_build.remote(job, deadline)] = (job, None)
            return
        actor = self._measurer(job.device)
        self._running[actor.run.remote(job, deadline)] = (job, job.device)

    def prepare(self, device: Device) -> None:
        self._measurer(device).warm.remote()

    def builders(self) -> int:
        """Twice what the cluster has room for, so that none idles while the driver writes a record."""
        return 2 * self._cpus

    def next(self) -> Done:
        """Raises InfrastructureLost when Ray itself is gone."""
        with interrupt.let_through():
            reference = self._wait()
        job, device = self._running.pop(reference)
        try:
            done: Done = ray.get(reference)
        except RayError as error:
            self._demand_ray()
            if device is not None:
                self._drop(device)
            return Done(job, failure=JobFailed(FailureKind.LOST, _first_line(error)))
        return dataclasses.replace(done, job=job)

    def resources(self) -> dict[str, float]:
        """All that the cluster has, in use or not: `CPU`, `GPU`, `memory`, …"""
        return dict(ray.cluster_resources())

    def close(self) -> None:
        ray.shutdown()

    def _measurer(self, device: Device) -> Any:
        key = (device.host, device.index)
        if key not in self._measurers:
            gpu = is_accelerator(device.kind)
            if gpu and not ray.cluster_resources().get("GPU"):
                raise InfrastructureLost(
                    f"Ray sees no GPU, but {device.host} has {device.model}: start it with `ray start --num-gpus=N`"
                    + (" or install MetaX's pymxsml" if device.kind == "maca" else "")
                )
            # A CPU each as long as builds keep one, since a measurer holds its own to the end; none where builds come first.
            cpus = 1 if gpu and self._cpus > len(self._measurers) + 1 else 0
            options: dict[str, Any] = {"num_gpus": int(gpu), "num_cpus": cpus}
            self._measurers[key] = cast(Any, _Measurer).options(**options).remote(device.kind)
        return self._measurers[key]

    def _drop(self, device: Device) -> None:
        """Forget a measurer that may be dead, so that the next job starts a fresh one."""
        actor = self._measurers.pop((device.host, device.index), None)
        if actor is not None:
            ray.kill(actor)

    def _wait(self) -> Any:
        while True:
            ended, _ = ray.wait(list(self._running), num_returns=1, timeout=LOOK)
            if ended:
                return ended[0]
            self._demand_ray()

    def _demand_ray(self) -> None:
        """Raises InfrastructureLost when a process that Ray cannot do without refuses us, or is silent again and again."""
        for what, host, port in self._vital:
            try:
                socket.create_connection((host, port), timeout=ANSWER).close()
            except ConnectionRefusedError as error:
                raise InfrastructureLost(f"Ray's {what} at {host}:{port} is gone") from error
            except OSError as error:
                self._unanswered += 1
                if self._unanswered >= PATIENCE:
                    raise InfrastructureLost(f"Ray's {what} at {host}:{port} does not answer: {error}") from error
                return
        self._unanswered = 0


def is_accelerator(kind: TargetKind) -> bool:
    return backend(kind).torch_device != "cpu"


def _own_ray() -> dict[str, Any]:
    """A Ray that ends with this process. It is told of the cards, so that it need not have MetaX's library to see them."""
    cards = max(len(backend(kind).devices()) for kind in BACKENDS if is_accelerator(backend(kind).kind))
    return {
        "address": "local",
        "num_gpus": cards,
        "include_dashboard": False,
        "object_store_memory": 256 << 20,  # artifacts are tens of kilobytes
    }


def _ours() -> dict[str, str]:
    """What the workers of a Ray of our own inherit while it starts: where our modules are, and who forks their children.

    A runtime environment would say so too, but then the workers that Ray starts ahead are none that it can use.
    """
    return {"PYTHONPATH": forkserver.python_path(), forkserver.ADDRESS: forkserver.start()}


def demand_answer(address: str) -> None:
    """Raises InfrastructureLost when nobody listens at `host:port`: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host or "127.0.0.1", int(port)), timeout=5).close()
    except OSError as error:
        raise InfrastructureLost(f"no Ray at {address}: {error.strerror or error} (start one with `ray start --head`)") from error


def _vital() -> tuple[tuple[str, str, int], ...]:
    """What this process depends on, as name, host and port: the cluster's head, and this machine's own part of Ray."""
    context = ray.get_runtime_context()
    host, _, port = context.gcs_address.rpartition(":")
    own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
    return ("head", host.strip("[]"), int(port)), ("raylet", own["NodeManagerAddress"], own["NodeManagerPort"])


def _hush() -> None:
    """Keep the pages that Ray prints on the driver's terminal for each worker that died off it: we say so in a line."""
    worker: Any = getattr(ray._private, "worker", None)
    if hasattr(worker, "listen_error_messages"):
        worker.listen_error_messages = lambda *_: None


def _first_line(error: RayError) -> str:
    """What went wrong, in a line: Ray wraps what was raised in a worker in pages."""
    said: BaseException = error.cause if isinstance(error, RayTaskError) and error.cause else error
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return f"{type(said).__name__}: {lines[0] if lines else 'no message'}"
