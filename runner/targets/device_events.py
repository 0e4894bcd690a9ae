"""Timing through torch's device events. The same API serves NVIDIA's and MetaX's torch: both call the device "cuda"."""

from __future__ import annotations

from collections.abc import Callable

FLUSH_BYTES = 256 << 20
"""Several times the largest L2 known here (60 MB on an H200, 8 MB on a C500). Writing it also keeps the queue filled
while the next launch is prepared, so that launch overhead on the host is not counted as kernel time."""


def time_calls(call: Callable[[], object], repeat: int, clear: Callable[[], object]) -> tuple[float, ...]:
    """Milliseconds of each call between two events on the current stream."""
    import torch

    pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeat)]
    for start, end in pairs:
        clear()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return tuple(start.elapsed_time(end) for start, end in pairs)


def cache_clearer() -> Callable[[], object]:
    import torch

    scratch = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    return lambda: scratch.zero_()


def synchronize() -> None:
    import torch

    torch.cuda.synchronize()
