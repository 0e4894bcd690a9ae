"""One sweep against TileLang's own autotuner: the same kernels, configs, repeats and card, cold caches, wall time of each.

    python -m benchmarks.autotuner [--shape 131072 2048 7168] [--plain]

Both start as a person starts them, from a shell. The autotuner compiles in threads, pipelined with its benchmarks, and
checks each kernel once against torch.mm within a tolerance. The sweep also checks with two seeds before and after timing,
times its baseline twice, plays its finals and records everything in MLflow. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.alone import environment

WARMUP, REPEAT = 10, 50
KNOBS: dict[str, list[Any]] = {
    "block_M": [128, 256],
    "block_N": [128, 192],
    "num_stages": [2, 3],
    "panel_size": [0, 4, 8],
}
FIXED = {"block_K": 64, "threads": 256}


def sweep_file(folder: Path, shape: list[int], finals: int) -> Path:
    path = folder / "cold.yaml"
    path.write_text(
        f"""name: cold
kernel: gemm
workload: {{M: {shape[0]}, N: {shape[1]}, K: {shape[2]}, dtype: float16}}
target: cuda
base: {json.dumps({**FIXED, **{k: v[0] for k, v in KNOBS.items()}})}
sweep: {json.dumps(KNOBS)}
measure: {{warmup: {WARMUP}, repeat: {REPEAT}, finals: {finals}}}
"""
    )
    return path


def timed(arguments: list[str], folder: Path) -> tuple[float, str]:
    """Seconds and output of a Python module run as from a shell, with cold caches in the folder."""
    caches = {"TILELANG_CACHE_DIR": str(folder / "cache"), "TILELANG_TMP_DIR": str(folder / "tmp")}
    command = [sys.executable, "-m", *arguments]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=folder, env={**environment(), **caches}, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return seconds, done.stdout


def ours(folder: Path, shape: list[int], finals: int) -> dict[str, float]:
    file = sweep_file(folder, shape, finals)
    seconds, said = timed(["runner.cli.sweep", "submit", str(file)], folder)
    return {"seconds": seconds, "timed_ms": timed_ms(folder / "mlflow.db"), "configs": said.count("\nmeasured")}


def timed_ms(database: Path) -> float:
    """What the device spent on timed and warm-up calls of the variants, by their medians; baseline and finals not counted."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT value FROM latest_metrics WHERE key = 'latency_ms_median'").fetchall()
    return float(sum(value for (value,) in rows)) * (WARMUP + REPEAT)


def peer(folder: Path, shape: list[int]) -> dict[str, float]:
    seconds, said = timed(["benchmarks.autotuner", "--shape", *map(str, shape), "--one"], folder)
    return {**json.loads(said.strip().splitlines()[-1]), "seconds": seconds}


def program(m: int, n: int, k: int, **knobs: int) -> Any:
    """The same TileLang program that the sweep builds for these knobs."""
    from kernels.family import defaults
    from kernels.gemm import GEMM
    from runner.records import Workload
    from runner.targets.cuda import CUDA

    config = {**defaults(GEMM.knobs, "cuda"), **FIXED, **knobs}
    return GEMM.program(Workload("gemm", {"M": m, "N": n, "K": k}, "float16"), config, CUDA.target())


def autotune(shape: list[int]) -> dict[str, float]:
    """In a process of its own: TileLang's autotuner on the same programs."""
    import tilelang
    import torch
    from tilelang.autotuner import AutoTuner

    from runner.targets.cuda import CUDA

    m, n, k = shape
    latencies: list[float] = []

    def gemm(block_M: int, block_N: int, num_stages: int, panel_size: int) -> Any:  # may close over plain values only
        return program(m, n, k, block_M=block_M, block_N=block_N, num_stages=num_stages, panel_size=panel_size)

    configs = [dict(zip(KNOBS, values)) for values in itertools.product(*KNOBS.values())]
    tuner = AutoTuner.from_kernel(gemm, configs)
    tuner.set_compile_args(out_idx=[-1], target=CUDA.compile_options(CUDA.target())["target"], execution_backend="tvm_ffi")
    tuner.set_profile_args(supply_type=tilelang.TensorSupplyType.Normal, ref_prog=lambda a, b: torch.mm(a, b))
    target = tuner._benchmark_target

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = target(*args, **kwargs)
        latencies.append(float(found[0] if isinstance(found, tuple) else found))
        return found

    tuner._benchmark_target = noted  # type: ignore[method-assign]
    found = tuner.run(warmup=WARMUP, rep=REPEAT, use_pipeline=True)
    return {"best_ms": float(found.latency), "timed_ms": sum(latencies) * (WARMUP + REPEAT), "configs": len(latencies)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=[131072, 2048, 7168], metavar=("M", "N", "K"))
    parser.add_argument("--plain", action="store_true", help="without the sweep's finals, which the autotuner has not")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(autotune(arguments.shape)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        found["sweep"] = ours(Path(folder), arguments.shape, 0 if arguments.plain else 3)
    with tempfile.TemporaryDirectory() as folder:
        found["autotuner"] = peer(Path(folder), arguments.shape)
    for name, figures in found.items():
        share = figures["timed_ms"] / 1e3 / figures["seconds"]
        said = f"{figures['seconds']:.1f} s, {figures['configs']:.0f} configs"
        print(f"{name}: {said}, {share:.0%} of it calls timed or to warm up")
    print(f"wall time of the sweep / the autotuner: {found['sweep']['seconds'] / found['autotuner']['seconds']:.2f}")


if __name__ == "__main__":
    main()
