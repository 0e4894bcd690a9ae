"""The way to MLflow: which store, a client that is quiet and fails fast, and faults told in one line.

MLflow is imported inside the functions: importing it costs seconds that `sweep plan` need not pay.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from runner.errors import InfrastructureLost, RequestError, RunnerError
from runner.paths import demand_writable
from tracking import layout, sqlite

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

F = TypeVar("F", bound=Callable[..., Any])

TIMEOUT = "4"
"""Seconds for a request, where MLflow's own two minutes and seven retries would keep a person or a sweep waiting."""

PROBE = "sweep-runner probe"

USER, OPTION = re.compile(r"(://[^/?#\s:@]*:)[^/?#\s]*@"), re.compile(r"(password=)[^&\s'\"]*", re.IGNORECASE)
"""Where a URI may have a password."""


def default_uri() -> str:
    """`MLFLOW_TRACKING_URI`, else the store that `mlflow ui` opens in this folder: MLflow's own choice, asked of MLflow."""
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri
    import mlflow

    chosen: str = mlflow.get_tracking_uri()
    return chosen


def is_server(uri: str) -> bool:
    return urlsplit(uri).scheme in ("http", "https")


def is_new_here() -> bool:
    """Whether `default_uri` is a store that is still to be made. Told without MLflow, which takes seconds to import."""
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        file = sqlite.file_of(uri)
        return file is not None and not file.exists()
    return not any(Path(name).exists() for name in ("mlflow.db", "mlruns"))


def demand_lasting(uri: str | None = None) -> None:
    """Raises RequestError for a store that ends with this process, or whose file cannot be written. None: `default_uri`'s.

    Told without MLflow, which tries for a minute.
    """
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if sqlite.is_in_memory(uri):
        raise RequestError(
            f"MLflow at {uri}: this store is in memory, and ends with the command: "
            "set MLFLOW_TRACKING_URI=sqlite:///mlflow.db, or leave it unset"
        )
    if (file := sqlite.file_of(uri)) is not None:
        demand_writable(file, "MLflow's store")
        demand_writable(file.parent, "the folder of MLflow's store,")


def without_password(text: str) -> str:
    """A URI, or what was said of one, as it may be printed: a user's password is starred, and one among a database's options."""
    return OPTION.sub(r"\1***", USER.sub(r"\1***@", text))


def connect(uri: str) -> MlflowClient:
    """A client that has reached its store. Raises InfrastructureLost with one line where it cannot, within seconds."""
    file = sqlite.file_of(uri)
    if sqlite.is_in_memory(uri) or (file is not None and not file.exists()):
        demand_lasting(uri)
    _quiet()
    from mlflow import MlflowClient

    with one_line(uri), quick(retries=1), sqlite.opening(uri):
        client = MlflowClient(tracking_uri=uri)
        client.search_experiments(max_results=1)
    return client


def _quiet() -> None:
    """Keep MLflow's table migrations, run links, progress bars and waiting off the terminal; its warnings stay."""
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for name in ("alembic", "mlflow.store.db.utils", "mlflow.store.db_migrations", "mlflow.store.model_registry.abstract_store"):
        logging.getLogger(name).setLevel(logging.WARNING)


@contextmanager
def quick(retries: int) -> Iterator[None]:
    """MLflow reads these settings from the environment at every request; what the user set there is obeyed."""
    wanted = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": str(retries), "MLFLOW_HTTP_REQUEST_TIMEOUT": TIMEOUT}
    mine = {k: v for k, v in wanted.items() if k not in os.environ}
    os.environ.update(mine)
    try:
        yield
    finally:
        for key in mine:
            os.environ.pop(key, None)


@contextmanager
def one_line(uri: str) -> Iterator[None]:
    """Turn whatever MLflow, its database or its transport raise into InfrastructureLost with one readable line."""
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except RunnerError:
        raise
    except (MlflowException, SQLAlchemyError, requests.RequestException, OSError, ModuleNotFoundError) as error:
        raise InfrastructureLost(explain(uri, error)) from error


