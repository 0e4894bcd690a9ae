"""The TileLang programs of the `gemm` family: one for GPUs, one for the CPU.

What differs is where a tile lives and who multiplies it: on a GPU tiles are in shared memory and `T.gemm` feeds the
matrix instruction; on the CPU they are on the stack, and a loop nest that the C compiler vectorises does it.

Annotations are not postponed in this file: TileLang reads a kernel's parameters from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.layouts import swizzle
from runner.records import Target, Value, Workload

ITEMSIZE = {"float16": 2, "float32": 4, "tfloat32": 4}

# g++ is called without -O and for the oldest x86-64, so the generated C asks for more itself.
PRELUDE = """#pragma GCC optimize("O3")
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif
"""

REDUCE_TILE = (4, 256)
"""Rows and columns of C that one block sums over the parts of K."""


@dataclass(frozen=True)
class Knobs:
    """A config of the family by its values; what a target lacks is 0 or None."""

    block_M: int
    block_N: int
    block_K: int
    num_stages: int
    threads: int
    a_coalesced_width: int | None
    b_interleave: int
    c_staging: str
    c_buffers: int
    c_swizzle_bytes: int
    c_coalesced_width: int | None
    panel_size: int
    raster_order: str
    warp_policy: str
    tma: bool
    persistent_blocks: int
    tail_N: int
    schedule: str
    cluster_M: int
    cluster_N: int
    split_k: int
    split_k_sum: str

    @classmethod
    def of(cls, config: Mapping[str, Value]) -> "Knobs":
        widths = ("a_coalesced_width", "c_coalesced_width")
        words = {
            "c_staging": "direct",
            "raster_order": "column",
            "warp_policy": "Square",
            "schedule": "automatic",
            "split_k_sum": "kernel",
        }
        found: dict[str, Any] = {name: config.get(name) for name in widths}
        found |= {name: config.get(name) or usual for name, usual in words.items()} | {"tma": config.get("tma") is not False}
        return cls(**{name: found[name] if name in found else int(config.get(name) or 0) for name in cls.__dataclass_fields__})

    def c_tile(self) -> tuple[int, int] | None:
        """Rows and columns of C that are in shared memory at a time: the block, a slice of it, or (None) nothing."""
        if self.c_staging == "direct":
            return None
        slice_of, size = self.c_staging[7:8], int(self.c_staging[8:] or 0)
        return {"m": (size, self.block_N), "n": (self.block_M, size)}.get(slice_of, (self.block_M, self.block_N))


def storage(dtype: str) -> str:
    """What a workload's matrices are made of: TF32 is how float32 is multiplied on a matrix unit, and nothing that is stored."""
    return "float32" if dtype == "tfloat32" else dtype


