"""One variant again, alone, here and now, with everything it prints: to see a failure, or whether a number holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernels.family import code_hash, load_family
from runner import stats
from runner.accept import device_of
from runner.bench import BenchJob
from runner.build import BuildJob
from runner.errors import RequestError
from runner.executors.base import Done, Executor, run_one
from runner.paths import search_folders
from runner.records import Measurement, Protocol, Status
from tracking.store import Store, Stored

BUILD_DEADLINE = 600.0
MEASURE_DEADLINE = 600.0


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


def wanted(prefix: str, store: Store, anyway: bool) -> Stored:
    """The run to repeat. Raises NotFound, or RequestError where its family's code is another now: `anyway` takes it as it is."""
    stored = store.find(prefix)
    variant = stored.outcome.variant
    if not anyway and code_hash(load_family(variant.workload.family, search_folders())) != variant.code:
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
