"""One variant again, alone, here and now, with everything it prints: to see a failure, or whether a number holds."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kernels.sources import code_hash
from runner import stats
from runner.accept import device_of
from runner.build import BuildJob
from runner.errors import InfrastructureLost, Refused, RequestError
from runner.executors.base import Done, Executor, measure_child, run_measure, run_one
from runner.jobs.requests import BenchJob, ProveJob
from runner.paths import search_folders
from runner.records import Measurement, Protocol, Status
from runner.targets.base import backend
from tracking.store import Store, Stored

BUILD_DEADLINE = 600.0
MEASURE_DEADLINE = 600.0
SANITIZE_DEADLINE = 1800.0  # a memory checker slows a kernel down by tens of times

CHECKER_STARTED = "COMPUTE-SANITIZER"
FAULT = re.compile(r"(?:Invalid|Misaligned|Program hit|Out-of-range|Out-of-bounds)\b")


@dataclass(frozen=True)
class Repro:
    """What a run was, and what its variant did now. `measurement` is None where it failed, and `detail` says how."""

    stored: Stored
    status: Status
    detail: str
    measurement: Measurement | None

    @property
    def same(self) -> bool:
        """Whether the variant ended as it did then."""
        was = Status.MEASURED if self.stored.outcome.status is Status.DUPLICATE else self.stored.outcome.status
        return self.status is was


def repro(prefix: str, store: Store, executor: Executor, say: Callable[[str], None], anyway: bool = False) -> Repro:
    """Build and measure a run's variant once more. `say` gets what the build and the kernel print.

    Raises as `wanted` does, and InfrastructureLost where the executor has no device of the run's model.
    """
    stored = wanted(prefix, store, anyway)
    variant = stored.outcome.variant
    built = _next(executor, BuildJob(variant, search_folders()), BUILD_DEADLINE, "build", say)
    if built.failure is not None:
        return Repro(stored, Status(built.failure.kind.value), built.failure.detail, None)
    device = device_of(stored, executor)
    protocol = Protocol(*(int(part[1:]) for part in variant.protocol.split("/")[1:]))
    done = _next(executor, BenchJob(variant, built.value, device, protocol, search_folders()), MEASURE_DEADLINE, "measure", say)
    if done.failure is not None:
        return Repro(stored, Status(done.failure.kind.value), done.failure.detail, None)
    return Repro(stored, Status.MEASURED, "", done.value)


def sanitize(prefix: str, store: Store, executor: Executor, say: Callable[[str], None], anyway: bool = False) -> list[str]:
    """What a memory checker says of a run's variant, a line for each fault: empty where it found none.

    The variant runs on inputs of every kind, once each. Raises as `wanted` does, RequestError where there is no such tool,
    Refused where the variant cannot be built, and InfrastructureLost where the tool did not start.
    """
    stored = wanted(prefix, store, anyway)
    variant, search = stored.outcome.variant, search_folders()
    device = device_of(stored, executor)
    with tempfile.TemporaryDirectory(prefix="runner-sanitize-") as folder:
        log = Path(folder, "log")
        command = backend(device.kind).memory_checker(log)
        if not command:
            raise RequestError(f"--sanitize needs compute-sanitizer on the PATH and an NVIDIA card; this run is of {device.kind}")
        built = _next(executor, BuildJob(variant, search), BUILD_DEADLINE, "build", say)
        if built.failure is not None:
            raise Refused(f"{stored.run_id[:8]} cannot be built: {built.failure}")
        child = measure_child(device, command)
        try:
            done = run_measure(child, ProveJob(variant, built.value, device, launches=0, search=search), SANITIZE_DEADLINE)
        finally:
            child.close()
        said = log.read_text(errors="replace") if log.exists() else ""
    if CHECKER_STARTED not in said:
        raise InfrastructureLost(f"{command[0]} did not start: {done.failure or done.output or 'it said nothing'}")
    found = checker_faults(said)
    return found + ([str(done.failure)] if done.failure is not None and not found else [])


def checker_faults(said: str) -> list[str]:
    """The first line of each fault that compute-sanitizer reported, with where it was."""
    lines = [line.removeprefix("=========").strip() for line in said.splitlines() if line.startswith("=========")]
    return [f"{line} {where}" for line, where in zip(lines, [*lines[1:], ""]) if FAULT.match(line)]


def wanted(prefix: str, store: Store, anyway: bool) -> Stored:
    """The run to repeat. Raises NotFound, or RequestError where its family's code is another now: `anyway` takes it as it is."""
    stored = store.find(prefix)
    variant = stored.outcome.variant
    if not anyway and code_hash(variant.workload.family) != variant.code:
        raise RequestError(
            f"the code of family {variant.workload.family} has changed since {stored.run_id[:8]}: --anyway runs it as it is now"
        )
    return stored


def compared(found: Repro) -> list[str]:
    """Then and now, a line each."""
    outcome = found.stored.outcome
    lines = [f"then: {outcome.status.value}{_numbers(outcome.measurement) or ': ' + outcome.reason}"]
    return [*lines, f"now:  {found.status.value}{_numbers(found.measurement) or ': ' + found.detail}"]


def _numbers(measurement: Measurement | None) -> str:
    if measurement is None:
        return ""
    return f", median {stats.median(measurement.samples_ms):.4g} ms, max_abs_error {measurement.max_abs_error:.3g}"


def _next(executor: Executor, job: BuildJob | BenchJob, deadline: float, what: str, say: Callable[[str], None]) -> Done:
    done = run_one(executor, job, deadline)
    printed = done.failure.output if done.failure is not None else done.output
    if printed:
        say(f"--- the {what} printed:\n{printed}\n---")
    return done
