"""Families whose kernels misbehave for real, on the CPU target: C[M, N] = -A[M, N] by a C function, each wrong in one way."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kernels.family import Knob
from kernels.gemm import Gemm
from kernels.layouts import interleave_k
from kernels.optional import Form
from runner.records import Limits, Target, TargetKind, Value, Workload

PRELUDE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
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
    dtype = "float32"
    prelude = PRELUDE

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
        prelude, dtype = self.prelude % self.body(config), self.dtype

        @T.prim_func
        def negation(A: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
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
ABORTS = Negation('printf("about to abort\\n"); fflush(stdout); abort();')
EXITS = Negation('printf("about to exit\\n"); fflush(stdout); exit(3);')
HANGS = Negation('printf("about to hang\\n"); fflush(stdout); for (volatile int i = 0; i >= 0;) ;')
# To 8 GB and no further, so that what should have stopped it is missed by a test and not by the machine.
EATS_MEMORY = Negation("for (int i = 0; i < 512; ++i) memset(malloc(1 << 24), 1, 1 << 24); sleep(600);")
LEAKS_AND_FORKS = Negation(RIGHT_CODE + "if (calls == 1 && fork() == 0) { sleep(600); _exit(0); }")
DOES_NOT_COMPILE = Negation("C[0] = no_such_name;")
COMPILE_EATS_MEMORY = Negation('\n#include "/dev/zero"\n')
COMPILES_FOR_EVER = Negation(
    "constexpr auto f = [](int n) { for (int i = 0; i < 20; ++i) for (int j = 0; j < 200000; ++j) n ^= j; return n; };"
    + "".join(f"constexpr int v{i} = f({i});" for i in range(2_000))
)


class IgnoresTheSeed(Negation):
    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        return super().inputs(workload, 0, device)


class WithNaN(Negation):
    """One input is NaN, and so is its negative."""

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        (a,) = super().inputs(workload, seed, device)
        a[1, 2] = float("nan")
        return (a,)


class AllowsNaN(WithNaN):
    allows_nan = True


class Scalar(Negation):
    def output(self, workload: Workload, device: str) -> Tensor:
        import torch

        return torch.empty((), device=device)

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        out.copy_(inputs[0].sum())


IGNORES_THE_SEED = IgnoresTheSeed(RIGHT_CODE)
BASELINE_WITH_NAN = WithNaN(RIGHT_CODE)
NAN_IS_RIGHT = AllowsNaN(RIGHT_CODE)
SCALAR = Scalar(RIGHT_CODE)
TELLS_ITS_PROCESS = Negation(RIGHT_CODE + "C[0] = getpid() * 64.0f;")


class InThreeForms(Negation):
    """A baseline that is slow as it is, quick in one form, and cannot be called in another."""

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        time.sleep(0.005)
        super().baseline(inputs, out)

    def baseline_forms(self, kind: TargetKind) -> tuple[Form, ...]:
        def missing(inputs: tuple[Tensor, ...], out: Tensor) -> None:
            raise RuntimeError("this library is not installed")

        return Form("quick", lambda inputs: inputs, super().baseline), Form("not here", lambda inputs: inputs, missing)


IN_THREE_FORMS = InThreeForms(RIGHT_CODE)


class Integers(Negation):
    dtypes = ("int32",)
    dtype = "int32"
    prelude = PRELUDE.replace("float*", "int*")

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        import torch

        generator = torch.Generator(device).manual_seed(seed)
        shape = tuple(workload.shape.values())
        return (torch.randint(-1000, 1000, shape, generator=generator, device=device, dtype=torch.int32),)

    def output(self, workload: Workload, device: str) -> Tensor:
        return super().output(workload, device).int()


INTEGERS = Integers(RIGHT_CODE)
INTEGERS_OFF_BY_ONE = Integers(RIGHT_CODE + "C[N + 2] += 1;")
INTEGERS_MISSING = Integers("for (int i = 0; i < n - N; ++i) C[i] = -A[i];")


class Mixed(Negation):
    """A sweep's worth of fates: the knob `behaviour` names a family of this file."""

    BEHAVIOURS: tuple[Value, ...] = ("RIGHT", "SLOW", "NOTHING", "CRASHES", "DOES_NOT_COMPILE")
    knobs = (*Negation.knobs, Knob("behaviour", "RIGHT", "What the kernel does.", BEHAVIOURS))

    def body(self, config: Mapping[str, Value]) -> str:
        code: str = globals()[str(config["behaviour"])].code
        return code


MIXED = Mixed(RIGHT_CODE)


class Laborious(Negation):
    """Takes the same negative a thousand times over."""

    TIMES = 1000

    def flops(self, workload: Workload) -> float:
        return self.TIMES * super().flops(workload)


LABORIOUS = Laborious(f"for (int t = 0; t < {Laborious.TIMES}; ++t) {RIGHT_CODE}")
REMEMBERS = Laborious(
    "static float answer[1 << 18], first; static int has_one;"
    f"if (has_one && A[0] == first) memcpy(C, answer, n * sizeof(float)); else {{ {LABORIOUS.code}"
    " memcpy(answer, C, n * sizeof(float)); first = A[0]; has_one = 1; }"
)


class Unprogrammable(Negation):
    """Raises where it should describe a kernel."""

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        raise ValueError("the family's own fault")


NO_PROGRAM = Unprogrammable(RIGHT_CODE)


class OneBuffer(Mixed):
    """Hands out the same output again and again, with what the last variant wrote still in it."""

    def output(self, workload: Workload, device: str) -> Tensor:
        if not hasattr(self, "_buffer"):
            self._buffer = super().output(workload, device)
        return self._buffer


ONE_BUFFER = OneBuffer(RIGHT_CODE)


class Mispacked(Gemm):
    """B packed for half the width that the kernel reads it with."""

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        (a, b), i = inputs, int(config["b_interleave"] or 1)
        return a, interleave_k(b, i // 2).reshape(b.shape[0] // i, b.shape[1], i)


MISPACKED = Mispacked()


class OnAMachineThatSlows(Negation):
    """Kernel and baseline alike take `SLOWED` times as long while the file named by the variable `SLOW_MACHINE` is there."""

    SLOWED = 4
    knobs = (Knob("work", 1, "How long the kernel takes, in hundreds of thousands of additions."),)

    def body(self, config: Mapping[str, Value]) -> str:
        factor = f'access(getenv("SLOW_MACHINE"), F_OK) == 0 ? {self.SLOWED} : 1'
        work = f"long work = {config['work']} * 100000L * ({factor});"
        return f"{RIGHT_CODE} {work} for (volatile long i = 0; i < work; i = i + 1) ;"

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        for _ in range(200 * (self.SLOWED if Path(os.environ["SLOW_MACHINE"]).exists() else 1)):
            super().baseline(inputs, out)


SLOWING = OnAMachineThatSlows(RIGHT_CODE)
