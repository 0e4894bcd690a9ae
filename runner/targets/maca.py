"""MetaX C500 and its kin through MACA. Built from public facts (docs/c500.md says which); not yet run on a card."""

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
from runner.targets import device_events, toolchain, trips
from runner.targets.source import count_instruction, evidence
from runner.targets.vendor_tool import User, ask, is_visible, look, strangers

# A builtin is named by its shape and type (16x16x16f16, bf16 and i8, 16x16x8tf32); the port can call a template instead.
MMA = re.compile(r"\b(__builtin_mxc_mma_\d+x\d+x\d+[a-z]+\d+|tl::gemm_ss(?:_wsm)?)\s*[(<]")

# TFLOPS: 104 processors x 4 matrix units x 8192/16 operations x 1.125 GHz; torch reaches 226 on the PCIe card.
PEAKS = {"C500": {"float16": 239.6, "bfloat16": 239.6}}

STICKY = re.compile(r"illegal memory access|memory fault|misaligned address|unspecified launch failure|xid", re.IGNORECASE)

CARD = re.compile(r"\b(?:MetaX\s*|MX)C(\d{3})([A-Z0-9-]*)")


MONITOR = ("dmon", "--show-temperature", "--show-board-power", "--show-clock", "--format", "csv", "-c", "1")
MONITORED = {"clock_mhz": "xcoreclk", "memory_clock_mhz": "mcclk", "power_w": "power", "temperature_c": "hottemp"}
SCALE = {"mW": 1e-3, "kHz": 1e-3}  # to the units of a measurement's state, where a version of the tool has others

# "37W / 350W": what is drawn, not what may be. "0000:0c:00.0" and "C500" are no temperatures.
POWER = re.compile(r"(?<![\w./])(?<!/ )(\d+(?:\.\d+)?) ?W\b")
TEMPERATURE = re.compile(r"(?<![\w.:/])(\d+(?:\.\d+)?) ?C\b(?!:)")


class MACABackend:
    kind: TargetKind = "maca"
    torch_device = "cuda"  # MetaX's torch calls its device "cuda"
    source_suffix = ".cu"
    compiles_disturb_timing = False
    settle_seconds = device_events.SETTLE_SECONDS
    shortest_ms = device_events.SHORTEST_MS
    state_period_s = 0.2  # mx-smi takes about as long to answer
    execution_backend = "tvm_ffi"
    build_environment: Mapping[str, str] = MappingProxyType({"TILELANG_TARGET": "maca"})  # for what asks beside `compile`

    def target(self, arch: str | None = None) -> Target:
        return Target("maca", arch or "xcore1000")

    def limits(self, target: Target) -> Limits:
        return Limits(1024, 65_536, 64, ("float16", "bfloat16", "float32", "tfloat32", "int8", "int32"))

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device("maca", name, index, platform.node(), uuid, next((p for n, p in PEAKS.items() if n in name), {}))
            for index, name, uuid in parse_list(_mx_smi("-L"))
            if is_visible(index, uuid, "CUDA_VISIBLE_DEVICES") and is_visible(index, uuid, "MACA_VISIBLE_DEVICES")
        )

    def visible(self, device: Device | None) -> dict[str, str]:
        """Both variables: Ray and vLLM set the first, MetaX's own tools the second, and a mismatch is a hazard."""
        index = "" if device is None else str(device.index)
        return {"CUDA_VISIBLE_DEVICES": index, "MACA_VISIBLE_DEVICES": index, "TILELANG_TARGET": "maca"}

    def compile_options(self, target: Target) -> dict[str, Any]:
        # Never "auto": cu-bridge's nvcc makes newer ports pick cuda on a MetaX node.
        return {"target": "maca", "execution_backend": self.execution_backend}

    def mma(self, source: str) -> tuple[int, str] | None:
        return count_instruction(source, MMA)

    def evidence(self, source: str, launch: str, folder: Path) -> Mapping[str, str | int]:
        return {**evidence(source), **trips.evidence(source, launch)}

    def resources(self, log: str) -> dict[str, int]:
        return {}

    def prepare(self, dtype: str) -> None:
        device_events.set_up(dtype)

    def time(self, calls: Sequence[Callable[[], object]], clear: Callable[[], object]) -> tuple[float, bool]:
        return device_events.time_calls(calls, clear)

    def cache_clearer(self) -> Callable[[], object]:
        return device_events.cache_clearer()

    def synchronize(self) -> None:
        device_events.synchronize()

    def state(self, device: Device) -> dict[str, float | str]:
        """Clocks are told by the monitor alone; power and temperature by the plain table too, in versions without one."""
        told = parse_monitor(_mx_smi(*MONITOR), device.index) or parse_table(_mx_smi(), device.index)
        throttle = parse_throttle(_mx_smi("-i", str(device.index), "--show-clk-tr"))
        return {**told, **({} if throttle is None else {"throttle": throttle})}

    def others(self, device: Device) -> Callable[[], str | None]:
        return look(lambda: strangers(parse_processes(_mx_smi(), device.index)))

    def memory_checker(self, log: Path) -> tuple[str, ...]:
        return ()

    def toolchain(self) -> dict[str, str]:
        settings = toolchain.settings(prefix="TILELANG_MACA_")  # the port's own
        return {"execution_backend": self.execution_backend, **_mxcc(), **settings}

    def versions(self) -> dict[str, str]:
        version = re.search(r"MACA Version:\s*([\d.]+)", _mx_smi())
        driver = re.search(r"Driver Version:\s*([\d.]+)", _mx_smi())
        return {k: m.group(1) for k, m in (("maca", version), ("driver", driver)) if m} | _mxcc()

    def classify(self, message: str) -> tuple[FailureKind, bool]:
        sticky = bool(STICKY.search(message))
        return (FailureKind.CRASH if sticky else FailureKind.LAUNCH_ERROR), sticky or "MACA" in message or "CUDA" in message


