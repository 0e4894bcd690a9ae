"""An executor whose builds and measurements are pretended; Ray, its workers and the killable children are real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from runner.build import BuildJob
from runner.errors import FailureKind
from runner.executors.base import Done, Job, build_child, measure_child, run_job
from runner.executors.cluster_nodes import Node
from runner.executors.on_ray import RayExecutor, ray  # Ray reads its settings on import, and ours are made first
from runner.process.child import Child
from runner.records import Device

_child: Child | None = None


@ray.remote(num_cpus=1, max_retries=0)
def _build(function: Any, job: BuildJob, deadline: float, children: bool) -> Done:
    global _child
    if not children:
        return Done(job, value=function(job))
    _child = _child or build_child()
    return run_job(_child, function, job, deadline, FailureKind.COMPILE_TIMEOUT)


@ray.remote(max_restarts=0)
class _Measurer:
    def __init__(self, device: Device, children: bool) -> None:
        self._device, self._child = device, measure_child(device) if children else None

    def device(self) -> Device:
        return self._device

    def warm(self) -> None:
        pass

    def run(self, function: Any, job: Any, deadline: float) -> Done:
        if self._child is None:
            return Done(job, value=function(job))
        return run_job(self._child, function, job, deadline, FailureKind.HANG)


class PretendingExecutor(RayExecutor):
    """`functions` are what runs in the children, by the sort of job. With `deadline` every job gets that one.

    A measurer holds `measurer_cpus` of Ray's CPUs for as long as the sweep runs. Without `children` jobs run in Ray's own
    workers.
    """

    def __init__(self, functions: Mapping[type, Any], measurer_cpus: int, deadline: float | None = None, children: bool = True):
        super().__init__()
        self._functions, self._measurer_cpus, self._deadline, self._children = functions, measurer_cpus, deadline, children

    def _build(self, job: BuildJob, deadline: float) -> Any:
        return _build.remote(self._functions[BuildJob], job, self._deadline or deadline, self._children)

    def _measure(self, actor: Any, job: Job, deadline: float) -> Any:
        return actor.run.remote(self._functions[type(job)], job, self._deadline or deadline)

    def _start(self, device: Device, node: Node) -> Any:
        return cast(Any, _Measurer).options(num_cpus=self._measurer_cpus).remote(device, self._children)
