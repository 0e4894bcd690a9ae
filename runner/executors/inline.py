"""Everything here and now, one job after the other: for debugging, for `accept`, and for what needs no cluster."""

from __future__ import annotations

from collections import deque

from runner.build import BuildJob
from runner.executors.base import Done, Job, build_child, measure_child, run_build, run_measure
from runner.interrupt import interrupt
from runner.records import Device, TargetKind
from runner.targets.base import backend


class InlineExecutor:
    """Builds and measures in two warm children of this process."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Job, float]] = deque()
        self._builder = build_child()
        self._measurers = {}  # type: ignore[var-annotated]

    def devices(self, kind: TargetKind) -> tuple[Device, ...]:
        return backend(kind).devices()

    def submit(self, job: Job, deadline: float) -> None:
        self._waiting.append((job, deadline))

    def prepare(self, device: Device) -> None:
        pass

    def builders(self) -> int:
        return 1

    def next(self) -> Done:
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
