"""MetaX C500 and its kin through MACA. Built from public facts (docs/c500.md says which); not yet run on a card."""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runner.errors import FailureKind
from runner.records import Device, Limits, Target, TargetKind
from runner.targets import device_events
from runner.targets.source import count_instruction, evidence
from runner.targets.vendor_tool import User, ask, is_visible, look, strangers

MMA = re.compile(r"\b(__builtin_mxc_mma_16x16x16\w+|tl::gemm_ss(?:_wsm)?)\s*[(<]")

# TFLOPS: 104 processors x 4 matrix units x 8192/16 operations x 1.125 GHz; torch reaches 226 on the PCIe card.
PEAKS = {"C500": {"float16": 239.6, "bfloat16": 239.6}}

STICKY = re.compile(r"illegal memory access|memory fault|misaligned address|unspecified launch failure|xid", re.IGNORECASE)

CARD = re.compile(r"\b(?:MetaX\s*|MX)C(\d{3})([A-Z0-9-]*)")


class MACABackend:
    kind: TargetKind = "maca"
    torch_device = "cuda"  # MetaX's torch calls its device "cuda"
    source_suffix = ".cu"
    compiles_disturb_timing = False
    build_environment: Mapping[str, str] = MappingProxyType({})

    def target(self, arch: str | None = None) -> Target:
        return Target("maca", arch or "xcore1000")

    def limits(self, target: Target) -> Limits:
        return Limits(1024, 65_536, 64, ("float16", "bfloat16", "float32"))

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
        return {"target": "maca", "execution_backend": "tvm_ffi"}

    def mma(self, source: str) -> tuple[int, str] | None:
        return count_instruction(source, MMA)

    def evidence(self, source: str, folder: Path) -> Mapping[str, str | int]:
        return evidence(source)

    def resources(self, log: str) -> dict[str, int]:
        return {}

    def prepare(self) -> None:
        pass

    def time(self, call: Callable[[], object], repeat: int, clear: Callable[[], object]) -> tuple[float, ...]:
        return device_events.time_calls(call, repeat, clear)

    def cache_clearer(self) -> Callable[[], object]:
        return device_events.cache_clearer()

    def synchronize(self) -> None:
        device_events.synchronize()

    def state(self, device: Device) -> dict[str, float | str]:
        said = _mx_smi("-i", str(device.index))
        power, temperature = re.search(r"([\d.]+)W\s*/", said), re.search(r"\b([\d.]+)C\b", said)
        found = (("power_w", power), ("temperature_c", temperature))
        return {k: float(m.group(1)) for k, m in found if m}

    def others(self, device: Device) -> Callable[[], str | None]:
        return look(lambda: strangers(parse_processes(_mx_smi(), device.index)))

    def versions(self) -> dict[str, str]:
        version = re.search(r"MACA Version:\s*([\d.]+)", _mx_smi())
        driver = re.search(r"Driver Version:\s*([\d.]+)", _mx_smi())
        return {k: m.group(1) for k, m in (("maca", version), ("driver", driver)) if m}

    def classify(self, message: str) -> tuple[FailureKind, bool]:
        sticky = bool(STICKY.search(message))
        return (FailureKind.CRASH if sticky else FailureKind.LAUNCH_ERROR), sticky or "MACA" in message or "CUDA" in message


def parse_list(said: str) -> list[tuple[int, str, str]]:
    """Index, model and UUID of each card in the output of `mx-smi -L`. The model is spelled `MetaX C500` either way."""
    cards = []
    for line in said.splitlines():
        index, card, uuid = re.match(r"\s*GPU#(\d+)", line), CARD.search(line), re.search(r"UUID:\s*([\w-]+)", line)
        if index and card:
            name = f"MetaX C{card.group(1)}{card.group(2)}".rstrip("-")
            cards.append((int(index.group(1)), name, uuid.group(1) if uuid else ""))
    return cards


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
