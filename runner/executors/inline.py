"""Everything here and now, one job after the other: for debugging, for `accept`, and for what needs no cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from runner.build import BuildJob
from runner.errors import InfrastructureLost
from runner.executors.base import Arrived, Done, Job, Left, build_child, measure_child, run_build, run_measure
from runner.interrupt import interrupt
from runner.records import Device, TargetKind
from runner.targets.base import backend


class InlineExecutor:
    """Builds and measures in two warm children of this process."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Job, float]] = deque()
        self._sought: deque[Device] = deque()
        self._here: list[Device] = []
        self._builder = build_child()
        self._measurers = {}  # type: ignore[var-annotated]

    def devices(self, kind: TargetKind) -> tuple[Device, ...]:
        return backend(kind).devices()

    def submit(self, job: Job, deadline: float) -> None:
        self._waiting.append((job, deadline))

    def seek(self, devices: Sequence[Device]) -> None:
        self._sought.extend(devices)

    def dismiss(self, device: Device) -> bool:
        self._here.remove(device)
        return bool(self._here or self._sought)

    def builders(self) -> int:
        return 1

    def next(self) -> Done | Arrived | Left:
        if self._sought:
            self._here.append(self._sought.popleft())
            return Arrived(self._here[-1])
        if not self._waiting:
            raise InfrastructureLost("no device is left to measure on")
        job, deadline = self._waiting.popleft()
        with interrupt.let_through():
            return self._run(job, deadline)

    def _run(self, job: Job, deadline: float) -> Done:
        if isinstance(job, BuildJob):
            return run_build(self._builder, job, deadline)
        key = (job.device.kind, job.device.index)
        if key not in self._measurers:
            self._measurers[key] = measure_child(job.device)
        return run_measure(self._measurers[key], job, deadline)

    def close(self) -> None:
        for child in (self._builder, *self._measurers.values()):
            child.close()
