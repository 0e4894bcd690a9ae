"""What the runner itself costs: no-op variants through the real pipeline, Ray, child processes and MLflow.

    python -m benchmarks.overhead [--variants 100 1000] [--busy 200] [--peer]

Builds and measurements do nothing, so what is left is the runner: Ray's tasks and actor, the private pipe to the child,
judging, and one MLflow run per variant with all that a real one has. With `--busy` a measurement takes so many
milliseconds on a device that goes on while the last result is recorded, as a GPU does: what the device waited for is
left. `--peer` runs as many no-op trials through Ray
Tune with its MLflow callback, which logs less per trial, on the same machine in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.alone import alone, environment
from benchmarks.noop import noop_sweep
from benchmarks.peer import peer


def measure(variants: int, busy_ms: int) -> dict[str, float]:
    """Seconds and bytes for one sweep of `variants`, in this process."""
    from benchmarks.noop import FUNCTIONS
    from benchmarks.pretending import PretendingExecutor
    from runner.submit import submit
    from tracking.store import Store

    started = time.perf_counter()
    store = Store()
    sweep = noop_sweep(variants, busy_ms)
    store.check()
    store_ready = time.perf_counter()
    executor = PretendingExecutor(FUNCTIONS, measurer_cpus=1)
    ray_ready = time.perf_counter()
    writing = 0.0
    write = store.write

    def timed_write(*args: object, **kwargs: object) -> str:
        nonlocal writing
        before = time.perf_counter()
        run_id = write(*args, **kwargs)  # type: ignore[arg-type]
        writing += time.perf_counter() - before
        return run_id

    store.write = timed_write  # type: ignore[method-assign]
    report = submit(sweep, store, {}, executor, lambda _: None, lambda _: None, lambda _: None)
    ended = time.perf_counter()
    executor.close()
    assert len(report.rows) == variants, f"{len(report.rows)} of {variants} came back"
    return {
        "variants": variants,
        "store_s": store_ready - started,
        "ray_s": ray_ready - store_ready,
        "sweep_s": ended - ray_ready,
        "ms_per_variant": (ended - ray_ready) / variants * 1e3 - busy_ms,
        "mlflow_ms_per_variant": writing / variants * 1e3,
        "driver_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def first_build(repeat: int = 3) -> float:
    """Seconds from typing `sweep submit` to the first build's start, the median of a few: as a user waits."""
    from statistics import median

    return median(_one_first_build() for _ in range(repeat))


def _one_first_build() -> float:
    root = Path(__file__).resolve().parent.parent
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        command = [
            sys.executable,
            "-u",
            "-m",
            "runner.cli.sweep",
            "submit",
            str(root / "sweeps/interleave.yaml"),
            "--target",
            "cpu",
        ]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment())
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("building"):
                break
        seconds = time.perf_counter() - started
        process.terminate()
        process.wait()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--peer", action="store_true", help="also run Ray Tune with its MLflow callback, 100 trials")
    parser.add_argument("--busy", type=int, default=200, help="milliseconds of a measurement, in a sweep of 100 besides; 0: none")
    parser.add_argument("--one", choices=["sweep", "peer"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        count = arguments.variants[0]
        done = peer(count, f"sqlite:///{Path.cwd()}/peer.db") if arguments.one == "peer" else measure(count, arguments.busy)
        print(json.dumps(done))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    print(f"from `sweep submit` to the first build: {first_build():.1f} s (median of 3)")
    runs = [("sweep", n, 0) for n in arguments.variants]
    runs += [("sweep", 100, arguments.busy)] if arguments.busy else []
    for what, count, busy in [*runs, *([("peer", 100, 0)] if arguments.peer else [])]:
        with tempfile.TemporaryDirectory() as folder:
            figures = alone("benchmarks.overhead", folder, "--one", what, "--variants", count, "--busy", busy)
            kind = f"{what} of {count}" + (f", {busy} ms each, not counted" if busy else "")
            print(f"{kind}: " + ", ".join(f"{k} {v:.4g}" for k, v in figures.items() if k != "variants"))


if __name__ == "__main__":
    main()
