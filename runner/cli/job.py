"""A command that runs as a job of a cluster: what it prints is shown here, and this process ends as the job did."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import click

from runner import remote
from runner.errors import InfrastructureLost, Refused, RequestError, RunnerError
from runner.executors.jobs import Jobs, new_job_id
from runner.interrupt import INTERRUPTED, interrupt

ERROR = "error: "
"""How the line begins with which a command says why it failed (`entry.py`)."""

AS_ENDED: dict[int | None, type[RunnerError]] = {kind.exit_code: kind for kind in (Refused, RequestError, InfrastructureLost)}
PATIENCE = 60.0  # seconds for a job to stop: Ray kills it after the RAY_JOB_STOP_WAIT_TIME_S of its head


def run(address: str, name: str, arguments: Sequence[str], show: Callable[[str], None] = click.echo) -> None:
    """`runner ARGUMENTS` as a job of a cluster, to its end as `follow` has it. Ctrl-C stops the job: nobody would look at it."""
    variables = remote.variables()
    jobs, job_id = Jobs(address), new_job_id(name)
    with interrupt.handled():
        try:
            jobs.submit(job_id, ["runner", *arguments], variables)
            click.echo(f"{job_id}: a job at {address}", err=True)
            follow(jobs, job_id, show)
        except KeyboardInterrupt:
            _stop(jobs, job_id)
            raise


def follow(jobs: Jobs, job_id: str, show: Callable[[str], None] = click.echo) -> None:
    """Show what a job prints until it ends, and raise what it failed with, so that this process ends with its exit code."""
    screen = _Screen(show)
    job = jobs.follow(job_id, screen.line)
    if job.exit_code in AS_ENDED and screen.error:
        raise AS_ENDED[job.exit_code](screen.error.removeprefix(ERROR))
    screen.clear()
    if job.exit_code in (*AS_ENDED, INTERRUPTED):
        raise SystemExit(job.exit_code)  # what it printed says why
    if job.status != "SUCCEEDED":
        raise InfrastructureLost(f"{job_id} {job.status.lower()}: {job.message}")


class _Screen:
    """Shows lines, and keeps back one that may turn out to be the last, and the reason why the job failed."""

    def __init__(self, show: Callable[[str], None]):
        self._show = show
        self.error = ""

    def line(self, text: str) -> None:
        self.clear()
        if text.startswith(ERROR):
            self.error = text
        else:
            self._show(text)

    def clear(self) -> None:
        if self.error:
            self._show(self.error)
        self.error = ""


def _stop(jobs: Jobs, job_id: str) -> None:
    """Stop a job and wait until it has ended; another Ctrl-C does not wait."""
    click.echo(f"stopping {job_id}", err=True)
    try:
        jobs.cancel(job_id)
        end = time.monotonic() + PATIENCE
        while not (job := jobs.look(job_id)).ended and time.monotonic() < end:
            time.sleep(0.5)
        click.echo(f"{job_id}: {job.status.lower()}", err=True)
    except InfrastructureLost as error:
        click.echo(f"{job_id} may still run: {error}", err=True)
