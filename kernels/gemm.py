"""C[M, N] = A[M, K] @ B[K, N], row-major, accumulated in float32, written in the inputs' dtype.

Source of the knobs: the TileLang fp16 GEMM tuned by hand on a MetaX C500, and what Hopper's fastest kernels do.
docs/knobs.md tells what each does on which target; `gemm_program.py` has the programs that they turn.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kernels.family import Knob
from kernels.gemm_hopper import GROUP, REGISTERS, Plan, hopper_program
from kernels.gemm_program import ITEMSIZE, Knobs, cpu_program, gpu_program, storage
from kernels.layouts import interleave_k
from kernels.mm import mm_forms
from kernels.optional import Form, Workspace
from runner.records import ENV_PREFIX, Limits, Target, TargetKind, Value, Workload

if TYPE_CHECKING:
    from torch import Tensor

GPU = ("cuda", "maca")
WIDTHS = (None, 1, 2, 4, 8)
SCHEDULES = ("automatic", "cooperative", "pingpong")
STAGINGS = ("direct", "shared", "shared_n128", "shared_n64", "shared_n32", "shared_n16", "shared_m64", "shared_m32")
SWIZZLES = (0, 32, 64, 128, 256, 512, 1024)
K_PACK = ENV_PREFIX + "TILELANG_MACA_GEMM_K_PACK"
MAX_ELEMENTS = 2**31 - 1
"""Of one matrix: the kernels' indices are 32 bits wide."""