def guarded(method: F) -> F:
    """`one_line` around a method of an object with a `uri`."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with one_line(self.uri):
            return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]


def explain(uri: str, error: Exception) -> str:
    """One line: where, what, and what to do about it."""
    text, where = without_password(" ".join(str(error).split())), f"MLflow at {without_password(uri)}"
    host = urlsplit(uri).netloc.rpartition("@")[2]
    if "Invalid Host header" in text:
        allow = f"start it with `--allowed-hosts {host}` (or MLFLOW_SERVER_ALLOWED_HOSTS)"
        return f"{where}: the server refuses the host name {host!r}: {allow}"
    if isinstance(error, ModuleNotFoundError):
        return f"{where}: its driver {error.name} is not installed: install it, or name another, as in postgresql+psycopg2://"
    if "maintenance mode" in text:
        return (
            f"{where}: MLflow no longer opens a store of plain files: move it with `mlflow migrate-filestore`, "
            "or set MLFLOW_TRACKING_URI=sqlite:///mlflow.db to begin a new one"
        )
    if "mlflow-artifacts URI was supplied" in text:
        return f"{where}: the artifacts of this experiment lie behind an MLflow server: set MLFLOW_TRACKING_URI to that server"
    if code := re.search(r"too many (\d+) error responses|failed with error code (5\d\d)", text):
        return f"{where}: the server answers with error {code[1] or code[2]}: what went wrong is in its own log"
    if is_server(uri) and "Read timed out" in text:
        return f"{where}: it does not answer in time: look at the server, or correct MLFLOW_TRACKING_URI"
    if "disk is full" in text or "No space left" in text:
        return f"{where}: no room left on its disk"
    if is_server(uri) and any(sign in text for sign in ("Connection refused", "timed out", "NameResolution", "Max retries")):
        return f"{where}: nothing answers there: start it with `mlflow server`, or correct MLFLOW_TRACKING_URI"
    if (
        isinstance(error, PermissionError)
        or "Permission denied" in text
        or "unable to open database" in text
        or "readonly" in text
    ):
        return f"{where}: cannot be written ({text[:300]})"
    return f"{where}: {text[:300]}"


def artifacts(uri: str, location: str) -> ArtifactRepository:
    """The files under an artifact location, by what serves that location."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(location, tracking_uri=uri)


def upload(repository: ArtifactRepository, files: Mapping[str, bytes]) -> None:
    """Write files, by relative path, in one call."""
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        for name, content in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        repository.log_artifacts(folder)


def download(repository: ArtifactRepository, name: str) -> bytes:
    """One file's content. A local repository hands out its own file; others copy it into a folder that we remove."""
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

    if isinstance(repository, LocalArtifactRepository):
        return Path(repository.artifact_dir, name).read_bytes()
    with tempfile.TemporaryDirectory(prefix="sweep-") as folder:
        return Path(repository.download_artifacts(name, folder)).read_bytes()


def prove_artifacts(client: MlflowClient, uri: str) -> None:
    """Write one byte where new experiments put their artifacts, read it back, and remove it.

    It needs an experiment for the location, and no run. The experiment stays deleted, so nobody sees it, and serves every later
    probe. One for each way in: what a server hands out, a client without that server cannot use.
    """
    experiment = ensure_experiment(client, f"{PROBE} ({urlsplit(uri).scheme})", {})
    if experiment.lifecycle_stage == "active":
        client.delete_experiment(experiment.experiment_id)
    demand_reachable(uri, experiment.artifact_location)
    file = f"{uuid.uuid4().hex}.txt"
    repository = artifacts(uri, experiment.artifact_location)
    upload(repository, {file: b"1"})
    if download(repository, file) != b"1":
        raise InfrastructureLost(
            f"MLflow at {without_password(uri)}: an artifact came back changed from {experiment.artifact_location}"
        )
    repository.delete_artifacts(file)


def ensure_experiment(client: MlflowClient, name: str, tags: Mapping[str, str]) -> Experiment:
    """The experiment of that name, deleted or not; created where there is none, by whoever comes first."""
    from mlflow.exceptions import MlflowException

    found: Experiment | None = client.get_experiment_by_name(name)
    if found is None:
        try:
            return client.get_experiment(client.create_experiment(name, tags=dict(tags)))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
            assert found is not None
    return found


def demand_reachable(uri: str, location: str) -> None:
    """Refuse a server whose artifacts are a path of its own disk: writing there from here would succeed, and be lost."""
    path = urlsplit(location)
    if not is_server(uri) or path.scheme not in ("", "file") or Path(path.path).parent.is_dir():
        return
    raise InfrastructureLost(
        f"MLflow at {without_password(uri)}: its artifacts are kept in {path.path}, a folder that this machine does not have: "
        "start the server without --no-serve-artifacts, or mount that folder here"
    )


def log(
    client: MlflowClient, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str], params: Mapping[str, str]
) -> None:
    """Metrics, params and tags of a run, in as few requests as MLflow's limits allow; the tags come last."""
    from mlflow.entities import Metric, Param, RunTag

    now = int(time.time() * 1000)
    measured = [Metric(k, v, now, 0) for k, v in metrics.items()]
    settings = [*(Param(k, v) for k, v in params.items()), *(RunTag(k, v) for k, v in tags.items())]
    for part in list(layout.chunks(settings, layout.MAX_BATCH)) or [[]]:
        client.log_batch(run_id, measured, [p for p in part if isinstance(p, Param)], [t for t in part if isinstance(t, RunTag)])
        measured = []
