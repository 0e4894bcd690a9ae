"""A family whose kernels are wrong on purpose, each in one way: C = A @ B on the CPU target, K in two parts that are summed.

`PLANTED` names every way, with the rule or the words that it must be caught by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from kernels.family import Knob
from kernels.optional import Workspace
from runner.records import Limits, Target, Value, Workload

PRELUDE = """
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static int calls;
static float kept[1 << 16];
static float bf16(float x) { unsigned u; memcpy(&u, &x, 4); u = (u + 0x8000u) & 0xffff0000u; memcpy(&x, &u, 4); return x; }
static double now() { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
#define IN_A(x) (x)
#define PART(x) (x)
#define OUT(x) (x)
%(macros)s
static void multiply(const float* A, const float* B, float* C, float* P, int M, int N, int K, int from, int to) {
  for (int part = 0; part < 2 * TIMES; ++part)
    for (int m = from; m < to; ++m) {
      float* row = P + (part %% 2 * M + m) * N;
      for (int n = 0; n < N; ++n) row[n] = 0;
      for (int k = part %% 2 * K / 2; k < (part %% 2 + 1) * K / 2; ++k)
        for (int n = 0; n < N; ++n) row[n] = PART(row[n] + IN_A(A[m * K + k]) * B[k * N + n]);
    }
  for (int m = from; m < to; ++m)
    for (int n = 0; n < N; ++n) C[m * N + n] = OUT(P[m * N + n] + P[(M + m) * N + n]);
}
extern "C" int planted(float* A, float* B, float* P, int* D, float* C, int M, int N, int K) {
  ++calls;
  (void)kept; (void)bf16; (void)now;
  %(body)s
  return 0;
}
"""

RIGHT = "multiply(A, B, C, P, M, N, K, 0, M);"


@dataclass(frozen=True)
class Plant:
    """`caught` is in the failure or in the verdict that fails; `by` is the rule of the gate, where it is a rule."""

    caught: str
    body: str = RIGHT
    macros: str = ""
    by: str = ""


def macro(name: str, value: str) -> str:
    return f"#undef {name}\n#define {name}(x) {value}\n"


PLANTED: Mapping[str, Plant] = {
    # Tiles that are not computed, and an old output that is right.
    "half_unless_poisoned": Plant("timing loop", f"if (C[0] != C[0]) {RIGHT} else multiply(A, B, C, P, M, N, K, 0, M / 2);"),
    "half_unless_constant": Plant(
        "timing loop", f"if (C[0] != C[0] || C[0] == C[1]) {RIGHT} else multiply(A, B, C, P, M, N, K, 0, M / 2);"
    ),
    "stale_tile_every_other_call": Plant("timing loop", f"if (calls < 4 || calls % 2) {RIGHT}"),
    "last_row_missing": Plant("never written", "multiply(A, B, C, P, M, N, K, 0, M - 1);"),
    "two_rows_swapped": Plant("off by", RIGHT + "for (int n = 0; n < N; ++n) { float x = C[n]; C[n] = C[N + n]; C[N + n] = x; }"),
    "stops_after_five_calls": Plant("timing loop", f"if (calls <= 5) {RIGHT}"),
    # Races: right most of the time.
    "wrong_in_one_call": Plant("call 9 of the timing loop", RIGHT + "if (calls == 11) C[5] += 1;"),
    "wrong_in_one_call_of_many": Plant("of the timing loop", RIGHT + "if (calls % 211 == 0) C[5] += 1;"),
    "another_order_in_some_calls": Plant(
        "20 of 23", RIGHT + "if (calls % 7 == 0) C[5] = nextafterf(C[5], 9.f);", by="deterministic"
    ),
    "part_read_before_it_is_written": Plant(
        "timing loop", f"if (calls < 6) {RIGHT} else for (int i = 0; i < M * N; ++i) C[i] = P[i] + P[M * N + i];"
    ),
    "part_of_the_call_before": Plant(
        "timing loop",
        f"if (calls < 6 || calls % 3) {RIGHT} else"
        " { multiply(A, B, C, kept, M, N, K, 0, M / 2); for (int i = M * N / 2; i < M * N; ++i) C[i] = P[i] + P[M * N + i]; }",
    ),
    "counter_left_behind": Plant("workspace 2 was not zero", RIGHT + "D[0] = calls;"),
    "adds_to_what_is_there": Plant(
        "never written", "memcpy(kept, C, 4 * M * N);" + RIGHT + "for (int i = 0; i < M * N; ++i) C[i] += 0 * kept[i];"
    ),
    # Precision.
    "inputs_in_bfloat16": Plant("against float64", macros=macro("IN_A", "bf16(x)"), by="accurate"),
    "sums_in_bfloat16": Plant("off by", macros=macro("PART", "bf16(x)")),
    "result_in_bfloat16": Plant("against float64", macros=macro("OUT", "bf16(x)"), by="accurate"),
    # Wrong for some inputs alone.
    "swallows_nan": Plant("NaN and infinity", macros=macro("IN_A", "((x) != (x) ? 0.f : (x))")),
    "clamps_infinity": Plant("NaN and infinity", macros=macro("IN_A", "((x) > 1e30f ? 1e30f : (x))")),
    "clamps_large_inputs": Plant("scaled rows", macros=macro("IN_A", "((x) > 8.f ? 8.f : (x))")),
    "flushes_small_inputs": Plant("against float64", macros=macro("IN_A", "(fabsf(x) < 2e-3f ? 0.f : (x))"), by="accurate"),
    "wrong_where_an_input_is_zero": Plant(
        "no order of summation changes a bit", macros=macro("IN_A", "((x) == 0.f ? 1e-3f : (x))")
    ),
    "sums_saturate": Plant("scaled rows", macros=macro("OUT", "((x) > 200.f ? 200.f : (x))")),
    # Memory that is not its own.
    "writes_past_its_output": Plant("writes beyond the edge of its output", RIGHT + "C[M * N] = 1;"),
    "writes_before_its_output": Plant("writes beyond the edge of its output", RIGHT + "C[-3] = 1;"),
    "writes_past_its_workspace": Plant("writes beyond the edge of workspace 1", RIGHT + "P[2 * M * N + 7] = 1;"),
    "writes_past_an_input": Plant("writes beyond the edge of packed input 2", RIGHT + "B[K * N] = 1;"),
    "reads_past_an_input": Plant("NaN", RIGHT + "C[M * N - 1] += 1e-6f * A[M * K + 2];"),
    "truncates_its_input_after_use": Plant(
        "writes to its input 1", RIGHT + "if (calls > 2) for (int i = 0; i < M * K; ++i) A[i] = bf16(A[i]);"
    ),
    # Answers that it remembers.
    "remembers_by_address": Plant(
        "off by",
        "static float* of; static int filled; if (of == A && filled) { memcpy(C, kept, 4 * M * N); return 0; }"
        + RIGHT
        + "of = A; filled = 1; memcpy(kept, C, 4 * M * N);",
    ),
    "first_answer_for_ever": Plant(
        "off by", "if (calls == 1) { " + RIGHT + " memcpy(kept, C, 4 * M * N); } memcpy(C, kept, 4 * M * N);"
    ),
    "skips_when_called_in_a_hurry": Plant(
        "timing loop", "static double last; double t = now(); if (calls < 4 || t - last > 1) " + RIGHT + " last = now();"
    ),
    # What is no computing.
    "sleeps_at_first": Plant("first calls", "if (calls < 7) usleep(150000);" + RIGHT, by="stable"),
    "prints": Plant("prints", RIGHT + 'printf("step %d\\n", calls);'),
    "forks": Plant("leaves 1 process running", RIGHT + "if (calls == 3 && fork() == 0) { sleep(60); _exit(0); }"),
    "starts_a_thread": Plant(
        "leaves 1 thread running",
        RIGHT + "static pthread_t t; if (calls == 3) pthread_create(&t, 0, [](void*) -> void* { sleep(60); return 0; }, 0);",
    ),
    "computes_on_two_cores": Plant(
        "computes on",
        "auto spin = [](void*) -> void* { double end = now() + 4e-3; while (now() < end); return 0; };"
        "pthread_t t; pthread_create(&t, 0, spin, 0); spin(0); pthread_join(t, 0);" + RIGHT,
    ),
    # What its family does in Python.
    "sets_the_number_of_threads": Plant("changes torch's number of threads"),
    "slows_the_baseline": Plant("changes torch.mm"),
    "slows_the_clock": Plant("changes time.perf_counter_ns"),
    "turns_comparisons_off": Plant("changes torch.equal"),
}


def _as_before(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: function(*args, **kwargs)


class Planted:
    """`behaviour` names what is wrong; "right" is the kernel without a fault."""

    name = "planted"
    doc = "C[M, N] = A[M, K] @ B[K, N], wrong in a way of one's choice."
    dims = ("M", "N", "K")
    dtypes = ("float32",)
    baseline_name = "torch.mm"
    knobs = (
        Knob("behaviour", "right", "What is wrong with it.", ("right", *PLANTED)),
        Knob("times", 1, "How often it multiplies: once is enough."),
    )

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        return None

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        import tilelang.language as T
        from tilelang.cpu.language import Kernel

        M, N, K = (workload.shape[d] for d in self.dims)
        plant = PLANTED.get(str(config["behaviour"]), Plant(""))
        prelude = PRELUDE % {"macros": f"{plant.macros}#define TIMES {config['times']}", "body": plant.body}

        @T.prim_func
        def planted(
            A: T.Tensor((M, K), "float32"),
            B: T.Tensor((K, N), "float32"),
            P: T.Tensor((2, M, N), "float32"),
            D: T.Tensor((1,), "int32"),
            C: T.Tensor((M, N), "float32"),
        ):
            with Kernel(1, prelude=prelude) as _:
                T.call_extern(
                    "int32",
                    "planted",
                    T.address_of(A[0, 0]),
                    T.address_of(B[0, 0]),
                    T.address_of(P[0, 0, 0]),
                    T.address_of(D[0]),
                    T.address_of(C[0, 0]),
                    M,
                    N,
                    K,
                )

        return planted

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        import torch

        m, n, k = (workload.shape[d] for d in self.dims)
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator, device=device) for shape in ((m, k), (k, n)))

    def output(self, workload: Workload, device: str) -> Tensor:
        import torch

        return torch.empty((workload.shape["M"], workload.shape["N"]), device=device)

    def workspace(self, workload: Workload, config: Mapping[str, Value]) -> tuple[Workspace, ...]:
        m, n = workload.shape["M"], workload.shape["N"]
        return Workspace((2, m, n), "float32"), Workspace((1,), "int32", returns_to_zero=True)

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        import torch

        behaviour = config["behaviour"]
        if behaviour == "sets_the_number_of_threads":
            torch.set_num_threads(2)
        elif behaviour == "slows_the_baseline":
            torch.mm = _as_before(torch.mm)
        elif behaviour == "slows_the_clock":
            time.perf_counter_ns = _as_before(time.perf_counter_ns)
        elif behaviour == "turns_comparisons_off":
            torch.equal = lambda one, other: True
        return inputs

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        import torch

        torch.mm(*inputs, out=out)

    def flops(self, workload: Workload) -> float:
        return 2.0 * workload.shape["M"] * workload.shape["N"] * workload.shape["K"]


FAMILY = Planted()
