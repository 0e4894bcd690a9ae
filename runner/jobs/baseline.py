"""The vendor path for the same math: which way to call it is the fastest here, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.optional import Form, forms_of
from runner.jobs.problem import Problem, prepared
from runner.jobs.requests import BaselineJob
from runner.jobs.subject import Vendor
from runner.jobs.timing import Loop
from runner.records import Baseline, TargetKind
from runner.stats import median
from runner.targets.base import Backend

FORM_SAMPLES = 10
"""Of each form of a baseline, before the fastest is chosen."""


def measure_baseline(job: BaselineJob) -> Baseline:
    """Every form of the family's baseline, then `repeat` calls of the fastest.

    Timed once more where other processes disturbed it.
    """
    with prepared(job.workload, job.device.kind, job.search) as (target, problem):
        medians, fastest = _forms(problem, target, job)
        loop = Loop(target, (fastest,))
        loop.warm_up(job.protocol.warmup)
        for _ in range(2):
            others = target.others(job.device)
            samples = tuple(loop.sample(fastest) for _ in range(job.protocol.repeat))
            if not (contended := others()):
                break
    form = fastest.form.name if fastest.form else ""
    name = problem.family.baseline_name
    return Baseline(job.device, name, samples, (), contended, form, medians, problem.baseline_accuracy)


def vendor(problem: Problem, form: str, kind: TargetKind) -> Vendor:
    """The baseline in the form of that name; where there is none, as it is."""
    return Vendor(problem, next((f for f in forms_of(problem.family, kind) if f.name == form), None))


def _forms(problem: Problem, target: Backend, job: BaselineJob) -> tuple[Mapping[str, float | str], Vendor]:
    """Each form's median in milliseconds, or why it cannot be had, and the fastest."""
    plain, medians = Vendor(problem, None), dict[str, float | str]()
    others = [form for form in forms_of(problem.family, job.device.kind) if not _unavailable(problem, form, medians)]
    if not others:
        return {}, plain
    vendors = [plain, *(Vendor(problem, form) for form in others)]
    loop = Loop(target, vendors)
    loop.warm_up(job.protocol.warmup)
    samples: list[list[float]] = [[] for _ in vendors]
    for _ in range(FORM_SAMPLES):  # in turns, so that none has the card cooler than another
        for vendor, own in zip(vendors, samples):
            own.append(loop.sample(vendor))
    medians |= {vendor.form.name if vendor.form else "as it is": median(own) for vendor, own in zip(vendors, samples)}
    return medians, min(zip(samples, range(len(vendors)), vendors), key=lambda found: (median(found[0]), found[1]))[2]


def _unavailable(problem: Problem, form: Form, medians: dict[str, float | str]) -> bool:
    """Whether a form cannot be called here; then why not is noted."""
    try:
        Vendor(problem, form).calls[0]()
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        medians[form.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"[:200]
        return True
    return False
