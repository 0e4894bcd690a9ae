"""NVIDIA GPUs. Generating and compiling CUDA needs nvcc and no GPU; timing needs one."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner.errors import FailureKind
from runner.records import Device, Limits, Target, TargetKind
from runner.targets import device_events, nvml, sass, toolchain, trips
from runner.targets.source import count_instruction, evidence
from runner.targets.vendor_tool import User, ask, is_visible, look, strangers

MMA = re.compile(r"\btl::(mma_sync\w*|wgmma_\w+|tcgen05mma_\w+|gemm_(?:ss|rs|sr|rr))\s*<")

USUAL_ARCH = "sm_90a"
"""What is generated for where no card says otherwise: planning on a laptop."""

# Dense rates without sparsity, TFLOPS, by the vendor's data sheets.
PEAKS = {
    "H200": {"float16": 989.5, "bfloat16": 989.5, "tfloat32": 494.7},
    "H100 80GB HBM3": {"float16": 989.5, "bfloat16": 989.5, "tfloat32": 494.7},
    "H100 PCIe": {"float16": 756.5, "bfloat16": 756.5, "tfloat32": 378.0},
    "A100": {"float16": 312.0, "bfloat16": 312.0, "tfloat32": 156.0},
}

# Dynamic shared memory per block by architecture, bytes (CUDA C++ Programming Guide, compute capabilities).
SHARED_MEMORY = {"sm_75": 65_536, "sm_80": 166_912, "sm_86": 101_376, "sm_89": 101_376, "sm_90": 232_448, "sm_100": 232_448}

STICKY = re.compile(
    r"illegal memory access|misaligned address|illegal instruction|unspecified launch failure|device-side assert"
    r"|launch timed out|hardware stack error|uncorrectable ECC",
    re.IGNORECASE,
)


class CUDABackend:
    kind: TargetKind = "cuda"
    torch_device = "cuda"
    source_suffix = ".cu"
    compiles_disturb_timing = False
    settle_seconds = device_events.SETTLE_SECONDS
    shortest_ms = device_events.SHORTEST_MS
    state_period_s = 0.02
    execution_backend = "tvm_ffi"
    build_environment: Mapping[str, str] = MappingProxyType({"TILELANG_VERBOSE": "1"})  # passes -v to ptxas

    def target(self, arch: str | None = None) -> Target:
        if arch is None:
            capabilities = [row[2] for row in _query("name,uuid,compute_cap")]
            arch = _arch(capabilities[0]) if capabilities else USUAL_ARCH
        return Target("cuda", arch)

    def limits(self, target: Target) -> Limits:
        base = target.arch.rstrip("af")
        return Limits(1024, SHARED_MEMORY.get(base), 32, ("float16", "bfloat16", "float32", "tfloat32", "int8", "int32"))

    def devices(self) -> tuple[Device, ...]:
        # A tool that does not tell what a card can do lists the cards all the same.
        arches = {row[0]: _arch(row[-1]) for row in _query("uuid,compute_cap") if re.fullmatch(r"\d+\.\d+", row[-1])}
        return tuple(
            Device(
                "cuda",
                name,
                index,
                platform.node(),
                uuid,
                next((p for n, p in PEAKS.items() if n in name), {}),
                arch=arches.get(uuid, ""),
            )
            for index, (name, uuid) in enumerate(_query("name,uuid"))
            if is_visible(index, uuid, "CUDA_VISIBLE_DEVICES")
        )

    def visible(self, device: Device | None) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": device.uuid if device else "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

    def compile_options(self, target: Target) -> dict[str, Any]:
        from tilelang import tvm

        # A Target and no dict, which older TileLang does not take.
        return {"target": tvm.target.Target({"kind": "cuda", "arch": target.arch}), "execution_backend": self.execution_backend}

    def mma(self, source: str) -> tuple[int, str] | None:
        return count_instruction(source, MMA)

    def evidence(self, source: str, launch: str, folder: Path) -> Mapping[str, str | int]:
        return {**evidence(source), **trips.evidence(source, launch), **sass.counts(folder, launch)}

    def resources(self, log: str) -> dict[str, int]:
        """From ptxas -v, where the build printed it."""
        used = re.search(r"Used (\d+) registers", log)
        spill = re.search(r"(\d+) bytes spill stores", log)
        return {k: int(m.group(1)) for k, m in (("registers", used), ("spill_bytes", spill)) if m}

    def prepare(self, dtype: str) -> None:
        device_events.set_up(dtype)

    def time(self, calls: Sequence[Callable[[], object]], clear: Callable[[], object]) -> tuple[float, bool]:
        return device_events.time_calls(calls, clear)

    def cache_clearer(self) -> Callable[[], object]:
        return device_events.cache_clearer()

    def synchronize(self) -> None:
        device_events.synchronize()

    def state(self, device: Device) -> dict[str, float | str]:
        if found := nvml.state(device.uuid):
            return found
        fields = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_throttle_reasons.active"
        rows = _query(fields, device.uuid)
        if not rows:
            return {}
        sm, mem, power, temperature, throttle = rows[0]
        numbers = {"clock_mhz": sm, "memory_clock_mhz": mem, "power_w": power, "temperature_c": temperature}
        return {"throttle": throttle} | {k: float(v) for k, v in numbers.items() if re.fullmatch(r"[\d.]+", v)}

    def others(self, device: Device) -> Callable[[], str | None]:
        return look(lambda: strangers(parse_monitor(_monitor(device))))

    def memory_checker(self, log: Path) -> tuple[str, ...]:
        tool = shutil.which("compute-sanitizer")
        return (tool, "--tool", "memcheck", "--log-file", str(log)) if tool else ()

    def toolchain(self) -> dict[str, str]:
        settings = toolchain.settings(("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"))  # nvcc itself reads these two
        return {"execution_backend": self.execution_backend, **_nvcc(), **settings}

    def versions(self) -> dict[str, str]:
        found = _nvcc()
        if rows := _query("driver_version"):
            found["driver"] = rows[0][0]
        return found

    def classify(self, message: str) -> tuple[FailureKind, bool]:
        if STICKY.search(message):
            return FailureKind.CRASH, True
        return FailureKind.LAUNCH_ERROR, "CUDA" in message or "cuda" in message


def _nvcc() -> dict[str, str]:
    """The version of nvcc, and with it of the ptxas beside it; empty where there is none."""
    said = re.search(r"\bV(\d[\d.]*)", toolchain.told(toolchain.nvcc()))
    return {"nvcc": said.group(1)} if said else {}


def parse_monitor(said: str) -> list[User]:
    """The processes in the output of `nvidia-smi pmon`, whose columns differ between versions; an idle one's share is 0."""
    users: list[User] = []
    columns: list[str] = []
    for line in said.splitlines():
        if line.startswith("#"):
            columns = columns or line.lstrip("# ").split()
            continue
        row = dict(zip(columns, line.split(maxsplit=max(0, len(columns) - 1))))
        if row.get("pid", "-").isdigit() and "sm" in row:
            share = int(row["sm"]) if row["sm"].isdigit() else 0
            users.append(User(int(row["pid"]), row.get("command", "").strip() or "a process", share))
    return users


def _monitor(device: Device) -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    return ask(["nvidia-smi", "pmon", "-c", "1", "-s", "u", *(["-i", device.uuid] if device.uuid else [])]).stdout


def _query(fields: str, uuid: str | None = None) -> list[list[str]]:
    """Rows of `nvidia-smi --query-gpu`; none where the tool or a card is missing."""
    if not shutil.which("nvidia-smi"):
        return []
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits", *(["-i", uuid] if uuid else [])]
    done = ask(command)
    return [[c.strip() for c in line.split(",")] for line in done.stdout.splitlines()] if done.returncode == 0 else []


def _arch(capability: str) -> str:
    """`9.0` -> `sm_90a`: from Hopper on, the matrix instructions are in the architecture-specific set."""
    number = capability.replace(".", "")
    return f"sm_{number}a" if int(number) >= 90 else f"sm_{number}"


CUDA = CUDABackend()
