"""What a store in one SQLite file gains by how the runner waits for the disk: outcomes a second, by processes that write.

    python -m benchmarks.journal_mode [--writers 1 2 4] [--outcomes 120] [--rounds 3] [--json FILE]

The same outcomes go through the real writers into a real MLflow store: in turn into a file with the journal that MLflow leaves it
with (`delete`, as SQLite calls it), and into one that `tracking/sqlite.py` has begun (`wal`), where a writer waits once a run.
Every line is a process and a store of its own. Counted from when each writer has written its first few: importing MLflow takes
seconds, once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.alone import alone
from tracking.writers import Given, Writers

WAL, DELETE = "wal", "delete"
FIRST = 4  # outcomes for each writer that are not counted


def once(journal_mode: str, writers: int, outcomes: int) -> dict[str, float]:
    """Outcomes a second, into a new store in the current folder."""
    from runner.records import to_dict
    from tests import outcomes as make
    from tracking import sqlite
    from tracking.journal import Header, Journal
    from tracking.store import Store

    if journal_mode == DELETE:
        sqlite.LOCAL = frozenset()
    info, journal = make.sweep(id="0" * 8), Journal(Path("spool"))
    store = Store(f"sqlite:///{Path.cwd()}/mlflow.db")
    parent = store.open_sweep(info, outcomes)
    with journal.held():
        journal.begin(Header(info, outcomes, make.FLOPS, store.uri))
        given = []
        for i in range(FIRST * writers + outcomes):
            made = make.outcome(config={"b_interleave": i})
            record = journal.add({"kind": "outcome", "outcome": to_dict(made)}, make.BLOB)
            given.append(Given(record, (made.variant.id, made.attempt), False))
        found = Writers(writers, store.uri, journal, parent)
        _write(found, given[: FIRST * writers])
        started = time.perf_counter()
        _write(found, given[FIRST * writers :])
        seconds = time.perf_counter() - started
        found.end(0)
    return {"per_second": outcomes / seconds}


def _write(writers: Writers, given: Sequence[Given]) -> None:
    writers.take(given)
    while writers.under_way:
        time.sleep(0.002)
        writers.take([])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--outcomes", type=int, default=120)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all figures there too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(once(asked.one, asked.writers[0], asked.outcomes)))
        return
    said: dict[str, Any] = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    said["lines"] = []
    print(f"{said['cpus']} CPUs, {asked.outcomes} outcomes each, median of {asked.rounds} rounds (lowest to highest)")
    for writers in asked.writers:
        rates: dict[str, list[float]] = {DELETE: [], WAL: []}
        for _ in range(asked.rounds):
            for mode, found in rates.items():
                with tempfile.TemporaryDirectory() as folder:
                    options = ("--one", mode, "--writers", writers, "--outcomes", asked.outcomes)
                    found.append(alone("benchmarks.journal_mode", folder, *options)["per_second"])
        said["lines"].append({"writers": writers, **rates})
        ratio = statistics.median(rates[WAL]) / statistics.median(rates[DELETE])
        shown = (f"{m} {statistics.median(r):.1f} a second ({min(r):.1f} to {max(r):.1f})" for m, r in rates.items())
        print(f"{writers} writers: {', '.join(shown)}: {ratio:.2f} times", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main()