class Gemm:
    name = "gemm"
    doc = "C[M, N] = A[M, K] @ B[K, N], float32 accumulation."
    dims = ("M", "N", "K")
    dtypes = ("float16", "float32", "tfloat32")
    baseline_name = "torch.mm"
    knobs = (
        Knob("block_M", 128, "Rows of C that one block computes."),
        Knob("block_N", 128, "Columns of C that one block computes."),
        Knob("block_K", 64, "Depth of the A and B tiles of one step along K."),
        Knob("num_stages", 1, "Tiles in flight: copies of the next overlap the multiplication of this.", tuple(range(7)), GPU),
        Knob("threads", 256, "Threads of one block.", (64, 128, 256, 384, 512, 1024), GPU),
        Knob("a_coalesced_width", None, "Elements of A that a thread copies at once; null: the compiler's choice.", WIDTHS, GPU),
        Knob("b_interleave", 1, "B packed ahead as [K/i, N, i]: i consecutive k of one column side by side.", (1, 2, 4, 8, 16)),
        Knob("c_staging", "direct", "How C leaves the registers: straight, or by way of shared memory.", STAGINGS, GPU),
        Knob("c_buffers", 1, "Staged slices of C at a time: the next is written while the last is stored.", (1, 2), ("cuda",)),
        Knob("c_swizzle_bytes", 0, "Period of the staged C tile's swizzle; 0: none of ours.", SWIZZLES, GPU),
        Knob("c_coalesced_width", None, "Elements of C that a thread stores at once; null: the compiler's choice.", WIDTHS, GPU),
        Knob("panel_size", 0, "Blocks side by side in the launch order's panels; 0: no panels.", tuple(range(33)), GPU),
        Knob("raster_order", "column", "Along what a panel's blocks follow each other.", ("row", "column"), GPU),
        Knob("warp_policy", "Square", "How a block's warps share the C tile.", ("Square", "FullRow", "FullCol"), GPU),
        Knob("tma", True, "Whether Hopper's bulk copy engine may move tiles.", (True, False), ("cuda",)),
        Knob(
            "persistent_blocks", 0, "Blocks launched, each to compute tile after tile; 0: one for each tile.", None, ("cuda",), 0
        ),
        Knob(
            "tail_N",
            0,
            "Columns of the pieces in which the last turn of blocks that stay is cut; 0: it is not.",
            (0, 64, 128),
            ("cuda",),
        ),
        Knob("schedule", "automatic", "Who copies and who multiplies: TileLang's choice, or written out.", SCHEDULES, ("cuda",)),
        Knob("cluster_M", 1, "Blocks of a cluster along M; they load one B tile for all of them.", (1, 2), ("cuda",)),
        Knob("cluster_N", 1, "Blocks of a cluster along N; they load one A tile for all of them.", (1, 2), ("cuda",)),
        Knob("split_k", 1, "Parts of K that are multiplied apart and then summed, in float32.", (1, 2, 4, 8, 16, 32), GPU),
        Knob(
            "split_k_sum",
            "kernel",
            "Who sums the parts of K: a second kernel, or a tile's last block.",
            ("kernel", "last_block"),
            GPU,
        ),
    )

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        on_cpu = target.kind == "cpu"
        faults = _cpu_faults(workload, config, limits) if on_cpu else _gpu_faults(workload, config, target, limits)
        return next(filter(None, itertools.chain(_faults(workload, config), faults)), None)

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        if target.kind == "cpu":
            return cpu_program(workload, config)
        written_out = Knobs.of(config).schedule != "automatic"
        return hopper_program(workload, config) if written_out else gpu_program(workload, config, target)

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        import torch

        m, n, k = (workload.shape[d] for d in self.dims)
        dtype = getattr(torch, storage(workload.dtype))
        generator = torch.Generator(device).manual_seed(seed)
        # Drawn in the kernel's dtype: a float32 copy of the largest A would not fit a 64 GB card beside it.
        return tuple(torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in ((m, k), (k, n)))

    def output(self, workload: Workload, device: str) -> Tensor:
        import torch

        return torch.empty(
            (workload.shape["M"], workload.shape["N"]), device=device, dtype=getattr(torch, storage(workload.dtype))
        )

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        a, b = inputs
        interleave = Knobs.of(config).b_interleave
        return a, interleave_k(b, interleave) if interleave > 1 else b

    def workspace(self, workload: Workload, config: Mapping[str, Value]) -> tuple[Workspace, ...]:
        """The parts of K that are summed at the end, and how many of each tile's are done."""
        knobs, (m, n) = Knobs.of(config), (workload.shape["M"], workload.shape["N"])
        if knobs.split_k <= 1:
            return ()
        parts = Workspace((knobs.split_k, m, n), "float32")
        if knobs.split_k_sum == "kernel":
            return (parts,)
        return parts, Workspace((-(-m // knobs.block_M), -(-n // knobs.block_N)), "int32", returns_to_zero=True)

    def neighbour(self, workload: Workload) -> Mapping[str, int]:
        m, n, k = (workload.shape[d] for d in self.dims)
        return {"M": m - 1 if m > 1 else m + 1, "N": n + 8, "K": k + 16}

    def packing(self, config: Mapping[str, Value]) -> str:
        i = int(config["b_interleave"] or 1)
        return f"B packed as [K/{i}, N, {i}]" if i > 1 else ""

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        import torch

        torch.mm(*inputs, out=out)

    def baseline_forms(self, kind: TargetKind) -> tuple[Form, ...]:
        return () if kind == "cpu" else mm_forms()

    def flops(self, workload: Workload) -> float:
        return 2.0 * workload.shape["M"] * workload.shape["N"] * workload.shape["K"]


GEMM = Gemm()


def _faults(workload: Workload, config: Mapping[str, Value]) -> Iterator[str | None]:
    """What no target can do."""
    knobs, k = Knobs.of(config), workload.shape["K"]
    for matrix, rows, columns in (("A", "M", "K"), ("B", "K", "N"), ("C", "M", "N")):
        size = workload.shape[rows] * workload.shape[columns]
        yield f"{matrix} has {size:,} elements, above the {MAX_ELEMENTS:,} of a 32-bit index" if size > MAX_ELEMENTS else None
    yield _indivisible("block_K", knobs.block_K, "b_interleave", knobs.b_interleave)
    if k % max(1, knobs.b_interleave):
        yield f"K={k} is not divisible by b_interleave={knobs.b_interleave}, so B cannot be packed"


def _cpu_faults(workload: Workload, config: Mapping[str, Value], limits: Limits) -> Iterator[str | None]:
    knobs, itemsize = Knobs.of(config), ITEMSIZE[workload.dtype]
    tiles = (knobs.block_M + knobs.block_N) * knobs.block_K * itemsize + knobs.block_M * knobs.block_N * 4
    yield _over("stack for the tiles", tiles, limits.shared_memory_bytes)


def _gpu_faults(workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> Iterator[str | None]:
    knobs, itemsize = Knobs.of(config), ITEMSIZE[workload.dtype]
    bm, bn, bk, threads = knobs.block_M, knobs.block_N, knobs.block_K, knobs.threads
    if workload.dtype == "float32":
        yield "the matrix unit multiplies float32 as TF32: write dtype: tfloat32"
    if bm % 16 or bn % 16 or bk % 16:
        yield f"block {bm}x{bn}x{bk} is not in units of the matrix instruction, 16x16x16"
    if limits.warp_size and (bm // 16) * (bn // 16) < threads // limits.warp_size:
        yield f"{threads} threads are more warps than a {bm}x{bn} block has 16x16 tiles"
    k_pack = int(config.get(K_PACK) or 1)
    if target.kind == "maca" and bk % (16 * k_pack):
        yield f"block_K={bk} is not divisible by 16 times the port's k_pack={k_pack}"
    yield from _staging_faults(knobs, itemsize)
    yield from _schedule_faults(workload, knobs, target)
    if knobs.split_k > 1:
        steps = -(-workload.shape["K"] // bk)
        yield f"{steps} steps along K are not divisible by split_k={knobs.split_k}" if steps % knobs.split_k else None
        yield "split_k and persistent_blocks are two ways to share the work: set one" if knobs.persistent_blocks else None
        yield "with split_k the parts are stored in float32: c_staging has nothing to do" if knobs.c_tile() else None
    # TileLang may let C's staging reuse A and B, so only what each needs alone is certain.
    yield _over("shared memory for A and B", max(1, knobs.num_stages) * (bm + bn) * bk * itemsize, limits.shared_memory_bytes)
    rows, columns = knobs.c_tile() or (0, 0)
    yield _over("shared memory for C", rows * columns * itemsize, limits.shared_memory_bytes)


def _schedule_faults(workload: Workload, knobs: Knobs, target: Target) -> Iterator[str | None]:
    """What a schedule that is written out asks for, and what only such a one can do."""
    schedule, groups = knobs.schedule, knobs.threads // GROUP
    if schedule == "automatic":
        clusters = max(knobs.cluster_M, knobs.cluster_N) > 1
        yield "clusters need a schedule that is written out: cooperative or pingpong" if clusters else None
        yield "c_buffers needs a schedule that is written out: cooperative or pingpong" if knobs.c_buffers > 1 else None
        yield "tail_N needs schedule=cooperative" if knobs.tail_N else None
        return
    yield None if target.arch.startswith("sm_90") else f"schedule={schedule} is for Hopper, and the target is {target.arch}"
    yield f"schedule={schedule} is for float16, and the inputs are {workload.dtype}" if workload.dtype != "float16" else None
    if groups not in REGISTERS or (schedule == "pingpong" and groups != 2):
        threads = " or ".join(str(GROUP * n) for n in REGISTERS if schedule == "cooperative" or n == 2)
        yield f"schedule={schedule} multiplies with {threads} threads, not with {knobs.threads}"
    rows = knobs.block_M // groups if schedule == "cooperative" and groups else knobs.block_M
    yield f"a warp group multiplies 64 rows at a time, and schedule={schedule} gives it {rows}" if rows % 64 else None
    height, width = knobs.c_tile() or (rows, knobs.block_N)
    slices, buffers = max(1, rows // height) * (knobs.block_N // width), max(1, knobs.c_buffers)
    yield f"c_buffers={buffers} take turns, and a warp group has {slices} slices of C" if slices % buffers else None
    yield from _cluster_faults(workload, knobs)
    yield from _unused_knobs(knobs)


def _cluster_faults(workload: Workload, knobs: Knobs) -> Iterator[str | None]:
    """Whether blocks come in whole clusters, and the last turn has few enough units that each piece of them gets a worker."""
    if min(knobs.cluster_M, knobs.cluster_N) > 1:
        yield "cluster_M and cluster_N are two ways to share what is loaded: set one"
    blocks, size = knobs.persistent_blocks, max(knobs.cluster_M, knobs.cluster_N)
    yield f"persistent_blocks={blocks} is not divisible in clusters of {size}" if blocks % size else None
    if not knobs.tail_N or blocks % size:
        return
    yield "tail_N cuts the last turn of persistent_blocks, and there is one block for each tile" if not blocks else None
    yield _indivisible("block_N", knobs.block_N, "tail_N", knobs.tail_N)
    plan = Plan(workload, knobs)
    yield "tail_N cuts the last turn, and it is full" if not plan.pieces else None
    if plan.pieces > plan.workers:
        yield f"tail_N={knobs.tail_N} makes {plan.pieces} pieces of the last turn, for {plan.workers} workers"


def _unused_knobs(knobs: Knobs) -> Iterator[str | None]:
    """What a schedule that is written out does in its own way only."""
    unused = {
        "split_k": knobs.split_k > 1,
        "c_swizzle_bytes": knobs.c_swizzle_bytes > 0,
        "b_interleave": knobs.b_interleave > 1,
        "tma: false": not knobs.tma,
        "num_stages below 2": knobs.num_stages < 2,
        "warp_policy": knobs.warp_policy != "FullRow",
        "raster_order": knobs.raster_order != "column",
        "tail_N": knobs.tail_N > 0 and knobs.schedule != "cooperative",
    }
    asked = ", ".join(name for name, is_asked in unused.items() if is_asked)
    yield f"schedule={knobs.schedule} has no use for {asked}" if asked else None


def _staging_faults(knobs: Knobs, itemsize: int) -> Iterator[str | None]:
    """Whether the staged tile divides the block, and its swizzle the tile."""
    tile, ways = knobs.c_tile(), knobs.c_swizzle_bytes
    if tile is None:
        yield f"c_swizzle_bytes={ways} swizzles the staged C tile, and c_staging is direct" if ways else None
        return
    rows, columns = tile
    if knobs.block_M % rows or knobs.block_N % columns:
        yield f"block {knobs.block_M}x{knobs.block_N} is not divisible in slices of c_staging={knobs.c_staging}"
    elif ways > columns * itemsize:
        yield f"c_swizzle_bytes={ways} is more than a row of the staged C tile, {columns * itemsize} bytes"
    elif ways and columns * itemsize % ways:
        yield f"a row of the staged C tile, {columns * itemsize} bytes, is not divisible by c_swizzle_bytes={ways}"


def _indivisible(what: str, size: int, by: str, divisor: int) -> str | None:
    return f"{what}={size} is not divisible by {by}={divisor}" if divisor > 1 and size % divisor else None


def _over(what: str, need: int, limit: int | None) -> str | None:
    return f"{what} needs {need:,} bytes, the limit is {limit:,}" if limit is not None and need > limit else None
