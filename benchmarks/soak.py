"""Hundreds of variants that fail in every way there is, while workers are killed and MLflow goes away: does all add up?

    python -m benchmarks.soak [--variants 500] [--seed 1]

Builds and measurements do nothing or fail as `fates.py` draws it; everything else is real: Ray, its workers, the killable
children, the journal, an MLflow server that is killed twice. Ends with 1 if a variant is missing or there twice, ended as
it should not, or if a process, a file descriptor or memory was left behind.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import fates
from benchmarks.pretending import PretendingExecutor
from runner.build import BuildJob
from runner.jobs.requests import BaselineJob, BenchJob, PairJob, ProveJob
from runner.records import Acceptance, Device, Outcome, Status, SweepInfo, Target, Variant, Workload
from runner.submit import Report, submit
from runner.sweep import Sweep
from tracking.recorder import replay_all
from tracking.store import Store

DEADLINE = 2.0  # seconds for a build or a measurement, neither of which takes any
DEVICES = tuple(Device("cuda", "no-op", index, platform.node()) for index in range(2))
KILL_EVERY = 12.0  # seconds, about
OUTAGE_AT = (0.3, 0.6)  # of the variants settled
OUTAGE_SECONDS = 10.0
MEMORY_LIMIT = 16.0  # MiB that the driver may grow by between a fifth of the variants and the last of them
AGENTS = ("ray::Dashboard", "ray::RuntimeEnv")  # Ray's own helpers end by themselves, within a minute

FUNCTIONS: dict[type, Any] = {
    BuildJob: fates.build,
    BenchJob: fates.measure,
    BaselineJob: fates.measure_baseline,
    PairJob: fates.measure_pair,
    ProveJob: fates.prove,
}


def soak_sweep(drawn: list[str]) -> Sweep:
    workload, target = Workload("gemm", {"M": 512, "N": 512, "K": 512}, "float16"), Target("cuda", "sm_90a")
    configs = ({"block_M": i + 1, fates.FATE: fate} for i, fate in enumerate(drawn))
    made = tuple(Variant(workload, config, target, "soak", {"tilelang": "0"}, fates.PROTOCOL.key) for config in configs)
    info = SweepInfo(
        uuid.uuid4().hex[:8], "soak", "Does all add up?", "soak.yaml", "", workload, target, DEVICES[0], fates.PROTOCOL.key,
        Acceptance(max_abs_error=1.0, max_spread=10.0, alone="none"), ("block_M",),
    )  # fmt: skip
    return Sweep(info, made, made[0], {}, {}, fates.PROTOCOL, 3, 2.0 * 512**3, DEVICES, "torch.mm", None, None, _no_artifact)


def _no_artifact(variant_id: str) -> Any:
    raise KeyError(variant_id)


class Server:
    """A real MLflow server on one port, that can be killed and started again."""

    def __init__(self, folder: Path):
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        options = {"--backend-store-uri": f"sqlite:///{self.folder}/mlflow.db", "--artifacts-destination": f"{self.folder}/files"}
        command = [sys.executable, "-m", "mlflow", "server", "--port", str(self.port), "--workers", "1"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(word for pair in options.items() for word in pair)],
                stdout=log,
                stderr=log,
                env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        while not self._answers():
            time.sleep(0.2)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5):
                return True
        except OSError:
            return False


@dataclass
class Usage:
    """What the driver holds at a moment."""

    rss_mib: float = field(default_factory=lambda: _pages() * os.sysconf("SC_PAGESIZE") / 2**20)
    descriptors: int = field(default_factory=lambda: len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - a listing, not paths


def _pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


class Trouble(threading.Thread):
    """Kills a Ray worker now and then, and the server twice."""

    def __init__(self, server: Server, seed: int, settled: Callable[[], float]):
        super().__init__(daemon=True)
        self.server, self.random, self.settled = server, random.Random(seed), settled
        self.kills: Counter[str] = Counter()
        self.outages = 0
        self.over = threading.Event()

    def run(self) -> None:
        due = time.monotonic() + KILL_EVERY
        while not self.over.wait(0.2):
            if self.outages < len(OUTAGE_AT) and self.settled() >= OUTAGE_AT[self.outages]:
                self.outages += 1
                self.server.kill()
                time.sleep(OUTAGE_SECONDS)
                self.server.start()
            if time.monotonic() > due:
                due = time.monotonic() + KILL_EVERY * self.random.uniform(0.5, 1.5)
                self._kill_worker()

    def _kill_worker(self) -> None:
        workers = sorted((pid, line) for pid, line in ours().items() if line.startswith(("ray::_build", "ray::_Measurer")))
        if workers:
            pid, line = self.random.choice(workers)
            os.kill(pid, signal.SIGKILL)
            self.kills[line.partition("(")[0].strip()] += 1


def ours() -> dict[int, str]:
    """What runs that was started from here, as pid and command line, by the mark in its environment."""
    mark, found = f"SOAK_FOLDER={os.environ['SOAK_FOLDER']}".encode(), {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and mark in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return {pid: line for pid, line in found.items() if line and pid != os.getpid()}


@contextmanager
def place() -> Iterator[Path]:
    """A folder to work in, known to everything that is started from here."""
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ["SOAK_FOLDER"] = str(folder)
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder, ignore_errors=True)


def left_running(server: Server) -> dict[int, str]:
    """What is still there of the sweep, half a minute after its end at most."""
    end = time.monotonic() + 30
    while True:
        found = {
            pid: line
            for pid, line in ours().items()
            if not line.startswith(AGENTS) and os.getsid(pid) != (server.process.pid if server.process else 0)
        }
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def faults(drawn: list[str], sweep: Sweep, report: Report, store: Store, kills: int) -> list[str]:
    """Everything that does not add up between what was drawn, what was reported and what MLflow holds."""
    found = []
    stored = Counter(s.variant_id for s in store.outcomes(store.find_sweep(sweep.info.id)))
    found += [f"{n} records of variant {i}" for i, n in stored.items() if n != 1]
    found += [f"no record of variant {v.id}" for v in sweep.variants if v.id not in stored]
    told: dict[str, Outcome] = {row.outcome.variant.id: row.outcome for row in report.rows}
    told |= {outcome.variant.id: outcome for _, outcome in report.others}
    unlucky = 0
    for fate, variant in zip(drawn, sweep.variants):
        status = told[variant.id].status
        if status is Status.LOST and fates.EXPECTED[fate] is not Status.LOST:
            unlucky += 1  # killed from outside as well, and so lost twice
        elif status is not fates.EXPECTED[fate]:
            found.append(f"{fate!r} ended as {status.value}: {told[variant.id].reason}")
    found += [f"{unlucky} variants were lost, but only {kills} workers were killed"] if unlucky > kills else []
    running = [r.info.run_name for r in store.client.search_runs(["1", "2", "3"], "attributes.status = 'RUNNING'")]
    return found + [f"RUNNING in MLflow: {name}" for name in running]


def soak(variants: int, seed: int) -> int:
    started, drawn, said = time.monotonic(), fates.draw(variants, seed), list[str]()
    with place() as folder:
        server = Server(folder)
        server.start()
        store, sweep, usage = Store(server.address), soak_sweep(drawn), dict[int, Usage]()
        store.check()
        executor = PretendingExecutor(FUNCTIONS, measurer_cpus=0, deadline=DEADLINE)
        settled: list[Outcome] = []

        def tell(outcome: Outcome) -> None:
            settled.append(outcome)
            if len(settled) in (variants // 5, variants):
                usage[len(settled)] = Usage()

        trouble = Trouble(server, seed, lambda: len(settled) / variants)
        trouble.start()
        began = time.monotonic()
        report = submit(sweep, store, {}, executor, lambda _: None, tell, said.append)
        seconds = time.monotonic() - began
        trouble.over.set()
        trouble.join()
        executor.close()
        late = replay_all(store)
        wrong = faults(drawn, sweep, report, store, sum(trouble.kills.values()))
        wrong += [f"still running: {line}" for line in left_running(server).values()]
        early, end = usage[variants // 5], usage[variants]
        if end.rss_mib - early.rss_mib > MEMORY_LIMIT:
            wrong.append(f"the driver grew by {end.rss_mib - early.rss_mib:.0f} MiB")
        if end.descriptors > early.descriptors + 8:
            wrong.append(f"the driver has {end.descriptors - early.descriptors} more files open")
        server.kill()
    rows = {
        "variants": variants,
        "fates drawn": ", ".join(f"{n} {fate}" for fate, n in fates.counts(drawn).items()),
        "ended as": ", ".join(f"{n} {status}" for status, n in Counter(o.status.value for o in settled).most_common()),
        "workers killed from outside": ", ".join(f"{n} {name}" for name, n in trouble.kills.items()) or "none",
        "MLflow outages": f"{trouble.outages}; said: {len(said)} lines",
        "records waiting at the end": f"{report.pending}; brought later: {sum(r.records for r in late)}",
        "seconds": f"{seconds:.0f} for the sweep, {time.monotonic() - started:.0f} in all",
        f"driver after {variants // 5}": f"{early.rss_mib:.0f} MiB, {early.descriptors} files open",
        f"driver after {variants}": f"{end.rss_mib:.0f} MiB, {end.descriptors} files open",
        "does not add up": "; ".join(wrong) or "nothing",
    }
    for name, value in rows.items():
        print(f"{name:<28} {value}")
    return 1 if wrong else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    sys.exit(soak(arguments.variants, arguments.seed))


if __name__ == "__main__":
    main()
