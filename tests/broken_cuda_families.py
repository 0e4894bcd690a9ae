"""A CUDA kernel that writes to an address that is not its own, at once or only after many calls: C[M, N] = -A[M, N]."""

from collections.abc import Mapping
from typing import Any

from kernels.family import Knob
from runner.records import Target, Value, Workload
from tests.broken_families import Negation

PRELUDE = """
static __device__ int calls;
static __device__ void stray(int after) {
  if (blockIdx.x == 0 && threadIdx.x == 0 && ++calls > after) *(volatile int*)16 = 1;
}
"""


class Stray(Negation):
    name = "stray"
    knobs = (Knob("after", 0, "Calls that go well before one writes where it may not.", (0, 40)),)

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        import tilelang.language as T

        M, N = (workload.shape[d] for d in self.dims)
        after = int(config["after"] or 0)

        @T.prim_func
        def stray(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
            with T.Kernel(M, threads=128, prelude=PRELUDE) as row:
                for j in T.Parallel(N):
                    C[row, j] = -A[row, j]
                T.evaluate(T.call_extern("void", "stray", after))

        return stray


STRAY = Stray("")
