"""Stands in for the MACA port of TileLang in a process that has this folder first on its path. It compiles nothing.

It keeps what the runner relies on: an entry in a cache folder for each kernel, a cache in memory whose key knows
nothing of environment variables, and a kernel that is called with its output last. What it is asked goes, a JSON object
a line, to the file that `STUB_TILELANG_CALLS` names. Its source has the form of the port's as public logs show it, with
as many matrix instructions as `TILELANG_MACA_GEMM_K_PACK` says; its product is torch's, on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tilelang import cache

env = SimpleNamespace(TILELANG_CACHE_DIR="")

SOURCE = """// __builtin_mxc_mma_16x16x16f16(in, a, comment)
/* and __builtin_mxc_mma_16x16x16f16(in,
   another); */
#include <tl_templates/maca/gemm.h>
extern "C" __global__ void __launch_bounds__(512, 1) gemm_kernel(half_t* __restrict__ A, half_t* __restrict__ B,
    half_t* __restrict__ C) {{
  const char* name = "__builtin_mxc_mma_16x16x16f16(in, a, string)";
  *(uint2*)(A_tile + 0) = *(uint2*)(A + ((int)threadIdx.x) * 4);
  {read_b}
{mma}
  *(uint2*)(C + 0) = *(uint2*)(C_tile + 0);
}}
"""
READ_B = {True: "*(uint2*)(B_tile + 0) = *(uint2*)(B + 0);", False: "B_tile[0] = B[((int)threadIdx.x)];"}
MMA = (
    "  *(((float32x4*)C_sum) + 0) = __builtin_mxc_mma_16x16x16f16("
    "*(((float16x4*)B_local) + 0), *(((float16x4*)A_local) + 0), *(((float32x4*)C_sum) + 0));"
)


def compile(program: SimpleNamespace, **asked: Any) -> Kernel:
    key = hashlib.sha256(json.dumps([program.calls, asked], sort_keys=True).encode()).hexdigest()
    memory, entry = cache._dispatch_map["tvm_ffi"]._memory_cache, Path(env.TILELANG_CACHE_DIR, "kernels", key)
    found = "in memory" if key in memory else "on disk" if (entry / "params.pkl").exists() else ""
    _record(program=program.calls, asked=asked, cache=env.TILELANG_CACHE_DIR, found=found)
    if not found:
        entry.mkdir(parents=True)
        packed = any(call.startswith("vectorized") for call in program.calls)
        together = int(os.environ.get("TILELANG_MACA_GEMM_K_PACK", "1"))
        (entry / "device_kernel.cu").write_text(SOURCE.format(read_b=READ_B[packed], mma="\n".join([MMA] * together)))
        (entry / "params.pkl").write_bytes(b"")
    if found != "in memory":
        memory[key] = Kernel((entry / "device_kernel.cu").read_text())
    return memory[key]


def _record(**said: Any) -> None:
    prefixes = ("TILELANG_", "MACA_", "CUDA_")
    said["env"] = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    with Path(os.environ["STUB_TILELANG_CALLS"]).open("a") as file:
        file.write(json.dumps(said) + "\n")


class Kernel:
    def __init__(self, source: str):
        self._source = source

    def get_kernel_source(self) -> str:
        return self._source

    def get_host_source(self) -> str:
        return "launch"

    def __call__(self, a: Any, b: Any, out: Any) -> None:
        unpacked = b if b.dim() == 2 else b.permute(0, 2, 1).reshape(a.shape[1], -1)
        out.copy_(a.float() @ unpacked.float())
