"""A small kernel family for tests of what happens before anything is compiled. Needs neither torch nor TileLang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from kernels.family import Family, Knob
from runner.errors import RequestError, nearest
from runner.records import Limits, Target, Value, Workload


class Product:
    """C = A @ B by name only: it can be planned, and not run."""

    name = "gemm"
    doc = "A matrix product that is never computed."
    dims: tuple[str, ...] = ("M", "N", "K")
    dtypes = ("float16", "float32")
    knobs = (
        Knob("block_M", 128, "Rows of a block."),
        Knob("block_K", 64, "Depth of a step."),
        Knob("num_stages", 1, "Tiles in flight.", (0, 1, 2, 3), ("cuda", "maca")),
        Knob("threads", 256, "Threads of a block.", None, ("cuda", "maca")),
        Knob("b_interleave", 1, "Packing of B.", (1, 2, 4, 8, 16)),
    )
    baseline_name = "torch.mm"

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        block, limit = config["block_M"], limits.shared_memory_bytes
        if limit is not None and isinstance(block, int) and block * 256 > limit:
            return f"block_M {block} needs {block * 256} bytes of shared memory of {limit}"
        return None


class Scan(Product):
    """A family whose shape is no M, N, K."""

    name = "scan"
    dims = ("rows", "columns")


# A cast, since what would run a kernel is left out.
FAMILIES = {"gemm": cast(Family, Product()), "scan": cast(Family, Scan())}


def load(name: str) -> Family:
    """Like `kernels.family.load_family`, over the families of this file."""
    if name not in FAMILIES:
        raise RequestError(f"no kernel family {name!r}: {nearest(name, FAMILIES)}")
    return FAMILIES[name]
