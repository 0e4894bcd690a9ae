"""What another version of the runner wrote: read as far as it goes, and otherwise told in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from runner.errors import Unreadable
from runner.records import SCHEMA


@contextmanager
def reading(what: str, data: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Turn what the block finds wrong with a record into Unreadable: one line that names the record and its version."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        schema = data.get("schema") if isinstance(data, Mapping) else None
        of = f"its schema is {schema}" if schema is not None else "it names no schema"
        why = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise Unreadable(f"{what} cannot be read: {of}, this version reads {SCHEMA}; {why}") from error
