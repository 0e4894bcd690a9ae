"""A config on a shape beside its own: tiles hang over every edge there, where its own may have none that do."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.family import load_family
from kernels.optional import neighbour_of
from runner.build import BuildJob
from runner.errors import FailureKind, JobFailed
from runner.executors.base import Executor, run_one
from runner.jobs.requests import ProveJob
from runner.records import Device, Variant
from runner.targets.base import backend

DEADLINE = 600.0  # seconds, of the build and of the proof each


@dataclass(frozen=True)
class Beside:
    """What came of it: `said` is for a verdict's evidence; `failure` is the kernel's own fault there."""

    said: str
    failure: JobFailed | None = None


def prove_beside(variant: Variant, device: Device, executor: Executor, search: tuple[str, ...]) -> Beside:
    """Build a variant's config for the neighbouring shape that its family names, and run it there on inputs of every kind.

    A config that the family or the compiler refuses there claims nothing about edges, which is said and is no fault.
    """
    family = load_family(variant.workload.family, search)
    shape = neighbour_of(family, variant.workload)
    if shape is None:
        return Beside("")
    workload = replace(variant.workload, shape=shape)
    other, name = replace(variant, workload=workload), "x".join(map(str, shape.values()))
    if why := family.unfit(workload, variant.config, variant.target, backend(device.kind).limits(variant.target)):
        return Beside(f"not for {name}: {why}")
    built = run_one(executor, BuildJob(other, search), DEADLINE)
    if built.failure is not None:
        return Beside(f"not for {name}: {built.failure}")
    done = run_one(executor, ProveJob(other, built.value, device, launches=0, search=search), DEADLINE)
    if done.failure is None:
        return Beside(f"right on {name} too")
    failure = done.failure
    if failure.kind in (FailureKind.LAUNCH_ERROR, FailureKind.COMPILE_ERROR):
        return Beside(f"not for {name}: {failure}")
    return Beside("", JobFailed(failure.kind, f"on {name}: {failure.detail}", failure.output))
