"""One sweep over two cards of a machine against the same sweep over one: wall time, and whether the cards agree.

    python -m benchmarks.two_cards [--shape 131072 2048 7168] [--output FILE]

Each sweep is started as from a shell, in a folder and with caches of its own; compiles are the same work in both, so the second
measure is the time from the first timed variant to the last. Then the variant that won is paired with the base on each card,
alone: the two ratios and their intervals. Needs two CUDA devices of one model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.alone import environment
from runner import stats
from runner.records import Device, Protocol
from runner.targets.cuda import CUDA

PAIRS = 100
SESSIONS = 3  # fresh processes

SWEEP = """\
name: two-cards
kernel: gemm
workload: {{M: {0}, N: {1}, K: {2}, dtype: float16}}
target: cuda
base: {{block_M: 128, block_N: 128, block_K: 64, num_stages: 3, threads: 256, panel_size: 8}}
sweep:
  block_M: [64, 128, 256]
  block_N: [64, 128, 192, 256]
  block_K: [32, 64]
  num_stages: [2, 3, 4]
  panel_size: [0, 4, 8, 16]
measure: {{warmup: 10, repeat: {3}, finals: 3, siblings: 0.1}}
"""
"""Cards that differ by more than 3 % would be left out: here the difference is part of the answer."""


def sweep(folder: Path, shape: list[int], repeat: int, cards: str) -> dict[str, Any]:
    """The same file over the cards that CUDA_VISIBLE_DEVICES names."""
    folder.mkdir()
    file = folder / "two-cards.yaml"
    file.write_text(SWEEP.format(*shape, repeat))
    own = {"CUDA_VISIBLE_DEVICES": cards, "TILELANG_CACHE_DIR": str(folder / "cache"), "TILELANG_TMP_DIR": str(folder / "tmp")}
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli.sweep", "submit", str(file)],
        cwd=folder,
        env={**environment(), **own},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    (folder / "said.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return {"cards": cards, "wall_s": seconds, **recorded(folder)}


def recorded(folder: Path) -> dict[str, Any]:
    """What the sweep's record says: when its variants were timed and on which card, and each card's baseline."""
    store = _store(folder)
    outcomes = [stored.outcome for stored in store.outcomes(store.sweeps(1)[0])]
    found = [o for o in outcomes if o.measurement is not None and o.baseline is not None]
    moments = sorted(datetime.fromisoformat(o.measurement.measured_at) for o in found)
    baselines = {o.baseline.device.index: o.baseline for o in found}
    return {
        "timed": len(found),
        "timing_s": (moments[-1] - moments[0]).total_seconds(),
        "by_card": {i: sum(o.measurement.device.index == i for o in found) for i in sorted(baselines)},
        "baseline_ms": {i: stats.median(b.before_ms) for i, b in sorted(baselines.items())},
    }


def agreement(folder: Path, devices: tuple[Device, ...]) -> dict[str, Any]:
    """The winner of a sweep in pairs with its base, on each card."""
    from dataclasses import replace

    from runner.executors.inline import InlineExecutor
    from runner.jobs.requests import PairJob
    from runner.pairs import paired as of_sessions
    from runner.sessions import measured

    store = _store(folder)
    ranked = store.ranking(store.sweeps(1)[0])
    winner, base = store.load(ranked[0]["run_id"]), store.load(next(r["run_id"] for r in ranked if r["base"]))
    artifacts = []
    for stored in (winner, base):
        assert stored.outcome.artifact is not None
        artifacts.append(replace(stored.outcome.artifact, blob=store.artifact_blob(stored.run_id)))
    executor, found = InlineExecutor(), {}
    try:
        for device in devices:
            variants = winner.outcome.variant, base.outcome.variant
            job = PairJob(variants[0], artifacts[0], variants[1], artifacts[1], device, Protocol(10, PAIRS), pairs=PAIRS)
            paired = of_sessions(variants[0].id, variants[1].id, list(measured(executor, job, SESSIONS, 600, undisturbed=True)))
            found[device.index] = {
                "speedup": paired.speedup,
                "low": paired.low,
                "high": paired.high,
                "pairs": PAIRS,
                "sessions": SESSIONS,
            }
    finally:
        executor.close()
    return {"winner": winner.label, "base": base.label, "on": found}


def _store(folder: Path) -> Any:
    from tracking.store import Store

    return Store(f"sqlite:///{folder}/mlflow.db")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", type=int, nargs=3, default=[131072, 2048, 7168])
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--output", type=Path, help="also write the numbers as JSON")
    arguments = parser.parse_args()
    devices = CUDA.devices()
    if len(devices) < 2:
        sys.exit(f"needs two CUDA devices, and there are {len(devices)}")
    with tempfile.TemporaryDirectory() as kept:
        both = sweep(Path(kept) / "both", arguments.shape, arguments.repeat, "0,1")
        one = sweep(Path(kept) / "one", arguments.shape, arguments.repeat, "0")
        agreed = agreement(Path(kept) / "both", devices[:2])
    ratios = {what: one[what] / both[what] for what in ("wall_s", "timing_s")}
    found = {"devices": [str(d) for d in devices[:2]], "shape": arguments.shape, "both": both, "one": one}
    found |= {"one_over_both": ratios, "agreement": agreed, "at": datetime.now().astimezone().isoformat(timespec="seconds")}
    print(json.dumps(found, indent=2))
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
