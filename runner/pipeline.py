"""The order of the stages: build, baseline, base, the others, baseline again, finals.

Devices come and go meanwhile (`fleet.py`): each starts with its baseline, and what was lost with one is measured on another.

Knows no Ray and no MLflow: jobs go to an executor, outcomes leave through a callback as soon as they are known.
The base is measured first, because `faster` compares with it. On a target where builds disturb timing, nothing is
timed before the last build is done. What others disturbed is measured once more, after everything else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from runner import settle
from runner.build import BuildJob
from runner.errors import FailureKind, InfrastructureLost, JobFailed
from runner.executors.base import Done, Executor
from runner.finals import (
    Contenders,
    base_reference,
    baseline_deadline,
    baseline_job,
    baselines_again,
    deadline,
    due,
    known_reference,
    play,
)
from runner.fleet import Fleet
from runner.jobs.requests import BaselineJob, BenchJob
from runner.records import TIMED, Allowance, Artifact, Device, Measurement, Outcome, Variant
from runner.settle import Trial
from runner.siblings import odd
from runner.sweep import Progress, Result, Sweep
from runner.targets.base import backend

ENOUGH_SEEN = 3  # compiles, before the next one's deadline is derived from theirs
SLOWEST_COMPILE = 10.0  # times the slowest of those: what a compile may take
AHEAD = 16  # built variants that wait for each device: it times fewer while one is built, and more would only take memory


def run(sweep: Sweep, executor: Executor, emit: Callable[[Outcome], None], watch: Callable[[Progress], None]) -> Result:
    """Measure everything that is not known. An interrupt marks the rest cancelled and returns what there is.

    Raises InfrastructureLost when no device is left to measure on; what was emitted by then stays measured.
    """
    return _Run(sweep, executor, emit, watch).run()


class _Run:
    def __init__(self, sweep: Sweep, executor: Executor, emit: Callable[[Outcome], None], watch: Callable[[Progress], None]):
        self.sweep, self.executor, self._emit, self._watch = sweep, executor, emit, watch
        self.result = Result(reference=sweep.best)
        self.progress = Progress(total=sum(v.id not in sweep.known for v in sweep.variants))
        self.settled = set(sweep.known)
        self.to_build: deque[Variant] = deque()
        self.building: set[str] = set()
        self.compile_seconds: list[float] = []  # of every build that was done
        self.ready: deque[tuple[Variant, Artifact]] = deque()
        self.fleet = Fleet(executor)
        self.timed = False  # whether any variant was begun to be timed
        self.lost_baselines: Counter[tuple[str, int]] = Counter()
        self.attempts: Counter[str] = Counter()
        self.tried_again: set[tuple[str, str]] = set()  # variant id, and why
        self.deadlines: dict[str, dict[str, float]] = {}  # variant id -> seconds given to its last build and measurement
        self.by_source: dict[str, Outcome] = {}  # timed, by the hash of the generated source
        self.waiting: dict[str, list[tuple[Variant, Artifact]]] = {}  # for another of the same source to be timed
        self.contenders = Contenders(sweep)

    def run(self) -> Result:
        try:
            self._take_known()
            self._queue_builds()
            finals_due = due(self.sweep)
            if self.to_build or finals_due:
                self.executor.seek(self.sweep.devices)
            self._dispatch()
            while self.to_build or self.building or self.ready or self.fleet.measuring:
                if (done := self.fleet.next()) is not None:
                    self._handle(done)
                elif not self.fleet.here:
                    self._say(self._stage())
                self._dispatch()
            if finals_due:
                self._baseline_for_finals()
            if self.result.baselines:
                baselines_again(self.sweep, self.fleet, self.result, self._say)
                play(self.sweep, self.fleet, self.result, self.contenders, self._say)
        except KeyboardInterrupt:
            self.result.interrupted = True
            for variant in self.sweep.variants:
                if variant.id not in self.settled:
                    self._settle(settle.cancelled(self._trial(variant)))
        return self.result

    def _take_known(self) -> None:
        for outcome in self.sweep.known.values():
            if outcome.status in TIMED and outcome.artifact and outcome.measurement:
                self.by_source[outcome.artifact.source_hash] = outcome
        self.result.reference = known_reference(self.sweep)
        for outcome in self.by_source.values():
            self.contenders.add(outcome)

    def _queue_builds(self) -> None:
        for variant in self.sweep.variants:
            if variant.id in self.sweep.pruned and variant.id not in self.settled:
                self._settle(settle.pruned(self._trial(variant), self.sweep.pruned[variant.id]))
            elif variant.id not in self.settled:
                self.attempts[variant.id] += 1
                self.to_build.append(variant)

    def _start_builds(self) -> None:
        """As many as the executor has room for and no more: the later one starts, the better its deadline is known."""
        while self.to_build and len(self.building) < self.executor.builders() and self._are_wanted():
            variant = self.to_build.popleft()
            self.building.add(variant.id)
            seconds = compile_deadline(self.sweep.allowance, self.compile_seconds)
            self.deadlines[variant.id] = {"build": seconds}
            self.executor.submit(BuildJob(variant, self.sweep.search, self.sweep.allowance.memory_gb), seconds)

    def _are_wanted(self) -> bool:
        """Whether builds are: not while enough is built to keep the devices busy. The base is always wanted."""
        if backend(self.sweep.info.target.kind).compiles_disturb_timing:
            return True  # all of them come first
        if len(self.ready) < AHEAD * len(self.sweep.devices):
            return True
        return self.sweep.base.id not in self.settled and any(map(self._is_base, self.to_build))

    def _dispatch(self) -> None:
        """Start builds, and give every idle device its next job: its baseline first, then the base, then whatever is built."""
        self._start_builds()
        if self.building and backend(self.sweep.info.target.kind).compiles_disturb_timing:
            return
        for device in list(self.fleet.idle):
            if not self.building and not self.ready:
                return
            if device.key not in self.result.baselines:
                self._measure(baseline_job(self.sweep, device), baseline_deadline(self.sweep.allowance))
            elif not self.timed and not self._all_known():
                continue  # another one may still be to begin with its baseline
            elif (chosen := self._next_ready()) is not None:
                self.timed = True
                form, memory = self.result.baselines[device.key].form, self.sweep.allowance.memory_gb
                job = BenchJob(*chosen, device, self.sweep.protocol, self.sweep.search, memory, form)
                seconds = deadline(self.result, device, self.sweep.protocol, self.sweep.allowance)
                self.deadlines.setdefault(job.variant.id, {})["measure"] = seconds
                self._measure(job, seconds)

    def _all_known(self) -> bool:
        """Whether every device that is here has its baseline: one that is unlike its siblings is to time nothing."""
        return all(device.key in self.result.baselines for device in self.fleet.here)

    def _next_ready(self) -> tuple[Variant, Artifact] | None:
        """The base before all others; until it is settled, nothing else."""
        if self.sweep.base.id not in self.settled:
            index = next((i for i, (v, _) in enumerate(self.ready) if self._is_base(v)), None)
            if index is None:
                return None
            self.ready.rotate(-index)
        return self.ready.popleft() if self.ready else None

    def _baseline_for_finals(self) -> None:
        """Where every variant is known, no device has its baseline yet, and the finals' deadlines go by one."""
        while not self.result.baselines:
            while not self.fleet.here:
                self.fleet.next()
            device = self.fleet.here[0]
            done = self.fleet.run(baseline_job(self.sweep, device), baseline_deadline(self.sweep.allowance))
            self._baseline_taken(device, done)

    def _measure(self, job: BenchJob | BaselineJob, deadline: float) -> None:
        self.fleet.measure(job, deadline)
        self._say(f"timing {self.sweep.baseline_name}" if isinstance(job, BaselineJob) else "timing")

    def _handle(self, done: Done) -> None:
        if isinstance(done.job, BuildJob):
            self.building.discard(done.job.variant.id)
            self._built(done.job.variant, done)
            self._say(self._stage())
            return
        self.fleet.free(done.job.device)
        if isinstance(done.job, BenchJob):
            if not backend(self.sweep.info.target.kind).compiles_disturb_timing:
                self._dispatch()  # the device goes on while this result is judged and recorded
            self._measured(done.job, done)
        elif isinstance(done.job, BaselineJob):
            self._baseline_taken(done.job.device, done)

    def _built(self, variant: Variant, done: Done) -> None:
        if done.failure is not None:
            if done.failure.kind is FailureKind.LOST and self._again(variant, "lost"):
                self.to_build.appendleft(variant)
            else:
                self._fail(variant, done.failure)
            return
        resources = backend(variant.target.kind).resources(done.output)
        artifact: Artifact = replace(done.value, log=done.output, resources=resources)
        self.compile_seconds.append(artifact.compile_seconds)
        twin, queue = self.by_source.get(artifact.source_hash), self.waiting.get(artifact.source_hash)
        if twin is not None:
            self._settle_duplicate(variant, artifact, twin)
        elif queue is None:
            self.waiting[artifact.source_hash] = []
            self.ready.append((variant, artifact))
        elif self._is_base(variant):
            # The base goes first: it takes the place of its twin, which waits for it.
            place = next(i for i, (_, a) in enumerate(self.ready) if a.source_hash == artifact.source_hash)
            queue.append(self.ready[place])
            self.ready[place] = (variant, artifact)
        else:
            queue.append((variant, artifact))

    def _baseline_taken(self, device: Device, done: Done) -> None:
        if done.failure is None:
            self.result.baselines[device.key] = done.value
            if done.value.contended:
                self.result.notes.append(f"{self.sweep.baseline_name} on {device} was disturbed: {done.value.contended}")
            self._leave_out_the_odd()
            return
        self.lost_baselines[device.key] += done.failure.kind is FailureKind.LOST
        if self.lost_baselines[device.key] != 1:
            self._leave_out(device, f"{self.sweep.baseline_name}: {done.failure.detail}")

    def _leave_out_the_odd(self) -> None:
        limit = self.sweep.allowance.siblings
        here = [self.result.baselines[d.key] for d in self.fleet.here if d.key in self.result.baselines]
        for key, difference in odd(here, limit).items():
            device = self.result.baselines[key].device
            than = f"{abs(difference):.1%} {'slower' if difference > 0 else 'faster'} at {self.sweep.baseline_name}"
            self._leave_out(device, f"{than} than the other {device.model}s, limit {limit:.0%} (measure: siblings)")

    def _leave_out(self, device: Device, why: str) -> None:
        self.result.notes.append(f"{device} left out: {why}")
        if not self.fleet.dismiss(device):
            raise InfrastructureLost(self.result.notes[-1])

    def _measured(self, job: BenchJob, done: Done) -> None:
        variant, artifact = job.variant, job.artifact
        if done.failure is not None:
            if done.failure.kind is FailureKind.LOST and self._again(variant, "lost"):
                self.ready.appendleft((variant, artifact))
                return
            self._fail(variant, done.failure, artifact)
            because = f"same generated source as {variant.label()}: {done.failure.detail}"
            for twin, twin_artifact in self.waiting.pop(artifact.source_hash, []):
                self._fail(twin, JobFailed(done.failure.kind, because), twin_artifact)
            return
        asked_for = self.sweep.info.acceptance.alone == "required"
        if done.value.contended and asked_for and self._again(variant, "contended"):
            self.ready.append((variant, artifact))
            return
        if self._is_base(variant):
            self._refer_to_base(artifact, done.value)
        baseline = self.result.baselines[job.device.key]
        acceptance, flops, reference = self.sweep.info.acceptance, self.sweep.flops, self.result.reference
        outcome = settle.measured(self._trial(variant), artifact, done.value, baseline, acceptance, flops, reference)
        self.by_source[artifact.source_hash] = settle.without_binary(outcome)
        self.contenders.add(outcome)
        self._settle(outcome)
        for twin, twin_artifact in self.waiting.pop(artifact.source_hash, []):
            self._settle_duplicate(twin, twin_artifact, outcome)

    def _settle_duplicate(self, variant: Variant, artifact: Artifact, twin: Outcome) -> None:
        outcome = settle.duplicate(self._trial(variant), artifact, twin)
        if self._is_base(variant) and twin.measurement is not None:  # a twin from an earlier sweep
            self._refer_to_base(artifact, twin.measurement)
            self.contenders.add(outcome)
        self._settle(outcome)

    def _refer_to_base(self, artifact: Artifact, measurement: Measurement) -> None:
        """Without a best, the base is what `faster` compares with."""
        if self.result.reference is None:
            self.result.reference = base_reference(self.sweep, artifact, measurement)

    def _again(self, variant: Variant, why: str) -> bool:
        """Whether a variant may be tried again, which it may once for each reason. A kernel's own failure is none."""
        if (variant.id, why) in self.tried_again:
            return False
        self.tried_again.add((variant.id, why))
        self.attempts[variant.id] += 1
        return True

    def _fail(self, variant: Variant, failure: JobFailed, artifact: Artifact | None = None) -> None:
        if failure.kind is FailureKind.LOST and (variant.id, "lost") in self.tried_again:
            failure = JobFailed(failure.kind, f"lost twice, and given up: {failure.detail}", failure.output)
        self._settle(settle.failed(self._trial(variant), failure, artifact))

    def _settle(self, outcome: Outcome) -> None:
        self.settled.add(outcome.variant.id)
        self.progress.statuses[outcome.status.value] += 1
        self._emit(outcome)

    def _trial(self, variant: Variant) -> Trial:
        """Attempts are counted on from what this sweep tried before it was taken up again: a record is known by them."""
        attempt = self.sweep.attempts.get(variant.id, 0) + max(1, self.attempts[variant.id])
        return Trial(variant, self._is_base(variant), attempt, dict(self.deadlines.get(variant.id, {})))

    def _is_base(self, variant: Variant) -> bool:
        return variant.id == self.sweep.base.id

    def _stage(self) -> str:
        if self.building:
            return "building"
        return "timing" if self.fleet.here else f"waiting for a device: {self.sweep.info.device.model}"

    def _say(self, stage: str) -> None:
        self.progress.stage, self.progress.building = stage, len(self.building) + len(self.to_build)
        self.progress.best = self.contenders.leader()
        self._watch(self.progress)


def compile_deadline(allowance: Allowance, seen: Sequence[float]) -> float:
    """Seconds that a compile may take, from the seconds that others took: the ceiling until some were seen."""
    floor, ceiling = allowance.compile_deadline_s
    return ceiling if len(seen) < ENOUGH_SEEN else min(ceiling, max(floor, SLOWEST_COMPILE * max(seen)))
