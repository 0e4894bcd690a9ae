"""The devices that a sweep has right now: a cluster gives them, takes them back for others, and loses them with their nodes."""

from __future__ import annotations

from runner.executors.base import Arrived, Done, Executor, demand_sound
from runner.jobs.requests import MeasureJob
from runner.records import Device


class Fleet:
    """Which devices are here and which of those are idle, from what the executor tells."""

    def __init__(self, executor: Executor):
        self._executor = executor
        self.here: list[Device] = []
        self.idle: list[Device] = []
        self.dismissed: list[Device] = []
        self.measuring = 0

    def measure(self, job: MeasureJob, deadline: float) -> None:
        """Start a job on its device, which must be idle."""
        self.idle.remove(job.device)
        self.measuring += 1
        self._executor.submit(job, deadline)

    def free(self, device: Device) -> None:
        """What ran on a device has ended."""
        self.measuring -= 1
        if device in self.here:  # else it went with its job
            self.idle.append(device)

    def dismiss(self, device: Device) -> bool:
        """Use a device no more. Whether there are others, or others may come."""
        self._remove(device)
        self.dismissed.append(device)
        return self._executor.dismiss(device)

    def next(self) -> Done | None:
        """Wait for the next job to end; None where a device came or went instead.

        Raises RequestError where a job found the family's inputs or baseline unsound: no variant can be checked by them.
        """
        event = self._executor.next()
        if isinstance(event, Done):
            return demand_sound(event)
        if isinstance(event, Arrived):
            self.here.append(event.device)
            self.idle.append(event.device)
        else:
            self._remove(event.device)
        return None

    def run(self, job: MeasureJob, deadline: float) -> Done:
        """A job on its idle device, from start to end, while nothing else runs."""
        self.measure(job, deadline)
        while (done := self.next()) is None:
            pass
        self.free(job.device)
        return done

    def _remove(self, device: Device) -> None:
        for devices in (self.here, self.idle):
            if device in devices:
                devices.remove(device)
