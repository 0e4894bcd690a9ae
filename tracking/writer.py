"""The process's side of `writers.py`: takes the name of a record, brings the record to MLflow and answers, until it is killed.

Run as `python writer.py LINE_FD PARENT_PID JOURNAL PARENT_RUN`, with the runner on its path and the store in
MLFLOW_TRACKING_URI.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from runner.errors import RunnerError
from runner.records import Outcome, outcome_from_dict
from runner.subprocesses import die_with
from tracking import sqlite
from tracking.connection import quick
from tracking.journal import Journal
from tracking.store import Store


def main(line: Connection, folder: Path, parent: str) -> None:
    store, header = Store(), Journal(folder).header()
    assert header is not None
    on_disk = sqlite.waiting_later(store.uri)
    store.adopt(header.info)

    def write(outcome: Outcome) -> str:
        run_id = store.write(parent, header.info, outcome, header.flops)
        on_disk()
        return run_id

    with quick(retries=0), contextlib.suppress(EOFError):
        while True:
            name, key, doubtful = line.recv()
            if doubtful:
                store.doubt(header.info, key)
            line.send((name, *_bring(folder / name, write)))


def _bring(record: Path, write: Callable[[Outcome], str]) -> tuple[str, str]:
    """The id of the run that a record was brought to, or else why there is none: nothing is said of one that is damaged."""
    found = Journal.read(record)
    if found is None:
        return "", ""
    data, blob = found
    try:
        return write(outcome_from_dict(data["outcome"], blob)), ""
    except RunnerError as error:
        return "", str(error)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder
    die_with(int(sys.argv[2]))
    main(Connection(int(sys.argv[1])), Path(sys.argv[3]), sys.argv[4])
