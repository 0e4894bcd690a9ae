"""What runs on a cluster's nodes for a sweep: tasks and actors. A crash costs their child process, and not them.

Ray's retries are off for everything that a kernel can break: one that crashes its process must not be run four times.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from importlib import metadata

import ray
from ray.exceptions import RayError, RayTaskError

from runner.build import BuildJob
from runner.executors.base import Done, build_child, measure_child, run_build, run_measure, warm
from runner.jobs.requests import MeasureJob
from runner.process import forkserver
from runner.process.child import Child
from runner.records import Device, TargetKind
from runner.targets.base import backend

_builder: Child | None = None


@ray.remote(num_cpus=1, max_retries=0, scheduling_strategy="SPREAD")
def build(job: BuildJob, deadline: float) -> Done:
    """Ray reuses its workers, so the child stays warm from one build to the next."""
    global _builder
    _share_forkserver()
    _builder = _builder or build_child()
    return run_build(_builder, job, deadline)


@ray.remote(num_cpus=0, max_retries=0)
def devices(kind: TargetKind) -> tuple[Device, ...]:
    """This node's, with what builds for them: a card's own port and compiler need not be installed where sweeps are planned."""
    installed = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        installed = metadata.version("tilelang")
    target = backend(kind)
    found = target.devices()
    toolchain = target.toolchain() if found else {}
    return tuple(replace(device, tilelang=installed, toolchain=toolchain) for device in found)


@ray.remote(max_restarts=0)
class Measurer:
    """Holds one device until it is killed: one like `wanted`. Which one is Ray's choice; the actor says which."""

    def __init__(self, wanted: Device):
        _share_forkserver()
        # The first of those visible: Ray shows this process the ones it gave it.
        self._device = replace(backend(wanted.kind).devices()[0], host=wanted.host)
        self._child = measure_child(self._device)

    def device(self) -> Device:
        return self._device

    def warm(self) -> None:
        warm(self._child)

    def run(self, job: MeasureJob, deadline: float) -> Done:
        return run_measure(self._child, replace(job, device=self._device), deadline)


@ray.remote(num_cpus=0, max_restarts=0)
class Forkserver:
    """One for each node, so that not every worker there imports torch and TileLang for itself. Ends with the sweep."""

    def address(self) -> str:
        return forkserver.start()


def forkserver_of(node: str) -> str:
    """The name of a node's, among the actors of one sweep."""
    return f"forkserver-{node}"


def _share_forkserver() -> None:
    """Have this worker's children forked by its node's server, where there is one."""
    if forkserver.ADDRESS not in os.environ:
        with contextlib.suppress(ValueError, RayError):
            server = ray.get_actor(forkserver_of(ray.get_runtime_context().get_node_id()))
            os.environ[forkserver.ADDRESS] = ray.get(server.address.remote())


def first_line(error: RayError) -> str:
    """What went wrong, in a line: Ray wraps what was raised in a worker in pages."""
    said: BaseException = error.cause if isinstance(error, RayTaskError) and error.cause else error
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return f"{type(said).__name__}: {lines[0] if lines else 'no message'}"
