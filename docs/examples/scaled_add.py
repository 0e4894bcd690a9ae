"""C[M, N] = A[M, N] + 0.5 * B[M, N]: a kernel family of one's own, for the CPU and for NVIDIA and MetaX GPUs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernels.family import Knob
from runner.records import Limits, Target, Value, Workload

if TYPE_CHECKING:
    from torch import Tensor

SCALE = 0.5


class ScaledAdd:
    name = "scaled_add"
    doc = "C = A + 0.5 * B, element by element."
    dims = ("M", "N")
    dtypes = ("float32",)
    baseline_name = "torch.add"
    knobs = (
        Knob("block_M", 16, "Rows that one block computes."),
        Knob("block_N", 64, "Columns that one block computes."),
        Knob("threads", 128, "Threads of one block.", choices=(64, 128, 256), kinds=("cuda", "maca")),
    )

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        if workload.shape["N"] % int(config["block_N"] or 1):
            return f"N={workload.shape['N']} is not divisible by block_N={config['block_N']}"
        return None

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        import tilelang.language as T

        M, N = workload.shape["M"], workload.shape["N"]
        rows, columns = int(config["block_M"] or 1), int(config["block_N"] or 1)
        blocks = T.ceildiv(N, columns), T.ceildiv(M, rows)

        def launch() -> Any:
            if target.kind == "cpu":
                from tilelang.cpu.language import Kernel

                # The C compiler is called without -O, so the code asks for it itself.
                return Kernel(*blocks, prelude='#pragma GCC optimize("O3")\n')
            return T.Kernel(*blocks, threads=config["threads"])

        @T.prim_func
        def scaled_add(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
            with launch() as (bx, by):
                for i, j in T.Parallel(rows, columns):
                    if by * rows + i < M:
                        C[by * rows + i, bx * columns + j] = (
                            A[by * rows + i, bx * columns + j] + SCALE * B[by * rows + i, bx * columns + j]
                        )

        return scaled_add

    def inputs(self, workload: Workload, seed: int, device: str) -> "tuple[Tensor, ...]":
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        shape = tuple(workload.shape.values())
        return tuple(torch.randn(shape, generator=generator, device=device) for _ in range(2))

    def output(self, workload: Workload, device: str) -> "Tensor":
        import torch

        return torch.empty(tuple(workload.shape.values()), device=device)

    def pack(self, inputs: "tuple[Tensor, ...]", config: Mapping[str, Value]) -> "tuple[Tensor, ...]":
        return inputs

    def baseline(self, inputs: "tuple[Tensor, ...]", out: "Tensor") -> None:
        import torch

        torch.add(*inputs, alpha=SCALE, out=out)

    def flops(self, workload: Workload) -> float:
        return 2.0 * workload.shape["M"] * workload.shape["N"]


SCALED_ADD = ScaledAdd()
