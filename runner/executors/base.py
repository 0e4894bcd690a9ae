"""One interface for every place where jobs run, and the one function that runs them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from runner.build import BuildJob, build, compiler_error
from runner.errors import FailureKind, InfrastructureLost, JobFailed, RequestError
from runner.jobs.baseline import measure_baseline
from runner.jobs.measure import measure, measure_session, prove
from runner.jobs.requests import BaselineJob, BenchJob, MeasureJob, PairJob, ProveJob
from runner.process.child import Child
from runner.process.lease import TAKES_TURNS, lease
from runner.records import Device, TargetKind
from runner.subprocesses import NO_DEVICES
from runner.targets.base import backend

WARM_DEADLINE = 120.0

Job = BuildJob | MeasureJob

MEASURES: dict[type, Any] = {
    BenchJob: measure,
    BaselineJob: measure_baseline,
    PairJob: measure_session,
    ProveJob: prove,
}


@dataclass(frozen=True)
class Done:
    """A job that ended: with a value, or with the failure that says why not."""

    job: Job
    value: Any = None
    failure: JobFailed | None = None
    output: str = ""


@dataclass(frozen=True)
class Arrived:
    """A device that was asked for can be measured on from now on."""

    device: Device


@dataclass(frozen=True)
class Left:
    """A device cannot be measured on any more: it was lost, or others wait for it. Told before the end of the job that it had."""

    device: Device


class Executor(Protocol):
    """Runs jobs: builds on any CPUs, everything else on the device that the job names, one at a time there."""

    def devices(self, kind: TargetKind) -> tuple[Device, ...]:
        """The devices of a kind that this executor could measure on."""

    def seek(self, devices: Sequence[Device]) -> None:
        """Ask for devices of one model; each is told of by `next` when it can be measured on.

        One that is lost, or others of the model that join later, are asked for without another word.
        """

    def dismiss(self, device: Device) -> bool:
        """Use a device no more in this sweep, also if it comes back. Whether others are here, or may come."""

    def submit(self, job: Job, deadline: float) -> None:
        """Start a job as soon as there is room. `deadline` (seconds) counts from its own start."""

    def builders(self) -> int:
        """How many builds are worth having submitted at a time: those that can run, and some that wait for them."""

    def next(self) -> Done | Arrived | Left:
        """Wait for the next job to end, in whatever order they do, or for a device to come or go.

        Raises InfrastructureLost where there is nothing left to wait for.
        """

    def close(self) -> None:
        """Stop everything that runs, and free what is held."""


def demand_sound(done: Done) -> Done:
    """The same. Raises RequestError where the family's inputs or its baseline are at fault, and no kernel."""
    if done.failure is not None and done.failure.kind is FailureKind.UNSOUND:
        raise RequestError(done.failure.detail)
    return done


def run_one(executor: Executor, job: Job, deadline: float) -> Done:
    """Run a job on an executor that has no other, and wait for its end.

    Raises InfrastructureLost where the job was lost, RequestError as `demand_sound` does.
    """
    executor.submit(job, deadline)
    while not isinstance(done := executor.next(), Done):
        pass
    demand_sound(done)
    if done.failure is not None and done.failure.kind is FailureKind.LOST:
        raise InfrastructureLost(f"what measured is gone: {done.failure.detail}")
    return done


def run_build(child: Child, job: BuildJob, deadline: float) -> Done:
    """Build in a child that sees no device. Beside a CPU that is being timed it waits."""
    target = backend(job.variant.target.kind)
    with contextlib.ExitStack() as stack:
        if target.compiles_disturb_timing:
            stack.enter_context(lease(target.devices()[0], shared=True))
        done = run_job(child, build, job, deadline, FailureKind.COMPILE_TIMEOUT)
    failure = done.failure
    if failure is not None and failure.kind is FailureKind.COMPILE_ERROR and (said := compiler_error(done.output)):
        # Some compilers say why on the process's own stderr alone.
        return replace(done, failure=JobFailed(failure.kind, said, failure.output))
    return done


def run_measure(child: Child, job: MeasureJob, deadline: float) -> Done:
    """Measure in a child that sees one device, while nobody else measures on it. A new session gets a fresh process."""
    session = job.session if isinstance(job, PairJob) else ""
    if session and session != child.session:
        child.close()
    child.session = session
    with lease(job.device):
        return run_job(child, MEASURES[type(job)], job, deadline, FailureKind.HANG)


def build_child() -> Child:
    return Child(NO_DEVICES)


def measure_child(device: Device, under: Sequence[str] = ()) -> Child:
    """`under` as in `Child`."""
    target = backend(device.kind)
    forked = target.torch_device == "cpu" and not under
    return Child({**target.visible(device), TAKES_TURNS: "1"}, forked, under)


def warm(child: Child) -> None:
    """Start a child and have it import what every job needs, which takes seconds."""
    with contextlib.suppress(JobFailed):  # the first job meets the same fault, and reports it
        child.run(import_all, deadline=WARM_DEADLINE)


def import_all() -> None:
    import tilelang  # noqa: F401
    import torch  # noqa: F401


def run_job(child: Child, function: Any, job: Job, deadline: float, overdue: FailureKind) -> Done:
    """`function(job)` in the child, as a Done either way."""
    try:
        value = child.run(function, job, deadline=deadline, overdue=overdue, memory_gb=job.memory_gb)
    except JobFailed as failure:
        return Done(job, failure=failure, output=failure.output)
    return Done(job, value=value, output=child.output())
