"""Artifact -> measurement. Runs in a child process that sees one device. Never compiles.

How time is taken and results are checked is docs/protocol.md. Any change here that could move a number raises
`records.PROTOCOL_VERSION`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib import metadata

from runner.jobs.baseline import vendor
from runner.jobs.conduct import no_side_effects
from runner.jobs.problem import Problem, prepared
from runner.jobs.requests import BenchJob, PairJob, ProveJob
from runner.jobs.subject import Kernel, Subject, Vendor
from runner.jobs.timing import Loop, StateSampler
from runner.records import Accuracy, Measurement, PairSession, Proof, TargetKind
from runner.targets.base import backend


def measure(job: BenchJob) -> Measurement:
    """Check, time and check again one variant, with calls of its baseline in between.

    Raises JobFailed(WRONG_RESULT | SIDE_EFFECT | LAUNCH_ERROR | CRASH | UNSOUND).
    """
    with prepared(job.variant.workload, job.device.kind, job.search) as (target, problem):
        kernel, baseline = Kernel(job.variant, job.artifact, problem, job.search), vendor(problem, job.form, job.device.kind)
        with no_side_effects(job.device.kind):
            before = kernel.checks_before()
            accuracy = _accuracy(kernel)
            loop = Loop(target, (kernel, baseline))
            loop.warm_up(job.protocol.warmup)
            with StateSampler(target, job.device) as sampler:
                others = target.others(job.device)
                samples, reference = loop.beside(kernel, baseline, job.protocol.repeat)
                contended = others()
            after = kernel.checks_after()
        loop.demand_one_core()
    return Measurement(
        device=job.device,
        protocol=job.protocol.key,
        samples_ms=samples,
        checks=(*before, *after),
        prepack_ms=kernel.prepack_ms,
        cache="cleared between calls",
        state=sampler.state,
        versions=versions(job.device.kind),
        measured_at=_now(),
        contended=contended,
        reference_ms=reference,
        calls=kernel.compared,
        equal=kernel.equal,
        accuracy=accuracy,
        baseline_accuracy=problem.baseline_accuracy,
        first_call_ms=kernel.call_ms[0],
        settled_call_ms=min(kernel.call_ms[1:3]),
        batch=loop.batch,
        exposed=loop.exposed,
    )


def measure_session(job: PairJob) -> PairSession:
    """Two ways to compute one workload, alternated call by call."""
    kind = job.device.kind
    with prepared(job.candidate.workload, kind, job.search) as (target, problem):
        candidate = Kernel(job.candidate, job.candidate_artifact, problem, job.search)
        pair: tuple[Kernel, Subject] = (candidate, _reference(job, problem))
        with no_side_effects(kind):
            before = [subject.checks_before() for subject in pair]
            loop = Loop(target, pair)
            loop.warm_up(job.protocol.warmup)
            with StateSampler(target, job.device) as sampler:
                others = target.others(job.device)
                first, second = loop.pairs(job.pairs)
                contended = others()
            after = [subject.checks_after() for subject in pair]
        loop.demand_one_core()
    own = (*before[0], *after[0])
    return PairSession(first, second, own, contended, candidate.compared, candidate.equal, sampler.state, _now())


def prove(job: ProveJob) -> Proof:
    """Inputs of every kind, then launch after launch on the timed ones, each looked at. Raises as `measure` does."""
    with prepared(job.variant.workload, job.device.kind, job.search) as (_, problem):
        kernel = Kernel(job.variant, job.artifact, problem, job.search)
        with no_side_effects(job.device.kind):
            before = kernel.checks_before()
            of_kinds = kernel.prove()
            kernel.restore()
            end = time.monotonic() + job.seconds
            while kernel.compared < job.launches and time.monotonic() < end:
                kernel.prepare()
                for call in kernel.calls:
                    call()
                kernel.verify()
            after = kernel.checks_after()
    return Proof((*before, *of_kinds, *after), kernel.compared, kernel.equal, of_kinds[0].seed)


def _reference(job: PairJob, problem: Problem) -> Kernel | Vendor:
    if job.reference is None:
        return vendor(problem, job.form, job.device.kind)
    assert job.reference_artifact is not None
    return Kernel(job.reference, job.reference_artifact, problem, job.search)


def _accuracy(kernel: Kernel) -> Accuracy | None:
    exact = kernel.problem.exact
    return exact.accuracy(kernel.slots[0].out.tensor) if exact is not None else None


def versions(kind: TargetKind) -> Mapping[str, str]:
    """What a number depends on beside the variant: Python packages, driver, compiler, and torch's settings for products."""
    import torch

    matmul = torch.backends.cuda.matmul
    flags = {name: str(getattr(matmul, name)) for name in ("allow_tf32", "allow_fp16_reduced_precision_reduction")}
    return {**_versions(kind), **({f"torch.{k}": v for k, v in flags.items()} if kind != "cpu" else {})}


@functools.cache
def _versions(kind: TargetKind) -> Mapping[str, str]:
    packages = {name: metadata.version(name) for name in ("torch", "tilelang")}
    return {**packages, **backend(kind).versions()}


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
