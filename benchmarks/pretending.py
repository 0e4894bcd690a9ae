"""An executor whose builds and measurements are pretended; Ray, its workers and the killable children are real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.build import BuildJob
from runner.errors import FailureKind
from runner.executors.base import Done, Job, build_child, measure_child, run_job
from runner.executors.on_ray import RayExecutor, ray  # Ray reads its settings on import, and ours are made first
from runner.process.child import Child
from runner.records import Device

_child: Child | None = None


@ray.remote(num_cpus=1, max_retries=0)
def _build(function: Any, job: BuildJob, deadline: float) -> Done:
    global _child
    _child = _child or build_child()
    return run_job(_child, function, job, deadline, FailureKind.COMPILE_TIMEOUT)


@ray.remote(max_restarts=0)
class _Measurer:
    def __init__(self, device: Device) -> None:
        self._child = measure_child(device)

    def run(self, function: Any, job: Any, deadline: float) -> Done:
        return run_job(self._child, function, job, deadline, FailureKind.HANG)


class PretendingExecutor(RayExecutor):
    """`functions` are what runs in the children, by the sort of job. With `deadline` every job gets that one.

    A measurer holds `measurer_cpus` of Ray's CPUs for as long as the sweep runs.
    """

    def __init__(self, functions: Mapping[type, Any], measurer_cpus: int, deadline: float | None = None):
        super().__init__()
        self._functions, self._measurer_cpus, self._deadline = functions, measurer_cpus, deadline

    def prepare(self, device: Device) -> None:
        pass

    def submit(self, job: Job, deadline: float) -> None:
        function, seconds = self._functions[type(job)], self._deadline or deadline
        if isinstance(job, BuildJob):
            self._running[_build.remote(function, job, seconds)] = (job, None)
        else:
            self._running[self._measurer(job.device).run.remote(function, job, seconds)] = (job, job.device)

    def _measurer(self, device: Device) -> Any:
        key = (device.host, device.index)
        if key not in self._measurers:
            self._measurers[key] = _Measurer.options(num_cpus=self._measurer_cpus).remote(device)
        return self._measurers[key]
