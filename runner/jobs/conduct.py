"""What a kernel does beside computing: printing, starting processes, changing the settings that others run under."""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.errors import FailureKind, JobFailed
from runner.paths import here
from runner.process.session import processes_of
from runner.records import TargetKind
from runner.targets.base import backend

LOOKS = 20  # hundredths of a second apart
SHOWN = 60  # characters of what was printed

TIMERS = {name: getattr(time, name) for name in ("perf_counter", "perf_counter_ns", "monotonic", "process_time", "sleep")}
"""As they were before any family was loaded."""


@contextmanager
def device_errors(kind: TargetKind) -> Iterator[None]:
    """Turns what a device or its runtime raises into JobFailed, in the words of the target."""
    try:
        yield
    except JobFailed:
        raise
    except Exception as error:
        failure, sticky = backend(kind).classify(str(error))
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:500]
        raise JobFailed(failure, said, sticky=sticky) from error


@contextmanager
def same_settings() -> Iterator[None]:
    """Raises JobFailed(SIDE_EFFECT) where torch's functions and settings, or the clocks, are not as they were.

    The process is not used again then.
    """
    before = _settings()
    try:
        yield
    finally:
        after = _settings()
        changed = [name for name in before if before[name] is not after[name] and before[name] != after[name]]
        if changed:
            raise JobFailed(FailureKind.SIDE_EFFECT, f"changes {', '.join(changed)}", sticky=True)


def _settings() -> dict[str, Any]:
    """By the names that a person knows them by."""
    import torch

    matmul = torch.backends.cuda.matmul
    functions = {f"torch.{name}": getattr(torch, name) for name in ("mm", "equal", "empty", "empty_like", "zeros")}
    functions |= {f"torch.Tensor.{name}": getattr(torch.Tensor, name) for name in ("fill_", "copy_", "clone", "view", "any")}
    functions |= {f"torch.cuda.{name}": getattr(torch.cuda, name) for name in ("Event", "synchronize")}
    return {
        **functions,
        **{f"time.{name}": getattr(time, name) for name in TIMERS},
        "torch's number of threads": torch.get_num_threads(),
        "torch's default dtype": torch.get_default_dtype(),
        "torch's grad mode": torch.is_grad_enabled(),
        "torch's allow_tf32": matmul.allow_tf32,
        "torch's allow_fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the current folder": here(),
    }


@contextmanager
def no_side_effects(kind: TargetKind) -> Iterator[None]:
    """Raises JobFailed(SIDE_EFFECT) where the block printed, or left processes or threads behind that it started."""
    looks: Mapping[str, Callable[[], set[int]]] = {"process": _processes, "thread": _threads if kind == "cpu" else set}
    before = {what: look() for what, look in looks.items()}
    printed = {fd: size for fd, size, _ in _output()}
    yield
    for what, look in looks.items():
        if left := _left(look, before[what]):
            named = what if len(left) == 1 else f"{what}{'es' if what == 'process' else 's'}"
            raise JobFailed(FailureKind.SIDE_EFFECT, f"leaves {len(left)} {named} running", sticky=True)
    for fd, size, path in _output():
        if size > printed.get(fd, size):
            with Path(path).open("rb") as file:
                file.seek(printed[fd])
                first = file.read(SHOWN).decode(errors="replace").strip().partition("\n")[0]
            raise JobFailed(FailureKind.SIDE_EFFECT, f"prints: {size - printed[fd]:,} bytes, the first {first!r}")


def _left(look: Callable[[], set[int]], before: set[int]) -> set[int]:
    """What is there that was not, and stays: one that just ended is listed for a moment longer."""
    for _ in range(LOOKS):
        if not (left := look() - before):
            break
        time.sleep(0.01)
    return left


def _output() -> list[tuple[int, int, str]]:
    """Standard output and error, where they are files, with their sizes and paths."""
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # what C code printed may be in a buffer of its own
    found = []
    for fd in (1, 2):
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            found.append((fd, status.st_size, f"/proc/self/fd/{fd}"))
    return found


def _processes() -> set[int]:
    """Of this process's session, where it leads one, as a child of the runner does."""
    return set(processes_of(os.getpid())) if os.getsid(0) == os.getpid() else set()


def _threads() -> set[int]:
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}
