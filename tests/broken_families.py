"""Families whose kernels misbehave for real, on the CPU target: C[M, N] = -A[M, N] by a C function, each wrong in one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from kernels.family import Knob
from runner.records import Limits, Target, Value, Workload

PRELUDE = """
#include <stdio.h>
#include <string.h>
static int calls;
static float kept[1 << 16];
extern "C" int negate(float* A, float* C, int M, int N) {
  int n = M * N;
  (void)kept;
  ++calls;
  %s
  return 0;
}
"""

RIGHT_CODE = "for (int i = 0; i < n; ++i) C[i] = -A[i];"


class Negation:
    """`code` is the body of the function: A, C, M, N, n = M * N, the number of `calls` so far, and a place to keep things."""

    name = "negation"
    doc = "C[M, N] = -A[M, N]."
    dims = ("M", "N")
    dtypes = ("float32",)
    knobs: tuple[Knob, ...] = (Knob("block", 1, "Changes nothing: every value gives the same source."),)
    baseline_name = "torch.neg"

    def __init__(self, code: str):
        self.code = code

    def body(self, config: Mapping[str, Value]) -> str:
        return self.code

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        return None

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        import tilelang.language as T
        from tilelang.cpu.language import Kernel

        M, N = (workload.shape[d] for d in self.dims)
        prelude = PRELUDE % self.body(config)

        @T.prim_func
        def negation(A: T.Tensor((M, N), "float32"), C: T.Tensor((M, N), "float32")):
            with Kernel(1, prelude=prelude) as _:
                T.call_extern("int32", "negate", T.address_of(A[0, 0]), T.address_of(C[0, 0]), M, N)

        return negation

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        return (torch.randn(tuple(workload.shape.values()), generator=generator, device=device),)

    def output(self, workload: Workload, device: str) -> Tensor:
        import torch

        return torch.empty(tuple(workload.shape.values()), device=device)

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        return inputs

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        import torch

        torch.neg(*inputs, out=out)

    def flops(self, workload: Workload) -> float:
        return float(workload.shape["M"] * workload.shape["N"])


RIGHT = Negation(RIGHT_CODE)
ROUNDING = Negation(RIGHT_CODE + "C[1] += 0.001f;")
SLOW = Negation(RIGHT_CODE + "for (int i = 0; i < 3000000; ++i) kept[i % 1024] += 1.0f;")

NOTHING = Negation("")
LAST_ROW_MISSING = Negation("for (int i = 0; i < n - N; ++i) C[i] = -A[i];")
ONE_NAN = Negation(RIGHT_CODE + 'C[N + 2] = __builtin_nanf("");')
ONE_OFF = Negation(RIGHT_CODE + "C[N + 2] += 1.0f;")
ADDS = Negation("for (int i = 0; i < n; ++i) C[i] -= A[i];")
FIRST_ANSWER = Negation("if (calls == 1) for (int i = 0; i < n; ++i) kept[i] = -A[i];memcpy(C, kept, n * sizeof(float));")
SECOND_ANSWER = Negation("if (calls <= 2) for (int i = 0; i < n; ++i) kept[i] = -A[i];memcpy(C, kept, n * sizeof(float));")
STOPS_AFTER_5 = Negation(f"if (calls <= 5) {RIGHT_CODE}")
WRONG_AFTER_5 = Negation(RIGHT_CODE + "if (calls > 5) C[0] += 1.0f;")
SKIPS_KNOWN_INPUTS = Negation(f"static float* last; if (A != last) {RIGHT_CODE} last = A;")
EATS_ITS_INPUT = Negation(RIGHT_CODE + "if (calls > 2) for (int i = 0; i < n; ++i) A[i] = 0.0f;")

CRASHES = Negation('printf("about to crash\\n"); fflush(stdout); *(volatile int*)0 = 1;')
HANGS = Negation("for (volatile int i = 0; i >= 0;) ;")
DOES_NOT_COMPILE = Negation("C[0] = no_such_name;")


class Mixed(Negation):
    """A sweep's worth of fates: the knob `behaviour` names a family of this file."""

    BEHAVIOURS: tuple[Value, ...] = ("RIGHT", "SLOW", "NOTHING", "CRASHES", "DOES_NOT_COMPILE")
    knobs = (*Negation.knobs, Knob("behaviour", "RIGHT", "What the kernel does.", BEHAVIOURS))

    def body(self, config: Mapping[str, Value]) -> str:
        code: str = globals()[str(config["behaviour"])].code
        return code


MIXED = Mixed(RIGHT_CODE)


class Unprogrammable(Negation):
    """Raises where it should describe a kernel."""

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        raise ValueError("the family's own fault")


NO_PROGRAM = Unprogrammable(RIGHT_CODE)
