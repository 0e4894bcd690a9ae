"""An executor whose jobs end as they are told to, for what depends on the order in which things happen."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from runner.build import BuildJob
from runner.errors import FailureKind, InfrastructureLost, JobFailed
from runner.executors.base import Arrived, Done, Job, Left
from runner.jobs.requests import BASELINE, BaselineJob, BenchJob, PairJob, ProveJob
from runner.records import Artifact, Baseline, Check, Device, Measurement, PairSession, Proof, TargetKind, Variant

T = TypeVar("T")

End = float | JobFailed | BaseException
"""How a job ends: in so many milliseconds, in a failure, or with an exception out of `next`."""


@dataclass
class Fate:
    """What becomes of a variant. Ends are taken in turn, the last one again and again."""

    source: str
    builds: list[End] = field(default_factory=lambda: [1.0])
    benches: list[End] = field(default_factory=lambda: [1.0])
    others: list[str | None] = field(default_factory=lambda: [""])  # who disturbed each of the benches
    pairs: list[End] = field(default_factory=list)  # of sessions; without any they go on as the benches do
    disturbed: list[str | None] = field(default_factory=lambda: [""])  # by whom each of the sessions was
    proofs: list[End] = field(default_factory=lambda: [1.0])
    unequal: int = 0  # launches of a proof whose output was another


class FakeExecutor:
    """`name_of` gives the name that a variant's fate goes by. `log` has every job as it was started, `ended` as it ended.

    Jobs end in the order they were submitted, or with `seed` in any.
    """

    def __init__(
        self,
        fates: Mapping[str, Fate],
        name_of: Callable[[Variant], str],
        baselines: Mapping[int, list[End]] | None = None,
        seed: int | None = None,
    ):
        self.fates, self.name_of, self.baselines = fates, name_of, dict(baselines or {})
        self.log: list[str] = []
        self.ended: list[str] = []
        self.deadlines: list[float] = []
        self.jobs: list[Job] = []
        self.room = 1_000  # builds that it takes at a time
        self.come_back = True  # devices that were lost
        self.joins: list[tuple[int, Device]] = []  # devices that come only after so many jobs have ended
        self.at_hand: tuple[Device, ...] = ()  # what a command finds that has no sweep
        self.baseline_disturbed = ""  # by whom
        self.closed = False
        self._running: deque[Job] = deque()
        self._sought: deque[Device] = deque()
        self._here: list[Device] = []
        self._dismissed: list[Device] = []
        self._events: deque[Done] = deque()
        self._baseline_ms: dict[int, float] = {}  # the latest, by the device's index
        self._order = random.Random(seed) if seed is not None else None

    def devices(self, kind: TargetKind) -> tuple[Device, ...]:
        return tuple(device for device in self.at_hand if device.kind == kind)

    def seek(self, devices: Sequence[Device]) -> None:
        self._sought.extend(devices)

    def dismiss(self, device: Device) -> bool:
        self._dismissed.append(device)
        for devices in (self._here, self._sought):
            if device in devices:
                devices.remove(device)
        return bool(self._here or self._sought)

    def submit(self, job: Job, deadline: float) -> None:
        self.log.append(self._describe(job))
        self.deadlines.append(deadline)
        self.jobs.append(job)
        self._running.append(job)

    def builders(self) -> int:
        return self.room

    def next(self) -> Done | Arrived | Left:
        """Devices that were asked for come first. One that is lost goes with its job, and is back before the next one ends."""
        joined = (device for after, device in self.joins if after <= len(self.ended))
        self._sought.extend(device for device in joined if device not in self._dismissed)
        self.joins = [(after, device) for after, device in self.joins if after > len(self.ended)]
        if self._events:
            return self._events.popleft()
        if self._sought:
            self._here.append(self._sought.popleft())
            return Arrived(self._here[-1])
        if not self._running:
            raise InfrastructureLost("no device is left to measure on")
        if self._order is not None:
            self._running.rotate(self._order.randrange(len(self._running)))
        job = self._running.popleft()
        self.ended.append(self._describe(job))
        end = self._end(job)
        if isinstance(end, JobFailed):
            failed = Done(job, failure=end, output="what it printed")
            if end.kind is not FailureKind.LOST or isinstance(job, BuildJob):
                return failed
            self._here.remove(job.device)
            self._sought.extend([job.device] * self.come_back)
            self._events.append(failed)
            return Left(job.device)
        if isinstance(end, BaseException):
            raise end
        return Done(job, self._value(job, end), output="what it printed")

    def close(self) -> None:
        self.closed = True

    def _end(self, job: Job) -> End:
        if isinstance(job, BaselineJob):
            ends = self.baselines.setdefault(job.device.index, [1.0])
        elif isinstance(job, PairJob):
            fate = self.fates[self.name_of(job.candidate)]
            ends = fate.pairs or fate.benches
        elif isinstance(job, ProveJob):
            ends = self.fates[self.name_of(job.variant)].proofs
        else:
            fate = self.fates[self.name_of(job.variant)]
            ends = fate.builds if isinstance(job, BuildJob) else fate.benches
        return _next(ends)

    def _value(self, job: Job, ms: float) -> object:
        if isinstance(job, BuildJob):
            source = self.fates[self.name_of(job.variant)].source
            return Artifact(job.variant.id, source, source_hash=source, blob=source.encode(), compile_seconds=ms)
        if isinstance(job, BenchJob):
            contended = _next(self.fates[self.name_of(job.variant)].others)
            samples, checks = (ms,) * job.protocol.repeat, (Check(1, "as timed", 0.0),)
            beside = (self._baseline_ms[job.device.index],) * 8
            key, calls = job.protocol.key, job.protocol.repeat
            return Measurement(
                job.device, key, samples, checks, contended=contended, reference_ms=beside, calls=calls, equal=calls
            )
        if isinstance(job, BaselineJob):
            self._baseline_ms[job.device.index] = ms
            form = f"form {job.device.index}"
            return Baseline(job.device, "torch.mm", (ms,) * job.protocol.repeat, contended=self.baseline_disturbed, form=form)
        if isinstance(job, ProveJob):
            equal = job.launches - self.fates[self.name_of(job.variant)].unequal
            return Proof((Check(7, "before timing", 0.0), Check(7, "in a proof", 9.0, "integers")), job.launches, equal, seed=7)
        reference = self._baseline_ms.get(job.device.index, 1.0)
        if job.reference is not None:
            end = self.fates[self.name_of(job.reference)].benches[-1]
            assert isinstance(end, float)
            reference = end
        contended = _next(self.fates[self.name_of(job.candidate)].disturbed)
        n, checks = job.pairs, (Check(1, "as timed", 0.0),)
        return PairSession((ms,) * n, (reference,) * n, checks, contended, calls=n, equal=n)

    def _describe(self, job: Job) -> str:
        if isinstance(job, BuildJob):
            return f"build {self.name_of(job.variant)}"
        if isinstance(job, BaselineJob):
            return f"baseline on {job.device.index}"
        if isinstance(job, PairJob):
            return f"pair {self.name_of(job.candidate)} with {self.name_of(job.reference) if job.reference else BASELINE}"
        if isinstance(job, ProveJob):
            return f"prove {self.name_of(job.variant)}"
        return f"bench {self.name_of(job.variant)} on {job.device.index}"


def _next(ends: list[T]) -> T:
    return ends.pop(0) if len(ends) > 1 else ends[0]