def _mxcc() -> dict[str, str]:
    """The compiler's own line on its version, which ends in its build; empty where there is none."""
    said = toolchain.first_line(toolchain.told(toolchain.mxcc()))
    return {"mxcc": said} if said else {}


def parse_list(said: str) -> list[tuple[int, str, str]]:
    """Index, model and UUID of each card in the output of `mx-smi -L`. The model is spelled `MetaX C500` either way."""
    cards = []
    for line in said.splitlines():
        index, card, uuid = re.match(r"\s*GPU#(\d+)", line), CARD.search(line), re.search(r"UUID:\s*([\w-]+)", line)
        if index and card:
            name = f"MetaX C{card.group(1)}{card.group(2)}".rstrip("-")
            cards.append((int(index.group(1)), name, uuid.group(1) if uuid else ""))
    return cards


def parse_monitor(said: str, index: int) -> dict[str, float]:
    """One card's state in the CSV of `mx-smi dmon`: a row of names, one of units, then a row for each die of each card.

    Which columns there are, and in what order, depends on the version and on what was asked for, so the names decide.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines()]
    names = next((row for row in rows if "dev" in row), [])
    table = [dict(zip(names, row)) for row in rows if len(row) == len(names) and row != names]
    units = next((row for row in table if not row["dev"].isdigit()), {})
    card = next((row for row in table if row["dev"] == str(index)), {})
    told = {key: (card.get(column, ""), units.get(column, "")) for key, column in MONITORED.items()}
    return {key: float(n) * SCALE.get(unit, 1.0) for key, (n, unit) in told.items() if re.fullmatch(r"\d+(\.\d+)?", n)}


def parse_table(said: str, index: int) -> dict[str, float]:
    """Power and temperature of one card in mx-smi's plain table, told apart by their units: columns moved between versions."""
    cards, _, _ = said.partition("Process:")
    own = re.search(rf"^\|\s*{index}\s+M.*?(?=^\|\s*\d+\s+M|\Z)", cards, re.MULTILINE | re.DOTALL)
    found = {"power_w": POWER, "temperature_c": TEMPERATURE}
    return {key: float(m.group(1)) for key, unit in found.items() if own and (m := unit.search(own.group()))}


def parse_throttle(said: str) -> str | None:
    """What slows the card down, of the reasons that `mx-smi --show-clk-tr` lists as `Active` or `Not Active`."""
    reasons = re.findall(r"^[\s|]*(\S.*?)\s*[:|]\s*(Not Active|Active)\b", said, re.MULTILINE)
    return ", ".join(reason for reason, state in reasons if state == "Active") or "none" if reasons else None


def parse_processes(said: str, index: int) -> list[User]:
    """The processes on one card in mx-smi's table `GPU  PID  Process Name  GPU Memory`. It does not say how busy they are."""
    _, _, table = said.partition("Process:")
    rows = re.findall(r"^\|\s*(\d+)\s+(\d+)\s+(\S.*?)\s+\d+\s*(?:MiB)?\s*\|", table, re.MULTILINE)
    return [User(int(pid), name) for gpu, pid, name in rows if int(gpu) == index]


def _mx_smi(*arguments: str) -> str:
    tool = shutil.which("mx-smi") or next(
        (p for p in ("/opt/maca/bin/mx-smi", "/opt/mxdriver/bin/mx-smi") if Path(p).exists()), None
    )
    if tool is None:
        return ""
    return ask([tool, *arguments]).stdout


MACA = MACABackend()
