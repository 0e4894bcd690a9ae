"""TileLang's `c` target: generated C, built by the C++ compiler of this machine, one thread."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

from runner.errors import FailureKind
from runner.records import Device, Limits, Target, TargetKind
from runner.subprocesses import NO_DEVICES
from runner.targets import cpu_time, toolchain

STACK_FOR_TILES = 4 << 20
"""Bytes of tiles that a kernel may keep on the stack: half of Linux's usual 8 MiB."""

BOUND_TFLOPS: Mapping[str, Mapping[str, float]] = {"x86_64": {"float32": 64 * 6.0e-3}}
"""By architecture. What one core cannot exceed: two 512-bit multiply-adds a cycle, at 6 GHz. No processor's actual peak."""

FLUSH_BYTES = 64 << 20
"""More than the last-level cache share of one core on the machines this was tried on."""


class CPUBackend:
    kind: TargetKind = "cpu"
    torch_device = "cpu"
    source_suffix = ".c"
    compiles_disturb_timing = True
    settle_seconds = 0.0
    shortest_ms = 0.0
    state_period_s = 0.25  # reading it takes a core's time
    execution_backend = "cython"
    build_environment: Mapping[str, str] = MappingProxyType({})

    def target(self, arch: str | None = None) -> Target:
        return Target("cpu", arch or platform.machine())

    def limits(self, target: Target) -> Limits:
        return Limits(None, STACK_FOR_TILES, None, ("float32", "float16", "int8", "int32"))

    def devices(self) -> tuple[Device, ...]:
        return (Device("cpu", cpu_model(), host=platform.node(), bound_tflops=BOUND_TFLOPS.get(platform.machine(), {})),)

    def visible(self, device: Device | None) -> dict[str, str]:
        return {**NO_DEVICES, "OMP_NUM_THREADS": "1"}

    def compile_options(self, target: Target) -> dict[str, Any]:
        return {"target": "c", "execution_backend": self.execution_backend}

    def mma(self, source: str) -> tuple[int, str] | None:
        return None

    def evidence(self, source: str, launch: str, folder: Path) -> Mapping[str, str | int]:
        return {}

    def resources(self, log: str) -> dict[str, int]:
        return {}

    def prepare(self, dtype: str) -> None:
        """One thread for the kernel and for torch alike: the generated C is serial, so the baseline is too."""
        import torch

        torch.set_num_threads(1)

    def time(self, calls: Sequence[Callable[[], object]], clear: Callable[[], object]) -> tuple[float, bool]:
        clear()
        start = perf_counter_ns()
        for call in calls:
            call()
        return (perf_counter_ns() - start) / 1e6 / len(calls), True

    def cache_clearer(self) -> Callable[[], object]:
        import torch

        scratch = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32)
        return lambda: scratch.sum()

    def synchronize(self) -> None:
        pass

    def state(self, device: Device) -> dict[str, float | str]:
        clocks = [float(line.split(":")[1]) for line in _cpuinfo() if line.startswith("cpu MHz")]
        found: dict[str, float | str] = {"threads": 1.0, "load_1m": os.getloadavg()[0]}
        return found | ({"clock_mhz": max(clocks)} if clocks else {})

    def others(self, device: Device) -> Callable[[], str | None]:
        return cpu_time.look()

    def memory_checker(self, log: Path) -> tuple[str, ...]:
        return ()

    def toolchain(self) -> dict[str, str]:
        return {"execution_backend": self.execution_backend, **self.versions(), **toolchain.settings()}

    def versions(self) -> dict[str, str]:
        said = toolchain.first_line(toolchain.told(toolchain.cplus_compiler()))
        return {"compiler": said} if said else {}

    def classify(self, message: str) -> tuple[FailureKind, bool]:
        return FailureKind.LAUNCH_ERROR, False


def cpu_model() -> str:
    """The processor's name as Linux gives it, or its architecture."""
    names = (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


CPU = CPUBackend()
