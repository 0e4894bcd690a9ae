"""The GEMM program whose schedule is written out, for Hopper: one warp copies, groups of warps multiply.

A ring of `num_stages` tiles in shared memory is between them. The copying warp runs ahead of the others, over the end of a
tile of C into the next, so that the next product's first tiles are there while this one's C is stored.

    cooperative   the groups share a tile of C, each some of its rows
    pingpong      two groups have a tile each: one stores while the other multiplies

Blocks of a cluster are neighbours along M or N, and what they have in common is loaded once for all of them.
Source of the scheme: CUTLASS's warp-specialised persistent kernels for Hopper.

Annotations are not postponed in this file: TileLang reads a kernel's parameters from them.
"""

from collections.abc import Mapping
from typing import Any

from kernels.gemm_program import Knobs, shapes, store_macro, tiles
from runner.records import Value, Workload

GROUP = 128
"""Threads of a warp group, which issues a matrix instruction together."""

REGISTERS = {2: (232, 40), 3: (160, 32)}
"""Of a thread that multiplies and of one that copies, by the number of groups that multiply: an SM has 65,536."""


def hopper_program(workload: Workload, config: Mapping[str, Value]) -> Any:
    import tilelang.language as T

    knobs, dtype = Knobs.of(config), workload.dtype
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    bm, bn, bk, stages = knobs.block_M, knobs.block_N, knobs.block_K, knobs.num_stages
    steps = -(-workload.shape["K"] // bk)
    cluster, groups, takes_turns = max(knobs.cluster_M, knobs.cluster_N), knobs.threads // GROUP, knobs.schedule == "pingpong"
    order = _Order(workload, knobs)
    blocks = knobs.persistent_blocks or order.units * cluster
    workers = blocks // cluster
    everyone = (1 << cluster) - 1  # of the cluster, bit by bit
    once_for_all = {"cluster_mask": everyone} if cluster > 1 else {}
    share_a, share_b = (once_for_all if n > 1 else {} for n in (knobs.cluster_N, knobs.cluster_M))
    last = {"emit_arrive": 1}  # after this one the barrier has all copies of its pass to wait for
    many, few = REGISTERS[groups]
    store = store_macro(T, dtype, knobs, {})

    @T.macro
    def copy_tiles(A: T.Tensor, B: T.Tensor, A_ring: T.Tensor, B_ring: T.Tensor, full: T.Tensor, free: T.Tensor, worker, rank):
        for turn in T.serial(T.ceildiv(order.units - worker, workers)):
            m0 = order.row(turn * workers + worker, rank)
            n0 = order.column(turn * workers + worker, rank)
            for k in T.serial(steps):
                at = (turn * steps + k) % stages
                # A fresh barrier lets who waits for the phase before its first pass.
                T.mbarrier_wait_parity(free[at], (((turn * steps + k) // stages) & 1) ^ 1)
                T.tma_copy(A[m0 : m0 + bm, k * bk : k * bk + bk], A_ring[at, :, :], barrier=full[at], **share_a)
                T.tma_copy(B[k * bk : k * bk + bk, n0 : n0 + bn], B_ring[at, :, :], barrier=full[at], annotations=last, **share_b)

    @T.macro
    def give_back(free: T.Tensor, at, thread):
        """To every block of the cluster: what is loaded for all must be free everywhere."""
        if thread % GROUP == 0:
            for rank in T.unroll(cluster):
                T.mbarrier_arrive(free[at], rank)

    @T.macro
    def multiply(A_ring: T.Tensor, B_ring: T.Tensor, C_sum: T.Tensor, full: T.Tensor, free: T.Tensor, turn, thread):
        for k in T.serial(steps):
            at = (turn * steps + k) % stages
            T.mbarrier_wait_parity(full[at], ((turn * steps + k) // stages) & 1)
            T.wgmma_gemm(A_ring[at, :, :], B_ring[at, :, :], C_sum, clear_accum=k == 0, policy=T.GemmWarpPolicy.FullRow)
            T.wait_wgmma(1)  # all but the product just issued are done, so the tiles before are free
            if k > 0:
                give_back(free, (turn * steps + k + stages - 1) % stages, thread)
        T.wait_wgmma(0)
        give_back(free, (turn * steps + steps - 1) % stages, thread)

    @T.macro
    def share_tiles(C: T.Tensor, A_ring: T.Tensor, B_ring: T.Tensor, full: T.Tensor, free: T.Tensor, worker, rank, thread):
        C_sum = T.alloc_fragment((bm, bn), "float32")
        for turn in T.serial(T.ceildiv(order.units - worker, workers)):
            multiply(A_ring, B_ring, C_sum, full, free, turn, thread)
            store(C_sum, C, order.row(turn * workers + worker, rank), order.column(turn * workers + worker, rank))

    @T.macro
    def every_other(
        C: T.Tensor,
        A_ring: T.Tensor,
        B_ring: T.Tensor,
        full: T.Tensor,
        free: T.Tensor,
        mine: T.Tensor,
        others: T.Tensor,
        worker,
        rank,
        thread,
        first: int,
    ):
        C_sum = T.alloc_fragment((bm, bn), "float32")
        for pair in T.serial(T.ceildiv(T.ceildiv(order.units - worker, workers) - first, 2)):
            turn = pair * 2 + first
            # A barrier of the ring tells only odd passes from even ones: nobody may wait for a pass two ahead.
            T.mbarrier_wait_parity(mine[0], (pair & 1) ^ (1 - first))
            multiply(A_ring, B_ring, C_sum, full, free, turn, thread)
            T.mbarrier_arrive(others[0])
            store(C_sum, C, order.row(turn * workers + worker, rank), order.column(turn * workers + worker, rank))

    @T.prim_func
    def gemm(A: T.Tensor(A_shape, dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor(C_shape, dtype)):
        with T.ClusterKernel(blocks, threads=(groups + 1) * GROUP, cluster_dims=cluster) as block:
            A_ring = T.alloc_shared((stages, bm, bk), dtype)
            B_ring = T.alloc_shared((stages, bk, bn), dtype)
            full = T.alloc_barrier([1] * stages)
            free = T.alloc_cluster_barrier([cluster * (1 if takes_turns else groups)] * stages)
            thread, rank = T.get_thread_binding(), T.block_rank_in_cluster()
            if thread >= groups * GROUP:
                T.set_max_nreg(few, 0)
                if thread < groups * GROUP + 32:
                    copy_tiles(A, B, A_ring, B_ring, full, free, block // cluster, rank)
            else:
                T.set_max_nreg(many, 1)
                if takes_turns:
                    first_turn = T.alloc_barrier([GROUP])
                    second_turn = T.alloc_barrier([GROUP])
                    if thread < GROUP:
                        every_other(C, A_ring, B_ring, full, free, first_turn, second_turn, block // cluster, rank, thread, 0)
                    else:
                        every_other(C, A_ring, B_ring, full, free, second_turn, first_turn, block // cluster, rank, thread, 1)
                else:
                    share_tiles(C, A_ring, B_ring, full, free, block // cluster, rank, thread)
            T.cluster_sync()  # a block that is done stays as long as others may still write to its shared memory

    return gemm


class _Order:
    """Which tile of C comes when. A unit is what a cluster computes at a time: neighbouring tiles along M or N.

    Units follow each other along N, or along M within panels of `panel_size` rows of units.
    """

    def __init__(self, workload: Workload, knobs: Knobs):
        self.knobs = knobs
        tiles_m, tiles_n = tiles(workload, knobs)
        self.along_m, self.along_n = -(-tiles_m // knobs.cluster_M), -(-tiles_n // knobs.cluster_N)
        self.units = self.along_m * self.along_n

    def row(self, unit: Any, rank: Any) -> Any:
        """The first row of the tile that a block of the cluster computes."""
        return (self._place(unit)[0] * self.knobs.cluster_M + (rank if self.knobs.cluster_M > 1 else 0)) * self.knobs.block_M

    def column(self, unit: Any, rank: Any) -> Any:
        return (self._place(unit)[1] * self.knobs.cluster_N + (rank if self.knobs.cluster_N > 1 else 0)) * self.knobs.block_N

    def _place(self, unit: Any) -> tuple[Any, Any]:
        import tilelang.language as T

        panel = self.knobs.panel_size
        if panel <= 1:
            return unit // self.along_n, unit % self.along_n
        first, within = unit // (panel * self.along_n) * panel, unit % (panel * self.along_n)
        height = T.min(panel, self.along_m - first)  # the last panel may be narrower
        return first + within % height, within // height
