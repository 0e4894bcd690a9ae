"""Jobs on a Ray cluster, or on a Ray of our own where none is named. Scheduling is Ray's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import ray
from ray.exceptions import RayError

from runner.build import BuildJob
from runner.errors import FailureKind, InfrastructureLost, JobFailed
from runner.executors import ray_workers
from runner.executors.base import Arrived, Done, Job, Left
from runner.executors.cluster_nodes import MARK, Node, Nodes, all_devices, on
from runner.executors.connecting import Vital, connect, is_accelerator
from runner.executors.measurers import Measurers
from runner.executors.ray_workers import first_line, forkserver_of
from runner.interrupt import interrupt
from runner.process.scratch import Scratch
from runner.records import Device, TargetKind

LOOK = 2.0
"""Seconds between two looks at whether Ray is still there, and who joined."""

REJOIN = 180.0
"""Seconds that a sweep on a cluster waits, without any device, for a node that brings one."""


class RayExecutor:
    """`address` None starts a Ray on this machine that ends with the sweep."""

    def __init__(self, address: str | None = None):
        self._own = address is None
        self._scratch = Scratch() if self._own else None
        connect(address, self._scratch.folder if self._scratch else None)
        self._vital, self._nodes = Vital(), Nodes()
        self._nodes.look()
        self._measurers = Measurers(self._nodes, self._start, alone=self._own)
        self._running: dict[Any, tuple[Job, Device | None]] = {}
        self._events: deque[Done] = deque()
        self._forkservers: dict[str, Any] = {}  # by node
        self._looked = time.monotonic()
        self._cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def devices(self, kind: TargetKind) -> tuple[Device, ...]:
        """Of every node that measures this kind, as its own vendor tool lists them."""
        return all_devices(self._nodes.measuring(kind), kind)

    def seek(self, devices: Sequence[Device]) -> None:
        self._serve_forks()
        self._measurers.seek(devices)

    def dismiss(self, device: Device) -> bool:
        return self._measurers.dismiss(device)

    def submit(self, job: Job, deadline: float) -> None:
        if isinstance(job, BuildJob):
            self._running[self._build(job, deadline)] = (job, None)
        else:
            self._running[self._measure(self._measurers.actor(job.device), job, deadline)] = (job, job.device)

    def builders(self) -> int:
        """Twice what the cluster has room for, so that none idles while the driver writes a record."""
        return 2 * self._cpus

    def next(self) -> Done | Arrived | Left:
        with interrupt.let_through():
            while not self._measurers.events and not self._events:
                self._handle(self._wait())
        return self._measurers.events.popleft() if self._measurers.events else self._events.popleft()

    def nodes(self) -> list[Node]:
        return self._nodes.living()

    def resources(self) -> dict[str, float]:
        """All that the cluster has, in use or not: `CPU`, `GPU`, `memory`, …"""
        return dict(ray.cluster_resources())

    def close(self) -> None:
        ray.shutdown()
        if self._scratch is not None:
            self._scratch.remove()

    def _build(self, job: BuildJob, deadline: float) -> Any:
        return ray_workers.build.remote(job, deadline)

    def _measure(self, actor: Any, job: Job, deadline: float) -> Any:
        return actor.run.remote(job, deadline)

    def _start(self, device: Device, node: Node) -> Any:
        """Ask for a device like this one on its node."""
        options: dict[str, Any] = {"num_cpus": 0, "scheduling_strategy": on(node)}
        if is_accelerator(device.kind):
            if not node.resources.get("GPU"):
                raise InfrastructureLost(
                    f"Ray sees no GPU, but {device.host} has {device.model}: start it with `ray start --num-gpus=N`"
                    + (" or install MetaX's pymxsml" if device.kind == "maca" else "")
                )
            # A CPU each as long as builds keep one, since a measurer holds its own; none where builds come first.
            room = node.resources.get("CPU", 0) > node.resources["GPU"]
            options |= {"num_gpus": 1, "num_cpus": int(room)}
        elif node.measures(device.kind):
            options["resources"] = {MARK + device.kind: 1}
        return cast(Any, ray_workers.Measurer).options(**options).remote(device)

    def _serve_forks(self) -> None:
        """One server for each node of a cluster; a Ray of our own shares its driver's."""
        for node in [] if self._own else self._nodes.living():
            if node.id not in self._forkservers:
                made = cast(Any, ray_workers.Forkserver).options(name=forkserver_of(node.id), scheduling_strategy=on(node))
                self._forkservers[node.id] = made.remote()
                self._forkservers[node.id].address.remote()  # begin to import

    def _handle(self, reference: Any) -> None:
        """What was waited for is there."""
        if reference not in self._running:
            self._measurers.handle(reference)
            return
        job, device = self._running.pop(reference)
        try:
            done: Done = replace(ray.get(reference), job=job)
        except RayError as error:
            self._vital.demand()
            self._nodes.look()
            if device is not None:
                self._measurers.lost(device)
            done = Done(job, failure=JobFailed(FailureKind.LOST, first_line(error)))
        else:
            if device is not None:
                self._measurers.job_done(device)
        self._events.append(done)

    def _wait(self) -> Any:
        """A reference that is there. Raises InfrastructureLost when Ray is gone, or nothing is left to wait for."""
        alone_until = time.monotonic() + (0 if self._own else REJOIN)
        while True:
            waiting = [*self._running, *self._measurers.waiting]
            if waiting:
                ended, _ = ray.wait(waiting, num_returns=1, timeout=LOOK)
            elif time.monotonic() < alone_until:
                ended = []
                time.sleep(LOOK)
            else:
                raise InfrastructureLost("no device is left to measure on")
            if time.monotonic() - self._looked > LOOK and not self._own:
                self._looked = time.monotonic()
                self._measurers.look_around()
                self._serve_forks()
            if ended:
                return ended[0]
            self._vital.demand()
