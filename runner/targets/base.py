"""The small protocol that a target fulfils, and the table of targets. A new target is one file and one line here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from runner.errors import FailureKind, RequestError, nearest
from runner.records import Device, Limits, Target, TargetKind


class Backend(Protocol):
    """What the runner asks of a target. Vendor libraries are imported inside the methods."""

    kind: TargetKind
    torch_device: str
    """What torch calls a device of this target: "cpu" or "cuda"."""
    source_suffix: str
    """`.c` or `.cu`: what an editor should call the generated source."""
    compiles_disturb_timing: bool
    """Whether a build on the same machine slows what is timed: then all builds come first."""
    execution_backend: str
    """How TileLang calls a kernel of this target, in its own word."""
    build_environment: Mapping[str, str]
    """What is set while building, so that the compiler tells of registers and spills."""

    def target(self, arch: str | None = None) -> Target:
        """The target for an architecture, or for this machine's device (or the usual one where it has none)."""

    def limits(self, target: Target) -> Limits: ...

    def devices(self) -> tuple[Device, ...]:
        """The devices of this machine that this process may use; empty where there are none."""

    def visible(self, device: Device | None) -> dict[str, str]:
        """Environment that shows a child process this device alone; None hides all of them."""

    def compile_options(self, target: Target) -> dict[str, Any]:
        """Keyword arguments for `tilelang.compile`."""

    def mma(self, source: str) -> tuple[int, str] | None:
        """Textual count and name of the matrix instruction in source stripped of comments and strings; None: has none."""

    def evidence(self, source: str, launch: str, folder: Path) -> Mapping[str, str | int]:
        """What the generated source, and the built files in `folder`, show of how a kernel works: for a person to verify.

        `launch` is the host's code, which names the kernels that run.
        """

    def resources(self, log: str) -> dict[str, int]:
        """Registers and spilled bytes, as far as the compiler told in the build's log."""

    settle_seconds: float
    """How long the clocks and the power of a device take to settle under load: so long it is warmed up, and a pair is timed."""
    shortest_ms: float
    """What takes less is timed several calls at once, because the device's clock ticks too slowly for one."""
    state_period_s: float
    """Between two looks at the device's state while something is timed."""

    def prepare(self, dtype: str) -> None:
        """What a timing process sets up before anything else: thread counts, and how torch multiplies a workload's dtype."""

    def time(self, calls: Sequence[Callable[[], object]], clear: Callable[[], object]) -> tuple[float, bool]:
        """Milliseconds of one of several calls in a row, with `clear` before the first, outside the timed part.

        Also whether launching was hidden: the device had not begun with the first call when the last was queued.
        """

    def cache_clearer(self) -> Callable[[], object]:
        """A function that drives a previous call's data out of the device's last-level cache, by reading.

        Writing would leave lines there that the timed call has to write back first.
        """

    def synchronize(self) -> None: ...

    def state(self, device: Device) -> dict[str, float | str]:
        """Clock, power, temperature, threads: what a timing was taken under, where a tool tells."""

    def others(self, device: Device) -> Callable[[], str | None]:
        """Begins to sample the other processes on the device; what it returns ends that and names them.

        One line for people, "" for nobody, None where it cannot be told.
        """

    def memory_checker(self, log: Path) -> tuple[str, ...]:
        """A command to run a process under that reports every access out of bounds in `log`; empty where there is none."""

    def toolchain(self) -> dict[str, str]:
        """What makes a kernel of generated source on this machine: the compiler's version, and settings that shape its code.

        Part of every variant's identity. A compiler that is not here is left out: to plan needs none.
        """

    def versions(self) -> dict[str, str]:
        """Driver, toolkit and compiler."""

    def classify(self, message: str) -> tuple[FailureKind, bool]:
        """What a device error's text means, and whether it is sticky (the process cannot go on)."""


BACKENDS: Mapping[str, str] = {
    "maca": "runner.targets.maca:MACA",
    "cuda": "runner.targets.cuda:CUDA",
    "cpu": "runner.targets.cpu:CPU",
}
"""In the order that `auto` prefers them."""


def backend(kind: str) -> Backend:
    """The backend of a kind of target. Raises RequestError that lists the choices."""
    if kind not in BACKENDS:
        raise RequestError(f"no target {kind!r}: {nearest(kind, [*BACKENDS, 'auto'])}")
    module, _, attribute = BACKENDS[kind].partition(":")
    found: Backend = getattr(importlib.import_module(module), attribute)
    return found
