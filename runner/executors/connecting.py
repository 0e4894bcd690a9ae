"""A connection to Ray: to a cluster's, or to one of our own that ends with this process."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import ray
import ray._private.node
import ray._private.utils
from ray.job_config import JobConfig

from runner.artifacts import environment
from runner.errors import InfrastructureLost
from runner.process import forkserver
from runner.process.scratch import WITHIN
from runner.records import TargetKind
from runner.subprocesses import python_path
from runner.targets.base import BACKENDS, backend

ANSWER = 3.0  # seconds that a process of Ray's may take to answer
PATIENCE = 3  # looks in a row without an answer


def connect(address: str | None, scratch: Path | None = None) -> None:
    """To the Ray at `host:port`; None starts one, whose workers have their temporary files in `scratch`.

    Raises InfrastructureLost.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # the future default, chosen now: no warning
    where = address or "this machine"
    if address:
        demand_answer(address)
    _hush()
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        with contextlib.nullcontext() if address else _for_us_alone(scratch):
            ray.init(
                **({"address": address} if address else _own_ray()),
                logging_level=logging.ERROR,
                log_to_driver=False,
                job_config=_OursFirst(),
            )
    except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
        raise InfrastructureLost(f"no Ray at {where}: {' '.join(str(error).split())[:400]}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, terminate)  # Ray takes it for itself


class _OursFirst(JobConfig):  # type: ignore[misc]
    """Without it Ray puts the current folder before all else on its workers' path, and a user's `kernels/` before ours."""

    def _runtime_env_has_working_dir(self) -> bool:
        return True


class Vital:
    """What this process depends on: the cluster's head, and this machine's own part of Ray.

    Ray does not say itself for a minute that one of them is gone, and then ends the process.
    """

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        own = next(node for node in ray.nodes() if node["NodeID"] == context.get_node_id())
        self._parts = (
            ("head", host.strip("[]"), int(port)),
            ("raylet", own["NodeManagerAddress"], own["NodeManagerPort"]),
        )
        self._unanswered = 0

    def demand(self) -> None:
        """Raises InfrastructureLost when one of them refuses us, or is silent again and again."""
        for what, host, port in self._parts:
            try:
                socket.create_connection((host, port), timeout=ANSWER).close()
            except ConnectionRefusedError as error:
                raise InfrastructureLost(f"Ray's {what} at {host}:{port} is gone") from error
            except OSError as error:
                self._unanswered += 1
                if self._unanswered >= PATIENCE:
                    raise InfrastructureLost(f"Ray's {what} at {host}:{port} does not answer: {error}") from error
                return
        self._unanswered = 0


def is_accelerator(kind: TargetKind) -> bool:
    return backend(kind).torch_device != "cpu"


def _own_ray() -> dict[str, Any]:
    """A Ray that ends with this process. It is told of the cards, so that it need not have MetaX's library to see them."""
    cards = max(len(backend(kind).devices()) for kind in BACKENDS if is_accelerator(backend(kind).kind))
    return {
        "address": "local",
        "num_gpus": cards,
        "include_dashboard": False,
        "object_store_memory": 256 << 20,  # artifacts are tens of kilobytes
    }


@contextlib.contextmanager
def _for_us_alone(scratch: Path | None) -> Iterator[None]:
    """While a Ray of our own starts: without what serves people and other machines, which takes seconds of every start.

    The dashboard, the autoscaler and the copying of logs are processes of Python that import Ray. Its agents stay, in the form
    that they have where Ray was installed without its extras.
    """
    instead: list[tuple[Any, str, Any]] = [
        (ray._private.utils, "get_dashboard_dependency_error", lambda: ImportError("not wanted"))
    ]
    for start in ("start_api_server", "start_monitor", "start_log_monitor"):
        instead.append((ray._private.node.Node, start, lambda *_, **__: None))
    with environment(_ours(scratch)), contextlib.ExitStack() as stack:
        for owner, name, other in instead:
            if hasattr(owner, name):  # they are Ray's own, and may go with another version
                stack.enter_context(mock.patch.object(owner, name, other))
        yield


def _ours(scratch: Path | None) -> dict[str, str]:
    """What the workers of a Ray of our own inherit while it starts: our modules, who forks their children, and where files go.

    A runtime environment would say so too, but then the workers that Ray starts ahead are none that it can use.
    """
    return {"PYTHONPATH": python_path(), forkserver.ADDRESS: forkserver.start(), WITHIN: str(scratch or "")}


def demand_answer(address: str) -> None:
    """Raises InfrastructureLost when nobody listens at `host:port`: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if address == "auto" or not port.isdigit():
        return
    try:
        socket.create_connection((host or "127.0.0.1", int(port)), timeout=5).close()
    except OSError as error:
        raise InfrastructureLost(f"no Ray at {address}: {error.strerror or error} (start one with `ray start --head`)") from error


def _hush() -> None:
    """Keep the pages that Ray prints on the driver's terminal for each worker that died off it: we say so in a line."""
    worker: Any = getattr(ray._private, "worker", None)
    if hasattr(worker, "listen_error_messages"):
        worker.listen_error_messages = lambda *_: None
