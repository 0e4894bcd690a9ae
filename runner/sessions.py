"""Sessions of pairs outside a sweep, each in a fresh process of one device."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

from runner.executors.base import Executor, run_one
from runner.jobs.requests import PairJob
from runner.records import PairSession


def measured(executor: Executor, job: PairJob, number: int, deadline: float, undisturbed: bool) -> Iterator[PairSession]:
    """So many sessions of a job's pairs, one after the other. With `undisturbed` one that others disturbed is measured once more,
    and what it is then is given.

    Raises JobFailed where a kernel fails by now, else as `run_one` does.
    """
    mine = uuid.uuid4().hex[:8]
    for index in range(1, number + 1):
        for _ in range(2):
            done = run_one(executor, replace(job, session=f"{mine} {index}"), deadline)
            if done.failure is not None:
                raise done.failure
            session: PairSession = done.value
            if not (session.contended and undisturbed):
                break
        yield session
