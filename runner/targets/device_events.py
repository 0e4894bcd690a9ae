"""Timing through torch's device events. The same API serves NVIDIA's and MetaX's torch: both call the device "cuda"."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FLUSH_BYTES = 256 << 20
"""Several times the largest L2 known here (60 MB on an H200, 8 MB on a C500). Reading it also keeps the device busy
while the next launch is prepared, so that launch overhead on the host is not counted as kernel time."""

SETTLE_SECONDS = 0.5  # until clocks and power no longer change under load
SHORTEST_MS = 0.2  # an event ticks every 32 ns on an H200: 0.2 % of 16 us


def set_up(dtype: str) -> None:
    """float32 is multiplied as such, and `tfloat32` on the matrix unit, by torch as by the kernel."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = dtype == "tfloat32"


def time_calls(calls: Sequence[Callable[[], object]], clear: Callable[[], object]) -> tuple[float, bool]:
    """As `Backend.time`, between two events on the current stream."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    clear()
    start.record()
    for call in calls:
        call()
    end.record()
    hidden = not start.query()
    end.synchronize()
    return start.elapsed_time(end) / len(calls), hidden


def cache_clearer() -> Callable[[], object]:
    import torch

    scratch = torch.zeros(FLUSH_BYTES // 4, dtype=torch.float32, device="cuda")
    total = torch.empty((), dtype=torch.float32, device="cuda")
    return lambda: torch.sum(scratch, dim=0, out=total)


def synchronize() -> None:
    import torch

    torch.cuda.synchronize()
