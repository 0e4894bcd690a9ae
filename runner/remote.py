"""Work for a cluster, from here: what is wrong with it is said at once, and the rest is a job of the cluster's.

The cluster's job list begins anew with its head. What a sweep measured is in the shared record, and so is what is missing.
"""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from runner.errors import InfrastructureLost, NotFound, RequestError
from runner.executors.jobs import JOB, Job, Jobs, is_cluster
from runner.paths import STATE, STATE_VARIABLE, demand_writable
from runner.planning import COMMIT, SOMEWHERE, Asked, git_commit, new_id, read
from runner.records import Device, TargetKind
from tracking.connection import default_uri, demand_lasting, is_server, without_password
from tracking.store import Store, StoredSweep

T = TypeVar("T")

KEPT_AT = "~/.sweep-runner"
"""On the head: outcomes on their way to MLflow must outlive the job's folder."""


@dataclass(frozen=True)
class Submitted:
    """A sweep that the cluster's job list knows, or the shared record alone: then there is no job."""

    sweep_id: str
    name: str
    job: Job | None


@dataclass(frozen=True)
class Status:
    """How a sweep stands: in a record, in a cluster's job list, or in both. What was not asked is None."""

    address: str | None
    record: Store | None
    recorded: StoredSweep | None
    job: Job | None
    lost: InfrastructureLost | None  # why the cluster could not be asked

    def ranking(self) -> list[dict[str, Any]]:
        """Best first; empty until the sweep has ended."""
        return self.record.ranking(self.recorded) if self.record and self.recorded else []

    @property
    def abandoned(self) -> bool:
        """Whether the record is open still, and the driver that would close it has ended."""
        return self.job is not None and self.job.ended and self.recorded is not None and self.recorded.status == "RUNNING"


def submit(jobs: Jobs, file: str, target: str | None, settings: Sequence[str], fresh: bool) -> tuple[Asked, str, str]:
    """Put a sweep into the queue: what it asks for, its id, and its job's. Raises SpecError or RequestError if it cannot run."""
    asked = read(file, target, settings, _somewhere, fresh)
    sweep_id = new_id()
    options = [*(["--target", target] if target else []), *(x for s in settings for x in ("--set", s)), *(["--fresh"] * fresh)]
    job_id = jobs.submit_sweep(sweep_id, asked.spec.name, ["submit", file, "--as", sweep_id, *options], variables())
    return asked, sweep_id, job_id


def resume(jobs: Jobs, prefix: str) -> Submitted:
    """Put a sweep into the queue again. Raises NotFound, or RequestError where it has not ended."""
    found = find(jobs, prefix)
    if found.job is not None and not found.job.ended:
        what = f"`sweep logs -f {found.sweep_id}` follows it, `sweep cancel {found.sweep_id}` ends it"
        raise RequestError(f"sweep {found.sweep_id} is {found.job.status.lower()} at {jobs.address}: {what}")
    jobs.submit_sweep(found.sweep_id, found.name, ["resume", found.sweep_id], variables())
    return found


def find(jobs: Jobs, prefix: str) -> Submitted:
    """The sweep whose id starts with `prefix`, in the cluster's job list or else in the shared record. Raises NotFound."""
    job = jobs.latest(prefix)
    if job is not None:
        return Submitted(job.sweep_id, job.name, job)
    record = shared_record()
    if record is None:
        raise NotFound(
            f"no sweep {prefix!r} in the job list of {jobs.address}; "
            "to look in its record too, set MLFLOW_TRACKING_URI to its MLflow server"
        )
    try:
        stored = record.find_sweep(prefix)
    except NotFound as error:
        raise _unknown(prefix, jobs.address, error) from error
    return Submitted(stored.id, stored.name, None)


def find_job(jobs: Jobs, prefix: str) -> Job:
    """The latest job of a sweep. Raises NotFound, with what to do about a sweep that the record alone knows."""
    found = find(jobs, prefix)
    if found.job is None:
        raise NotFound(
            f"{jobs.address} has no job of sweep {found.sweep_id}, {found.name}, nor its log: its job list began anew since. "
            f"`sweep status {found.sweep_id}` shows the record, `sweep resume {found.sweep_id}` measures what is missing"
        )
    return found.job


def status(address: str | None, prefix: str) -> Status:
    """How a sweep stands in the record, and in the job list of a cluster where `address` is one's.

    Raises NotFound where none of them knows it. A cluster that does not answer does not hide the record: it is `lost`.
    """
    cluster = address if is_cluster(address) else None
    job, lost = None, None
    try:
        job = Jobs(cluster).latest(prefix) if cluster else None
    except InfrastructureLost as error:
        lost = error
    record = shared_record() if job else Store()
    try:
        recorded = record.find_sweep(job.sweep_id if job else prefix) if record else None
    except NotFound as error:
        if job is None:
            raise lost or (_unknown(prefix, cluster, error) if cluster else NotFound(str(error))) from error
        recorded = None
    return Status(cluster, record, recorded, job, lost)


def shared_record() -> Store | None:
    """The record that a cluster keeps, where this process is told of it; None where only the cluster is."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    return Store(uri) if is_server(uri) else None


def ask_record(question: Callable[[Store], T]) -> T | None:
    """What the shared record answers, or None where this process has no way to it. Raises what the question raises."""
    record = shared_record()
    if record is None:
        return None
    try:
        record.client  # noqa: B018 - reaches it
    except InfrastructureLost:
        return None
    return question(record)


def variables() -> Mapping[str, str]:
    """What the job's environment has of ours. Raises RequestError for a record that it could not reach, or must not be told."""
    found = {COMMIT: git_commit(), STATE_VARIABLE: KEPT_AT}
    with contextlib.suppress(KeyError, OSError):  # a container whose user has no name
        found["LOGNAME"] = getpass.getuser()  # who accepts a run is who asked for it, and not the head's user
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return found  # the head's own
    if not is_server(uri):
        told = without_password(uri)
        raise RequestError(f"MLFLOW_TRACKING_URI is {told}: a cluster cannot reach it; name an MLflow server, or leave it unset")
    if without_password(uri) != uri:
        raise RequestError(
            "MLFLOW_TRACKING_URI holds a password, and whoever may submit can read a job's settings: "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the head runs"
        )
    return {**found, "MLFLOW_TRACKING_URI": uri}


def is_job() -> bool:
    """Whether this process is a job of a cluster's, which was submitted from somewhere else."""
    return JOB in os.environ


def demand_record() -> None:
    """Raises RequestError where what is measured now would not be kept, or could not be written.

    That is: in a job, in a folder of the head's that ends with the job; in memory; in a folder that cannot be written.
    """
    if is_job() and not is_server(os.environ.get("MLFLOW_TRACKING_URI", "")):
        raise RequestError(
            "what runs as a job of a cluster needs an MLflow server: "
            "set MLFLOW_TRACKING_URI where you submit, or where the head runs"
        )
    demand_lasting()
    demand_writable(STATE.absolute(), "the folder for outcomes on their way to MLflow,")


def _unknown(prefix: str, address: str, recorded: NotFound) -> NotFound:
    where = without_password(default_uri())
    return NotFound(f"no sweep {prefix!r} in the job list of {address}; in MLflow at {where}: {recorded}")


def _somewhere(kind: TargetKind) -> tuple[Device, ...]:
    """Only the cluster knows its devices: here a file is checked as if it had one of each kind."""
    return (Device(kind, SOMEWHERE),)
