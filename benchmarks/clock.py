"""What a way of taking time does to the time that is taken: torch.mm on a GPU, by each way, in turns.

    python -m benchmarks.clock --output docs/results/clock.json

For each shape: the cache cleared by writing or by reading, one call or several between two events, a device that was warmed up
for ten calls or for half a second, and what was hidden of the host's launches. Every row has its medians in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.stats import median, quantile
from runner.targets import device_events, nvml
from runner.targets.base import backend

SHAPES = ((64, 2048, 7168), (512, 512, 512), (4096, 4096, 4096), (131072, 2048, 7168))
ROUNDS, CALLS = 5, 40
REST_S = 1.0  # after which a card has its clocks up and its power down again


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    device = backend("cuda").devices()[0]
    rows = [row for shape in SHAPES for row in of_shape(shape, device.uuid)]
    found = {"device": device.model, "host_cores": platform.processor(), "versions": backend("cuda").versions(), "rows": rows}
    output.write_text(json.dumps(found, indent=1) + "\n")
    for row in rows:
        print(row)


def of_shape(shape: tuple[int, int, int], uuid: str) -> list[dict[str, Any]]:
    import torch

    m, n, k = shape
    batch = 16 if 2 * m * n * k < 1e12 else 1
    copies = [
        (torch.randn(m, k, device="cuda", dtype=torch.float16), torch.randn(k, n, device="cuda", dtype=torch.float16))
        for _ in range(batch)
    ]
    outs = [torch.empty(m, n, device="cuda", dtype=torch.float16) for _ in range(batch)]
    calls: list[Callable[[], object]] = [lambda i=i: torch.mm(*copies[i], out=outs[i]) for i in range(batch)]  # type: ignore[misc]
    scratch = torch.zeros(device_events.FLUSH_BYTES // 4, device="cuda", dtype=torch.int32)
    read, nothing = device_events.cache_clearer(), lambda: None
    ways: dict[str, tuple[list[Callable[[], object]], Callable[[], object]]] = {
        "one call, nothing cleared": (calls[:1], nothing),
        "one call, cleared by writing": (calls[:1], scratch.zero_),
        "one call, cleared by reading": (calls[:1], read),
        "one call, cleared by writing and reading": (calls[:1], lambda: (scratch.zero_(), read())),
        "one call, cleared by reading eight times": (calls[:1], lambda: [read() for _ in range(8)]),
    }
    if batch > 1:
        ways[f"{batch} calls, cleared by reading"] = (calls, read)
        ways[f"{batch} calls, cleared by reading eight times"] = (calls, lambda: [read() for _ in range(8)])
    samples: dict[str, list[tuple[float, bool]]] = {name: [] for name in ways}
    settle(calls[0], 0.5)
    for _ in range(ROUNDS):
        for name, (some, clear) in ways.items():
            samples[name] += [device_events.time_calls(some, clear) for _ in range(CALLS)]
    rows = [row(shape, name, [ms for ms, _ in found], sum(hidden for _, hidden in found)) for name, found in samples.items()]
    return [*rows, *warmth(shape, calls[0], read, uuid)]


def warmth(
    shape: tuple[int, int, int], call: Callable[[], object], clear: Callable[[], object], uuid: str
) -> list[dict[str, Any]]:
    """The same fifty calls after ten calls on a rested card, and after half a second of them; with the clock meanwhile."""
    rows = []
    for name, warm in (("ten calls", lambda: settle(call, 0.0, 10)), ("half a second", lambda: settle(call, 0.5))):
        medians, clocks, powers = [], [], []
        for _ in range(ROUNDS):
            time.sleep(REST_S)
            warm()
            found = []
            for _ in range(50):
                found.append(device_events.time_calls([call], clear)[0])
                if len(found) % 10 == 0:
                    state = nvml.state(uuid)
                    clocks.append(float(state.get("clock_mhz", 0.0)))
                    powers.append(float(state.get("power_w", 0.0)))
            medians.append(median(found))
        rows.append(row(shape, f"warmed up for {name}", medians) | {"clock_mhz": sorted(clocks), "power_w": sorted(powers)})
    return rows


def settle(call: Callable[[], object], seconds: float, calls: int = 1) -> None:
    started, made = time.perf_counter(), 0
    while made < calls or time.perf_counter() - started < seconds:
        call()
        made += 1
        device_events.synchronize()


def row(shape: tuple[int, int, int], way: str, samples: list[float], hidden: int | None = None) -> dict[str, Any]:
    found = {"median": median(samples), "p20": quantile(samples, 0.2), "p80": quantile(samples, 0.8), "samples": len(samples)}
    name = "x".join(map(str, shape))
    return {"shape": name, "way": way, **found} | ({} if hidden is None else {"hidden": hidden})


if __name__ == "__main__":
    main()
