"""A sweep for a cluster, from here: what is wrong with it is said at once, and the rest is a job of the cluster's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from runner.errors import RequestError
from runner.executors.jobs import Jobs
from runner.paths import STATE_VARIABLE
from runner.planning import COMMIT, SOMEWHERE, Asked, git_commit, new_id, read
from runner.records import Device, TargetKind
from tracking.connection import is_server, without_password

KEPT_AT = "~/.sweep-runner"
"""On the head: outcomes on their way to MLflow must outlive the job's folder."""


def submit(jobs: Jobs, file: str, target: str | None, settings: Sequence[str], fresh: bool) -> tuple[Asked, str]:
    """Put a sweep into the queue: what it asks for, and its id. Raises SpecError or RequestError where it could not run."""
    asked = read(file, target, settings, _somewhere, fresh)
    sweep_id = new_id()
    options = [*(["--target", target] if target else []), *(x for s in settings for x in ("--set", s)), *(["--fresh"] * fresh)]
    jobs.submit(sweep_id, asked.spec.name, ["submit", file, "--as", sweep_id, *options], variables())
    return asked, sweep_id


def variables() -> Mapping[str, str]:
    """What the job's environment has of ours. Raises RequestError for a record that it could not reach, or must not be told."""
    found = {COMMIT: git_commit(), STATE_VARIABLE: KEPT_AT}
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri:
        return found  # the head's own
    if not is_server(uri):
        raise RequestError(f"MLFLOW_TRACKING_URI is {uri}: a cluster cannot reach it; name an MLflow server, or leave it unset")
    if without_password(uri) != uri:
        raise RequestError(
            "MLFLOW_TRACKING_URI holds a password, and whoever may submit can read a job's settings: "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD where the head runs"
        )
    return {**found, "MLFLOW_TRACKING_URI": uri}


def demand_server(uri: str) -> None:
    """Raises RequestError where a job's record would be in a folder of the head's that ends with the job."""
    if not is_server(uri):
        raise RequestError(
            "a sweep on a cluster needs an MLflow server: set MLFLOW_TRACKING_URI where you submit, or where the head runs"
        )


def _somewhere(kind: TargetKind) -> tuple[Device, ...]:
    """Only the cluster knows its devices: here a file is checked as if it had one of each kind."""
    return (Device(kind, SOMEWHERE),)
