"""C[M, N] = A[M, K] @ B[K, N], row-major, accumulated in float32, written in the inputs' dtype.

One definition serves all targets. What differs is where a tile lives and who multiplies it: on a GPU tiles are in
shared memory and `T.gemm` feeds the matrix instruction; on the CPU they are on the stack and a loop nest that the
C compiler vectorises does it. Source of the knobs: the TileLang fp16 GEMM tuned by hand on a MetaX C500
(docs/knobs.md tells what each does on which target).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernels.family import Knob
from kernels.layouts import interleave_k
from runner.records import Limits, Target, Value, Workload

if TYPE_CHECKING:
    from torch import Tensor

GPU = ("cuda", "maca")

# g++ is called without -O and for the oldest x86-64, so the generated C asks for more itself.
PRELUDE = """#pragma GCC optimize("O3")
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#endif
"""


class Gemm:
    name = "gemm"
    doc = "C[M, N] = A[M, K] @ B[K, N], float32 accumulation."
    dims = ("M", "N", "K")
    dtypes = ("float16", "float32")
    baseline_name = "torch.mm"
    knobs = (
        Knob("block_M", 128, "Rows of C that one block computes."),
        Knob("block_N", 128, "Columns of C that one block computes."),
        Knob("block_K", 64, "Depth of the A and B tiles of one step along K."),
        Knob(
            "num_stages", 1, "Tiles in flight: copies of the next overlap the multiplication of this.", (0, 1, 2, 3, 4, 5, 6), GPU
        ),
        Knob("threads", 256, "Threads of one block.", (64, 128, 256, 384, 512, 1024), GPU),
        Knob("b_interleave", 1, "B packed ahead as [K/i, N, i]: i consecutive k of one column side by side.", (1, 2, 4, 8, 16)),
    )

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        _, _, k, bm, bn, bk, stages, threads, i = _numbers(workload, config)
        itemsize = {"float16": 2, "float32": 4}[workload.dtype]
        if bk % i:
            return f"block_K={bk} is not divisible by b_interleave={i}"
        if k % i:
            return f"K={k} is not divisible by b_interleave={i}, so B cannot be packed"
        if target.kind == "cpu":
            need = bm * bk * itemsize + bk * bn * itemsize + bm * bn * 4
            return _over("stack for the tiles", need, limits.shared_memory_bytes)
        if bm % 16 or bn % 16 or bk % 16:
            return f"block {bm}x{bn}x{bk} is not in units of the matrix instruction, 16x16x16"
        if threads and limits.warp_size and (bm // 16) * (bn // 16) < threads // limits.warp_size:
            return f"{threads} threads are more warps than a {bm}x{bn} block has 16x16 tiles"
        # TileLang may let C's staging reuse A and B, so only what each needs alone is certain (c_staging aside).
        return _over("shared memory for A and B", max(1, stages) * (bm * bk + bk * bn) * itemsize, limits.shared_memory_bytes)

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        import tilelang.language as T

        M, N, K, bm, bn, bk, stages, threads, i = _numbers(workload, config)
        dtype = workload.dtype
        cpu = target.kind == "cpu"
        alloc_tile, alloc_sum = (T.alloc_local, T.alloc_local) if cpu else (T.alloc_shared, T.alloc_fragment)
        across, along = (T.grid, T.serial) if cpu else (T.Parallel, T.vectorized)
        # Hopper's wgmma reads shared memory in a layout of its own, so there the packing ends at the global side.
        annotate = i > 1 and not cpu and not target.arch.startswith(("sm_90", "sm_100"))

        @T.macro
        def load_b(B: T.Tensor, B_tile: T.Tensor, k0: T.int32, n0: T.int32):
            if i == 1:
                T.copy(B[k0, n0], B_tile)
            else:
                for kg, n in across(bk // i, bn):
                    for r in along(i):
                        B_tile[kg * i + r, n] = B[k0 // i + kg, n0 + n, r]

        @T.macro
        def multiply(A_tile: T.Tensor, B_tile: T.Tensor, C_sum: T.Tensor):
            if cpu:
                for m, k, n in T.grid(bm, bk, bn):
                    C_sum[m, n] += T.cast(A_tile[m, k], "float32") * T.cast(B_tile[k, n], "float32")
            else:
                T.gemm(A_tile, B_tile, C_sum)

        @T.macro
        def store(C_sum: T.Tensor, C: T.Tensor, m0: T.int32, n0: T.int32):
            if cpu and dtype != "float32":
                # The C target has no vector cast from float32: narrow element by element, then copy.
                C_tile = T.alloc_local((bm, bn), dtype)
                for m, n in T.grid(bm, bn):
                    C_tile[m, n] = T.cast(C_sum[m, n], dtype)
                T.copy(C_tile, C[m0, n0])
            else:
                T.copy(C_sum, C[m0, n0])

        @T.prim_func
        def gemm(
            A: T.Tensor((M, K), dtype),
            B: T.Tensor((K // i, N, i) if i > 1 else (K, N), dtype),
            C: T.Tensor((M, N), dtype),
        ):
            with _launch(T, cpu, T.ceildiv(N, bn), T.ceildiv(M, bm), threads) as (bx, by):
                A_tile = alloc_tile((bm, bk), dtype)
                B_tile = alloc_tile((bk, bn), dtype)
                C_sum = alloc_sum((bm, bn), "float32")
                if annotate:
                    T.annotate_layout({B_tile: T.Layout((bk, bn), lambda k, n: (k // i, n, k % i))})
                T.clear(C_sum)
                for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
                    T.copy(A[by * bm, k * bk], A_tile)
                    load_b(B, B_tile, k * bk, bx * bn)
                    multiply(A_tile, B_tile, C_sum)
                store(C_sum, C, by * bm, bx * bn)

        return gemm

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        import torch

        m, n, k = (workload.shape[d] for d in self.dims)
        dtype = getattr(torch, workload.dtype)
        generator = torch.Generator(device).manual_seed(seed)
        # Drawn in the kernel's dtype: a float32 copy of the largest A would not fit a 64 GB card beside it.
        return tuple(torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in ((m, k), (k, n)))

    def output(self, workload: Workload, device: str) -> Tensor:
        import torch

        return torch.empty((workload.shape["M"], workload.shape["N"]), device=device, dtype=getattr(torch, workload.dtype))

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        a, b = inputs
        i = int(config["b_interleave"] or 1)
        return (a, interleave_k(b, i) if i > 1 else b)

    def packing(self, config: Mapping[str, Value]) -> str:
        i = int(config["b_interleave"] or 1)
        return f"B packed as [K/{i}, N, {i}]" if i > 1 else ""

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        import torch

        torch.mm(*inputs, out=out)

    def flops(self, workload: Workload) -> float:
        return 2.0 * workload.shape["M"] * workload.shape["N"] * workload.shape["K"]


GEMM = Gemm()


def _launch(T: Any, cpu: bool, blocks_n: Any, blocks_m: Any, threads: int) -> Any:
    if cpu:
        try:
            from tilelang.cpu.language import Kernel
        except ImportError:  # older TileLang has no dialect for the CPU
            return T.Kernel(blocks_n, blocks_m, is_cpu=True, prelude=PRELUDE)
        return Kernel(blocks_n, blocks_m, prelude=PRELUDE)
    return T.Kernel(blocks_n, blocks_m, threads=threads)


def _numbers(workload: Workload, config: Mapping[str, Value]) -> tuple[int, ...]:
    """M, N, K, block_M, block_N, block_K, num_stages, threads, b_interleave; what a target lacks is 0."""
    knobs = ("block_M", "block_N", "block_K", "num_stages", "threads", "b_interleave")
    return (*(workload.shape[d] for d in Gemm.dims), *(int(config[k] or 0) for k in knobs))


def _over(what: str, need: int, limit: int | None) -> str | None:
    return f"{what} needs {need:,} bytes, the limit is {limit:,}" if limit is not None and need > limit else None