def gpu_program(workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
    import tilelang.language as T

    knobs = Knobs.of(config)
    hints = {} if knobs.tma else {"disable_tma": True}
    multiply = _multiply(T, workload, knobs, target, hints)
    if knobs.split_k > 1:
        multiply_part = _multiply_part(T, workload, knobs, multiply)
        return (_summed_last if knobs.split_k_sum == "last_block" else _summed_after)(T, workload, knobs, multiply_part)
    store = store_macro(T, storage(workload.dtype), knobs, hints)
    return (_persistent if knobs.persistent_blocks else _one_tile_each)(T, workload, knobs, multiply, store)


def _multiply(T: Any, workload: Workload, knobs: Knobs, target: Target, hints: Mapping[str, bool]) -> Any:
    """The loop along K, or along one part of it: from A and B in global memory to a tile of C in registers."""
    dtype, policy = storage(workload.dtype), getattr(T.GemmWarpPolicy, knobs.warp_policy)
    bm, bn, bk, i = knobs.block_M, knobs.block_N, knobs.block_K, knobs.b_interleave
    steps = _steps(workload, knobs)
    # Hopper's wgmma reads shared memory in a layout of its own, so there the packing ends at the global side.
    packs_tile = i > 1 and not target.arch.startswith(("sm_90", "sm_100"))

    @T.macro
    def load_b(B: T.Tensor, B_tile: T.Tensor, k0: T.int32, n0: T.int32):
        if i == 1:
            T.copy(B[k0, n0], B_tile, annotations=hints)
        else:
            for kg, n in T.Parallel(bk // i, bn):
                for r in T.vectorized(i):
                    B_tile[kg * i + r, n] = B[k0 // i + kg, n0 + n, r]

    @T.macro
    def multiply(A: T.Tensor, B: T.Tensor, C_sum: T.Tensor, m0: T.int32, n0: T.int32, k0: T.int32):
        A_tile = T.alloc_shared((bm, bk), dtype)
        B_tile = T.alloc_shared((bk, bn), dtype)
        if packs_tile:
            T.annotate_layout({B_tile: T.Layout((bk, bn), lambda k, n: (k // i, n, k % i))})
        T.clear(C_sum)
        for k in T.Pipelined(steps, num_stages=knobs.num_stages):
            T.copy(A[m0, k0 + k * bk], A_tile, coalesced_width=knobs.a_coalesced_width, annotations=hints)
            load_b(B, B_tile, k0 + k * bk, n0)
            T.gemm(A_tile, B_tile, C_sum, policy=policy)

    return multiply


def store_macro(T: Any, dtype: str, knobs: Knobs, hints: Mapping[str, bool]) -> Any:
    """From a tile of C in registers to global memory: straight, or by way of a staged tile, whole or slice by slice."""
    bm, bn, width, ways = knobs.block_M, knobs.block_N, knobs.c_coalesced_width, knobs.c_swizzle_bytes
    c_tile = knobs.c_tile()
    slice_m, slice_n = c_tile or (bm, bn)

    @T.macro
    def store(C_sum: T.Tensor, C: T.Tensor, m0: T.int32, n0: T.int32):
        if c_tile is None:
            T.copy(C_sum, C[m0, n0], coalesced_width=width, annotations=hints)
        else:
            C_tile = T.alloc_shared((slice_m, slice_n), dtype)
            if ways:
                T.annotate_layout({C_tile: T.Layout((slice_m, slice_n), lambda m, n: swizzle(m, n, ITEMSIZE[dtype], ways))})
            if slice_m == bm and slice_n == bn:
                T.copy(C_sum, C_tile)
                T.copy(C_tile, C[m0, n0], coalesced_width=width, annotations=hints)
            else:
                for s in T.unroll((bm // slice_m) * (bn // slice_n)):
                    m, n = (s * slice_m, 0) if slice_m < bm else (0, s * slice_n)
                    T.copy(C_sum[m : m + slice_m, n : n + slice_n], C_tile)
                    T.copy(C_tile, C[m0 + m, n0 + n], coalesced_width=width, annotations=hints)

    return store


def _one_tile_each(T: Any, workload: Workload, knobs: Knobs, multiply: Any, store: Any) -> Any:
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    bm, bn, dtype = knobs.block_M, knobs.block_N, storage(workload.dtype)
    tiles_m, tiles_n = tiles(workload, knobs)

    @T.prim_func
    def gemm(A: T.Tensor(A_shape, dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor(C_shape, dtype)):
        with T.Kernel(tiles_n, tiles_m, threads=knobs.threads) as (bx, by):
            T.use_swizzle(max(1, knobs.panel_size), order=knobs.raster_order, enable=knobs.panel_size > 0)
            C_sum = T.alloc_fragment((bm, bn), "float32")
            multiply(A, B, C_sum, by * bm, bx * bn, 0)
            store(C_sum, C, by * bm, bx * bn)

    return gemm


def _persistent(T: Any, workload: Workload, knobs: Knobs, multiply: Any, store: Any) -> Any:
    """As many blocks as the device holds at once, each taking tile after tile."""
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    bm, bn, dtype, blocks = knobs.block_M, knobs.block_N, storage(workload.dtype), knobs.persistent_blocks
    tiles_m, tiles_n = tiles(workload, knobs)

    @T.prim_func
    def gemm(A: T.Tensor(A_shape, dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor(C_shape, dtype)):
        with T.Kernel(blocks, threads=knobs.threads) as block:
            C_sum = T.alloc_fragment((bm, bn), "float32")
            for by, bx in T.Persistent([tiles_m, tiles_n], blocks, block, max(1, knobs.panel_size)):
                multiply(A, B, C_sum, by * bm, bx * bn, 0)
                store(C_sum, C, by * bm, bx * bn)

    return gemm


def _multiply_part(T: Any, workload: Workload, knobs: Knobs, multiply: Any) -> Any:
    """One part of K of a tile: multiplied, and put where the parts are summed from."""
    bm, bn, depth = knobs.block_M, knobs.block_N, _steps(workload, knobs) * knobs.block_K

    @T.macro
    def multiply_part(A: T.Tensor, B: T.Tensor, Parts: T.Tensor, C_sum: T.Tensor, bx: T.int32, by: T.int32, bz: T.int32):
        multiply(A, B, C_sum, by * bm, bx * bn, bz * depth)
        T.copy(C_sum, Parts[bz, by * bm, bx * bn])

    return multiply_part


def _summed_after(T: Any, workload: Workload, knobs: Knobs, multiply_part: Any) -> Any:
    """K is cut in parts that blocks of their own multiply; a second kernel sums them in a fixed order."""
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    bm, bn, parts, dtype = knobs.block_M, knobs.block_N, knobs.split_k, storage(workload.dtype)
    tiles_m, tiles_n = tiles(workload, knobs)
    M, N = C_shape
    rows, columns = REDUCE_TILE

    @T.prim_func
    def gemm(
        A: T.Tensor(A_shape, dtype),
        B: T.Tensor(B_shape, dtype),
        Parts: T.Tensor((parts, M, N), "float32"),
        C: T.Tensor(C_shape, dtype),
    ):
        with T.Kernel(tiles_n, tiles_m, parts, threads=knobs.threads) as (bx, by, bz):
            C_sum = T.alloc_fragment((bm, bn), "float32")
            multiply_part(A, B, Parts, C_sum, bx, by, bz)
        with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=128) as (bx, by):
            Sum = T.alloc_fragment((rows, columns), "float32")
            T.clear(Sum)
            for part in T.serial(parts):
                for m, n in T.Parallel(rows, columns):
                    Sum[m, n] += Parts[part, by * rows + m, bx * columns + n]
            T.copy(Sum, C[by * rows, bx * columns])

    return gemm


def _summed_last(T: Any, workload: Workload, knobs: Knobs, multiply_part: Any) -> Any:
    """As `_summed_after`, but of the blocks that have parts of a tile the last to be done sums them, in the same order.

    `Done` counts the blocks that are done with a tile. It is zero before a call and after it.
    """
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    bm, bn, parts, dtype = knobs.block_M, knobs.block_N, knobs.split_k, storage(workload.dtype)
    tiles_m, tiles_n = tiles(workload, knobs)
    M, N = C_shape

    @T.prim_func
    def gemm(
        A: T.Tensor(A_shape, dtype),
        B: T.Tensor(B_shape, dtype),
        Parts: T.Tensor((parts, M, N), "float32"),
        Done: T.Tensor((tiles_m, tiles_n), "int32"),
        C: T.Tensor(C_shape, dtype),
    ):
        with T.Kernel(tiles_n, tiles_m, parts, threads=knobs.threads) as (bx, by, bz):
            C_sum = T.alloc_fragment((bm, bn), "float32")
            before = T.alloc_shared((1,), "int32")
            multiply_part(A, B, Parts, C_sum, bx, by, bz)
            T.sync_threads()
            if T.get_thread_binding() == 0:
                before[0] = T.atomic_add(Done[by, bx], 1, memory_order="acq_rel", return_prev=True)
            T.sync_threads()
            if before[0] == parts - 1:
                T.clear(C_sum)
                for part in T.unroll(parts):
                    for m, n in T.Parallel(bm, bn):
                        C_sum[m, n] += Parts[part, by * bm + m, bx * bn + n]
                T.copy(C_sum, C[by * bm, bx * bn])
                if T.get_thread_binding() == 0:
                    Done[by, bx] = 0

    return gemm


def _steps(workload: Workload, knobs: Knobs) -> int:
    """Along K, or along one part of it."""
    return -(-workload.shape["K"] // knobs.block_K) // max(1, knobs.split_k)


def shapes(workload: Workload, knobs: Knobs) -> tuple[tuple[int, ...], ...]:
    """Of A, of B as it is packed, and of C."""
    M, N, K, i = *(workload.shape[d] for d in ("M", "N", "K")), knobs.b_interleave
    return (M, K), (K // i, N, i) if i > 1 else (K, N), (M, N)


def tiles(workload: Workload, knobs: Knobs) -> tuple[int, int]:
    """Blocks along M and along N; the last of each may reach over the edge."""
    return -(-workload.shape["M"] // knobs.block_M), -(-workload.shape["N"] // knobs.block_N)


def cpu_program(workload: Workload, config: Mapping[str, Value]) -> Any:
    import tilelang.language as T

    knobs, dtype = Knobs.of(config), storage(workload.dtype)
    bm, bn, bk, i = knobs.block_M, knobs.block_N, knobs.block_K, knobs.b_interleave
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    tiles_m, tiles_n = tiles(workload, knobs)
    steps = -(-workload.shape["K"] // bk)

    @T.macro
    def load_b(B: T.Tensor, B_tile: T.Tensor, k0: T.int32, n0: T.int32):
        if i == 1:
            T.copy(B[k0, n0], B_tile)
        else:
            for kg, n in T.grid(bk // i, bn):
                for r in T.serial(i):
                    B_tile[kg * i + r, n] = B[k0 // i + kg, n0 + n, r]

    @T.macro
    def store(C_sum: T.Tensor, C: T.Tensor, m0: T.int32, n0: T.int32):
        if dtype == "float32":
            T.copy(C_sum, C[m0, n0])
        else:
            # The C target has no vector cast from float32: narrow element by element, then copy.
            C_tile = T.alloc_local((bm, bn), dtype)
            for m, n in T.grid(bm, bn):
                C_tile[m, n] = T.cast(C_sum[m, n], dtype)
            T.copy(C_tile, C[m0, n0])

    @T.prim_func
    def gemm(A: T.Tensor(A_shape, dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor(C_shape, dtype)):
        with _cpu_kernel(T, tiles_n, tiles_m) as (bx, by):
            A_tile = T.alloc_local((bm, bk), dtype)
            B_tile = T.alloc_local((bk, bn), dtype)
            C_sum = T.alloc_local((bm, bn), "float32")
            T.clear(C_sum)
            for k in T.serial(steps):
                T.copy(A[by * bm, k * bk], A_tile)
                load_b(B, B_tile, k * bk, bx * bn)
                for m, kk, n in T.grid(bm, bk, bn):
                    C_sum[m, n] += T.cast(A_tile[m, kk], "float32") * T.cast(B_tile[kk, n], "float32")
            store(C_sum, C, by * bm, bx * bn)

    return gemm


def _cpu_kernel(T: Any, blocks_n: int, blocks_m: int) -> Any:
    try:
        from tilelang.cpu.language import Kernel
    except ImportError:  # older TileLang has no dialect for the CPU
        return T.Kernel(blocks_n, blocks_m, is_cpu=True, prelude=PRELUDE)
    return Kernel(blocks_n, blocks_m, prelude=PRELUDE)
