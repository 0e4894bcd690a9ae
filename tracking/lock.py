"""One promotion at a time, on every store MLflow has.

MLflow cannot set an alias only if nobody else has: it has no compare-and-set. What it does do atomically everywhere is to
refuse a second registered model of the same name, at creation and at renaming. So a short-lived registered model is the lock.

The lock of a process that died is renamed to a name made from its own token, which can succeed only once however many try;
the grave keeps that name, so that a latecomer cannot carry off the lock of whoever came next.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runner.errors import Refused
from tracking.stored import moment

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import RegisteredModel

STALE_SECONDS = 60.0
"""A promotion takes a second. A lock as old as this has lost its owner."""

PATIENCE_SECONDS = 15.0
POLL_SECONDS = 0.1
TOKEN, OWNER, TAKEN_AT = "token", "owner", "taken_at"


@contextmanager
def promotion_lock(client: MlflowClient, model: str) -> Iterator[None]:
    """Hold the promotion lock of a registered model. Raises Refused when another promotion does not end in time."""
    name, token = f"{model} (promotion lock)", uuid.uuid4().hex
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not _take(client, name, token):
        holder = _holder(client, name)
        if holder is not None and _age(holder) > STALE_SECONDS:
            _bury(client, name, holder.tags[TOKEN])
            continue
        if time.monotonic() > deadline:
            who = f"{holder.tags[OWNER]} since {holder.tags[TAKEN_AT]}" if holder else "others, one after the other"
            raise Refused(f"another promotion of {model!r} is under way ({who}): nothing was changed; try again")
        time.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        _release(client, name, token)


def _take(client: MlflowClient, name: str, token: str) -> bool:
    from mlflow.exceptions import MlflowException

    tags = {TOKEN: token, OWNER: f"process {os.getpid()} on {socket.gethostname()}", TAKEN_AT: moment(int(time.time() * 1000))}
    try:
        client.create_registered_model(name, tags=tags, description="Held while a best is being promoted; gone in a second.")
    except MlflowException as error:
        # MLflow looks the other model up for its message, and does not find it when it was released meanwhile.
        if error.error_code in ("RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"):
            return False
        raise
    return True


def _holder(client: MlflowClient, name: str) -> RegisteredModel | None:
    from mlflow.exceptions import MlflowException

    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _age(holder: RegisteredModel) -> float:
    return time.time() - float(holder.creation_timestamp) / 1000


def _bury(client: MlflowClient, name: str, token: str) -> str | None:
    """Take the lock with this token out of the way: the name of its grave, or None where somebody else did."""
    from mlflow.exceptions import MlflowException

    grave = f"{name} {token}"
    try:
        client.rename_registered_model(name, grave)
    except MlflowException:
        return None  # it was released, or is in its grave already
    return grave


def _release(client: MlflowClient, name: str, token: str) -> None:
    """Let go of our own lock, and of no other: one that was taken from us for its age is not ours any more."""
    holder = _holder(client, name)
    if holder is None or holder.tags.get(TOKEN) != token:
        return
    grave = _bury(client, name, token)
    if grave is not None and _age(holder) < STALE_SECONDS:
        client.delete_registered_model(grave)
