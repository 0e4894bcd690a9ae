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

from kernels.gemm_program import Knobs, shapes, tiles
from runner.records import Value, Workload

GROUP = 128
"""Threads of a warp group, which issues a matrix instruction together."""

REGISTERS = {2: (232, 40), 3: (160, 32)}
"""Of a thread that multiplies and of one that copies, by the number of groups that multiply: an SM has 65,536."""


def hopper_program(workload: Workload, config: Mapping[str, Value]) -> Any:
    import tilelang.language as T

    plan = Plan(workload, Knobs.of(config))
    knobs, dtype, cluster, groups = plan.knobs, workload.dtype, plan.cluster, plan.groups
    A_shape, B_shape, C_shape = shapes(workload, knobs)
    bm, bn, bk, stages, takes_turns = knobs.block_M, knobs.block_N, knobs.block_K, knobs.num_stages, plan.takes_turns
    many, few = REGISTERS[groups]
    copy_tiles, multiply, store = _copy(T, plan), _multiply(T, plan), _store(T, plan)
    share_tiles, every_other = _share_tiles(T, plan, multiply, store), _every_other(T, plan, multiply, store)

    @T.prim_func
    def gemm(A: T.Tensor(A_shape, dtype), B: T.Tensor(B_shape, dtype), C: T.Tensor(C_shape, dtype)):
        with T.ClusterKernel(plan.blocks, threads=(groups + 1) * GROUP, cluster_dims=cluster) as block:
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
                elif thread < GROUP:
                    share_tiles(C, A_ring, B_ring, full, free, block // cluster, rank, thread, 0)
                elif groups == 2 or thread < 2 * GROUP:
                    share_tiles(C, A_ring, B_ring, full, free, block // cluster, rank, thread, 1)
                else:
                    share_tiles(C, A_ring, B_ring, full, free, block // cluster, rank, thread, 2)
            T.cluster_sync()  # a block that is done stays as long as others may still write to its shared memory

    return gemm


class Plan:
    """What follows from the knobs. A worker is a cluster of blocks, which computes a unit of tiles at each of its turns."""

    def __init__(self, workload: Workload, knobs: Knobs):
        self.knobs, self.order, self.dtype = knobs, _Order(workload, knobs), workload.dtype
        self.steps = -(-workload.shape["K"] // knobs.block_K)
        self.cluster, self.groups = max(knobs.cluster_M, knobs.cluster_N), knobs.threads // GROUP
        self.takes_turns = knobs.schedule == "pingpong"
        self.rows = knobs.block_M if self.takes_turns else knobs.block_M // self.groups  # of a tile of C that a group has
        self.blocks = knobs.persistent_blocks or self.order.units * self.cluster
        self.workers = self.blocks // self.cluster
        self.narrow = knobs.tail_N or knobs.block_N
        self.full_turns, left = divmod(self.order.units, self.workers)
        self.pieces = left * (knobs.block_N // self.narrow) if knobs.tail_N else 0

    def turns(self, T: Any, worker: Any) -> Any:
        return self.full_turns if self.pieces else T.ceildiv(self.order.units - worker, self.workers)

    def piece(self, number: Any) -> tuple[Any, Any]:
        """The unit of a piece, and the piece's first column in it."""
        in_one = self.knobs.block_N // self.narrow
        return self.full_turns * self.workers + number // in_one, number % in_one * self.narrow

    def shared_copy(self, neighbours: int) -> dict[str, int]:
        """How a tile is copied that so many blocks of a cluster have in common: at once to all, a bit of the mask for each."""
        return {"cluster_mask": (1 << neighbours) - 1} if neighbours > 1 else {}


def _copy(T: Any, plan: Plan) -> Any:
    """The copying warp's part: every tile of A and B that the worker needs, into the ring as soon as there is room."""
    knobs, order, steps, workers, stages = plan.knobs, plan.order, plan.steps, plan.workers, plan.knobs.num_stages
    bm, bn, bk = knobs.block_M, knobs.block_N, knobs.block_K
    share_a, share_b = plan.shared_copy(knobs.cluster_N), plan.shared_copy(knobs.cluster_M)
    last = {"emit_arrive": 1}  # after this one the barrier has all copies of its pass to wait for

    @T.macro
    def copy_tile(
        A: T.Tensor, B: T.Tensor, A_ring: T.Tensor, B_ring: T.Tensor, full: T.Tensor, free: T.Tensor, turn, m0, n0, width: int
    ):
        for k in T.serial(steps):
            at = (turn * steps + k) % stages
            # A fresh barrier lets who waits for the phase before its first pass.
            T.mbarrier_wait_parity(free[at], (((turn * steps + k) // stages) & 1) ^ 1)
            T.tma_copy(A[m0 : m0 + bm, k * bk : k * bk + bk], A_ring[at, :, :], barrier=full[at], **share_a)
            T.tma_copy(
                B[k * bk : k * bk + bk, n0 : n0 + width], B_ring[at, :, 0:width], barrier=full[at], annotations=last, **share_b
            )

    @T.macro
    def copy_tiles(A: T.Tensor, B: T.Tensor, A_ring: T.Tensor, B_ring: T.Tensor, full: T.Tensor, free: T.Tensor, worker, rank):
        for turn in T.serial(plan.turns(T, worker)):
            unit = turn * workers + worker
            copy_tile(A, B, A_ring, B_ring, full, free, turn, order.row(unit, rank), order.column(unit, rank), bn)
        if worker < plan.pieces:
            unit, first = plan.piece(worker)
            m0, n0 = order.row(unit, rank), order.column(unit, rank) + first
            copy_tile(A, B, A_ring, B_ring, full, free, plan.full_turns, m0, n0, plan.narrow)

    return copy_tiles


def _multiply(T: Any, plan: Plan) -> Any:
    """A warp group's product of one tile: through the ring, giving each place back as soon as it was read."""
    steps, stages, cluster, rows = plan.steps, plan.knobs.num_stages, plan.cluster, plan.rows

    @T.macro
    def give_back(free: T.Tensor, at, thread):
        """To every block of the cluster: what is loaded for all must be free everywhere."""
        if thread % GROUP == 0:
            for rank in T.unroll(cluster):
                T.mbarrier_arrive(free[at], rank)

    @T.macro
    def multiply(
        A_ring: T.Tensor, B_ring: T.Tensor, C_sum: T.Tensor, full: T.Tensor, free: T.Tensor, turn, thread, first: int, width: int
    ):
        for k in T.serial(steps):
            at = (turn * steps + k) % stages
            T.mbarrier_wait_parity(full[at], ((turn * steps + k) // stages) & 1)
            T.wgmma_gemm(
                A_ring[at, first : first + rows, :],
                B_ring[at, :, 0:width],
                C_sum,
                clear_accum=k == 0,
                policy=T.GemmWarpPolicy.FullRow,
            )
            T.wait_wgmma(1)  # all but the product just issued are done, so the tiles before are free
            if k > 0:
                give_back(free, (turn * steps + k + stages - 1) % stages, thread)
        T.wait_wgmma(0)
        give_back(free, (turn * steps + steps - 1) % stages, thread)

    return multiply


def _store(T: Any, plan: Plan) -> Any:
    """From a group's registers to global memory: straight, or by way of slices that the copy engine stores.

    With several buffers the next slice is written while the last is stored, also over the end of a tile.
    """
    knobs, rows, bn = plan.knobs, plan.rows, plan.knobs.block_N
    staged = knobs.c_tile()
    height, width = (min(staged[0], rows), staged[1]) if staged else (rows, bn)

    @T.macro
    def store(C_sum: T.Tensor, C: T.Tensor, m0: T.int32, n0: T.int32):
        if staged is None:
            T.copy(C_sum, C[m0, n0], coalesced_width=knobs.c_coalesced_width)
        else:
            C_tile = T.alloc_shared((knobs.c_buffers, height, width), plan.dtype)
            for s in T.unroll((rows // height) * (bn // width)):
                m, n = (s * height, 0) if height < rows else (0, s * width)
                T.tma_store_wait(knobs.c_buffers - 1)  # whoever stored from this buffer has read it
                T.copy(C_sum[m : m + height, n : n + width], C_tile[s % knobs.c_buffers, :, :])
                T.tma_copy(C_tile[s % knobs.c_buffers, :, :], C[m0 + m : m0 + m + height, n0 + n : n0 + n + width])

    return store


def _share_tiles(T: Any, plan: Plan, multiply: Any, store: Any) -> Any:
    """`cooperative`: a group has some rows of every tile. Groups wait for tiles and never for each other, so one may store
    while another multiplies."""
    order, workers, rows, bn = plan.order, plan.workers, plan.rows, plan.knobs.block_N

    @T.macro
    def share_tiles(
        C: T.Tensor, A_ring: T.Tensor, B_ring: T.Tensor, full: T.Tensor, free: T.Tensor, worker, rank, thread, group: int
    ):
        C_sum = T.alloc_fragment((rows, bn), "float32")
        for turn in T.serial(plan.turns(T, worker)):
            multiply(A_ring, B_ring, C_sum, full, free, turn, thread, group * rows, bn)
            m0 = order.row(turn * workers + worker, rank) + group * rows
            store(C_sum, C, m0, order.column(turn * workers + worker, rank))
        if plan.pieces > 0:
            C_narrow = T.alloc_fragment((rows, plan.narrow), "float32")
            if worker < plan.pieces:
                unit, left = plan.piece(worker)
                multiply(A_ring, B_ring, C_narrow, full, free, plan.full_turns, thread, group * rows, plan.narrow)
                T.copy(C_narrow, C[order.row(unit, rank) + group * rows, order.column(unit, rank) + left])
        T.tma_store_wait(0)

    return share_tiles


def _every_other(T: Any, plan: Plan, multiply: Any, store: Any) -> Any:
    """`pingpong`: the group whose number is `first` has every other tile. It multiplies when `mine` says so, then the other."""
    order, workers, bm, bn = plan.order, plan.workers, plan.knobs.block_M, plan.knobs.block_N

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
            multiply(A_ring, B_ring, C_sum, full, free, turn, thread, 0, bn)
            T.mbarrier_arrive(others[0])
            store(C_sum, C, order.row(turn * workers + worker, rank), order.column(turn * workers + worker, rank))
        T.tma_store_wait(0)

    return every_other


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
