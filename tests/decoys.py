"""CUDA kernels that name a matrix instruction and never launch one: C[M, N] = -A[M, N], by plain arithmetic."""

from collections.abc import Mapping
from typing import Any

from kernels.family import Knob
from runner.records import Target, Value, Workload
from tests.broken_families import Negation

NEVER_CALLED = "template <class T> __device__ void never(T* a) { tl::mma_sync<T>(a); }\n"
NEVER_LAUNCHED = """
extern "C" __global__ void never_launched(unsigned* a, float* c) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
}
"""


class Decoy(Negation):
    name = "decoy"
    knobs = (Knob("decoy", "called", "What names the instruction.", ("called", "launched")),)

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        import tilelang.language as T

        M, N = (workload.shape[d] for d in self.dims)
        prelude = NEVER_CALLED if config["decoy"] == "called" else NEVER_CALLED + NEVER_LAUNCHED

        @T.prim_func
        def decoy(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
            with T.Kernel(M, threads=128, prelude=prelude) as row:
                for j in T.Parallel(N):
                    C[row, j] = -A[row, j]

        return decoy


DECOY = Decoy("")
