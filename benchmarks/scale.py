"""What thousands of variants over many devices take: no-op variants through the real pipeline, Ray, journal and MLflow.

    python -m benchmarks.scale [--variants 1000 10000] [--devices 64] [--peer 500] [--store sqlite|postgres|server] [--json FILE]

Builds and measurements do nothing and the devices are pretended, one Ray actor for each; jobs run in Ray's own workers, since
what a child process costs is a device's affair and not the driver's (`benchmarks.overhead` has it). The driver, Ray, the
journal and MLflow are real, and each variant gets its full record. Every line is a process and a store of its own:

    first_s                 from `submit` to the first outcome on record
    per_second_after_first  outcomes a second from then to the closed record, finals, ranking and chart included
    driver_ms               processor time of the driver for a variant
    writers_ms              of the processes that write to MLflow beside it, their start included: MLflow's share
    driver_peak_mib         what the driver held at most
    troubles                how often MLflow did not take a record at once

Then `sweep status` and `sweep list` are asked of the largest: as from a shell, and without their imports. Last comes the peer:
the same no-op through Ray Tune with its MLflow callback (`peer.py`), on as many CPUs. --store names what holds the runs:
MLflow's own SQLite file, a PostgreSQL made for the occasion, or an MLflow server on a SQLite file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.alone import alone, environment

ASKS = """
import time
from datetime import datetime, timezone
from runner.cli import render
from runner.remote import status
from tracking.store import Store
Store().client
started = time.perf_counter()
found = status(None, "00000000")
render.show(render.status(found, found.ranking(), datetime.now(timezone.utc)))
asked = time.perf_counter()
render.show([render.sweeps(Store().sweeps(20))])
print(asked - started, time.perf_counter() - asked)
"""


def sweep(variants: int, devices: int) -> dict[str, float]:
    """One sweep in this process, into the store that the environment names."""
    from benchmarks.noop import FUNCTIONS, noop_sweep
    from benchmarks.pretending import PretendingExecutor
    from runner.submit import submit
    from tracking.store import Store

    store = Store()
    store.check()
    asked = noop_sweep(variants, devices=devices)
    executor = PretendingExecutor(FUNCTIONS, measurer_cpus=0, children=False)
    times: list[float] = []
    said: list[str] = []
    started, cpu, others = time.perf_counter(), time.process_time(), _of_others()
    report = submit(asked, store, {}, executor, lambda _: None, lambda _: times.append(time.perf_counter()), said.append)
    ended, cpu, others = time.perf_counter(), time.process_time() - cpu, _of_others() - others
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    executor.close()
    assert len(report.rows) == variants and not report.pending, f"{len(report.rows)} of {variants}, {report.pending} wait"
    return {
        "variants": variants,
        "sweep_s": ended - started,
        "first_s": times[0] - started,
        "per_second": variants / (ended - started),
        "per_second_after_first": variants / (ended - times[0]),
        "end_s": ended - times[-1],
        "driver_ms": cpu / variants * 1e3,
        "writers_ms": others / variants * 1e3,
        "driver_peak_mib": peak,
        "troubles": len([line for line in said if "kept in" in line]),
    }


def _of_others() -> float:
    """Processor seconds of the processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def look(folder: str, uri: str) -> dict[str, float]:
    """Seconds that it takes to be told of a sweep."""
    env = environment(MLFLOW_TRACKING_URI=uri)
    found = {}
    for name, arguments in {"status": ("status", "00000000"), "list": ("list",)}.items():
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "runner.cli.sweep", *arguments], cwd=folder, env=env, capture_output=True, check=True
        )
        found[f"{name}_s"] = time.perf_counter() - started
    done = subprocess.run([sys.executable, "-c", ASKS], cwd=folder, env=env, capture_output=True, text=True, check=True)
    within = map(float, done.stdout.splitlines()[-1].split())
    return found | dict(zip(("status_without_imports_s", "list_without_imports_s"), within))


@contextlib.contextmanager
def store(kind: str, folder: str) -> Iterator[str]:
    """The URI of an empty one."""
    file = f"sqlite:///{folder}/mlflow.db"
    if kind == "postgres":
        from tests.postgres import postgres

        with postgres() as made:
            yield made.uri
    elif kind == "server":
        from tests.servers import running

        with running(Path(folder), "--backend-store-uri", file, "--artifacts-destination", f"{folder}/artifacts") as address:
            yield address
    else:
        yield file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--peer", type=int, default=500, help="trials of Ray Tune; 0: none")
    parser.add_argument("--store", choices=["sqlite", "postgres", "server"], default="sqlite")
    parser.add_argument("--json", type=Path, help="write all figures there too")
    parser.add_argument("--one", choices=["sweep", "peer"], help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one == "sweep":
        print(json.dumps(sweep(asked.variants[0], asked.devices)))
    elif asked.one == "peer":
        from benchmarks.peer import peer

        print(json.dumps(peer(asked.peer, os.environ["MLFLOW_TRACKING_URI"])))
    else:
        compare(asked)


def compare(asked: argparse.Namespace) -> None:
    said: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "cpus": os.cpu_count(), "store": asked.store}
    said |= {"devices": asked.devices, "python": platform.python_version(), "load": os.getloadavg()[0]}
    _show("machine", said)
    for count in sorted(asked.variants):
        with tempfile.TemporaryDirectory() as folder, store(asked.store, folder) as uri:
            arguments = ("--one", "sweep", "--variants", count, "--devices", asked.devices)
            said[f"sweep of {count}"] = alone("benchmarks.scale", folder, *arguments, MLFLOW_TRACKING_URI=uri)
            _show(f"sweep of {count}", said[f"sweep of {count}"])
            if count == max(asked.variants):
                said["asked"] = look(folder, uri)
                _show("asked", said["asked"])
    if asked.peer:
        with tempfile.TemporaryDirectory() as folder, store(asked.store, folder) as uri:
            said["peer"] = alone("benchmarks.scale", folder, "--one", "peer", "--peer", asked.peer, MLFLOW_TRACKING_URI=uri)
            _show(f"peer of {asked.peer}", said["peer"])
        ours, theirs = (said[k]["per_second_after_first"] for k in (f"sweep of {max(asked.variants)}", "peer"))
        print(f"{ours / theirs:.1f} times the peer's rate after the first result")
    if asked.json:
        asked.json.write_text(json.dumps(said, indent=1))


def _show(what: str, figures: dict[str, Any]) -> None:
    print(f"{what}: " + ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in figures.items()), flush=True)


if __name__ == "__main__":
    main()
