"""A card's clocks, power and temperature from NVIDIA's management library: a look takes a fraction of a millisecond."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

REASONS = {
    "GpuIdle": "idle",
    "ApplicationsClocksSetting": "applications' clocks",
    "SwPowerCap": "power cap",
    "HwSlowdown": "hardware slowdown",
    "SyncBoost": "sync boost",
    "SwThermalSlowdown": "thermal (software)",
    "HwThermalSlowdown": "thermal (hardware)",
    "HwPowerBrakeSlowdown": "power brake",
    "DisplayClockSetting": "display clock",
}
"""The library's constants `nvmlClocksEventReason…` by what a person calls them."""


@functools.cache
def _card(uuid: str) -> tuple[Any, Any]:
    """The library, started, and its handle of a card. Raises what the library or its absence raises."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)


def state(uuid: str) -> dict[str, float | str]:
    """As `Backend.state`; empty where the library is missing or does not know the card."""
    try:
        nvml, card = _card(uuid)
    except Exception:  # no library, no driver, a container that hides the card
        return {}
    looks: dict[str, Callable[[], Any]] = {
        "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_MEM),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(card) / 1e3,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU),
    }
    found: dict[str, float | str] = {}
    for key, look in looks.items():
        with contextlib.suppress(nvml.NVMLError):  # a card that does not tell it
            found[key] = float(look())
    with contextlib.suppress(nvml.NVMLError, AttributeError):  # a library from before this name
        found["throttle"] = reasons(nvml, int(nvml.nvmlDeviceGetCurrentClocksEventReasons(card)))
    return found


def reasons(nvml: Any, mask: int) -> str:
    """What holds the clocks down, in words: "power cap, thermal (software)"; "none" where nothing does."""
    active = [words for name, words in REASONS.items() if mask & int(getattr(nvml, f"nvmlClocksEventReason{name}", 0))]
    return ", ".join(active) or "none"
