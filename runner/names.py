"""What can be a name in the record. Pure: families and sweep files are read by it, before anything is measured.

A knob, a dimension and `dtype` are params of an MLflow run, which takes letters, digits and a few signs in at most 250
characters (`mlflow.utils.validation`). Two of those signs are left out: a space, since `block_M=16 threads=128` tells knobs apart
by it, and `/`, since MLflow's folders cannot hold `a` beside `a/b`.
"""

from __future__ import annotations

import re

LONGEST = 250
"""Bytes of a param's name: what MLflow and its databases hold."""

LONGEST_LINE = 240
"""Bytes of what people call a sweep. MLflow's databases hold a run's name of 250 characters, and a sweep's id is part of it."""

LONGEST_WORKLOAD = 200
"""Bytes of a workload's name. A registered model is called by it and by the device's model, in at most 255 bytes together."""

_NAME = re.compile(r"\w[\w.-]*")


def name_fault(name: object) -> str | None:
    """Why this cannot be a param's name, and what to write instead; None where it can."""
    if not isinstance(name, str):
        return f"is no text but {type(name).__name__}: write it in quotes"
    if not _NAME.fullmatch(name):
        better = re.sub(r"[^\w.-]+", "_", name).strip("_.-")
        instead = f", such as {better!r}" if better else ""
        return f"cannot be recorded by that name: write letters, digits, '_', '.' and '-'{instead}"
    return _length_fault(name, LONGEST)


def line_fault(text: object) -> str | None:
    """Why this cannot be what people call something, and what to write instead; None where it can."""
    if not isinstance(text, str) or not text.strip():
        return "is no text: write a word or two in quotes"
    return "takes one line of text" if not text.isprintable() else _length_fault(text, LONGEST_LINE)


def workload_fault(name: str) -> str | None:
    """Why a workload cannot be recorded under its name; None where it can."""
    return _length_fault(name, LONGEST_WORKLOAD)


def is_shown(text: str) -> bool:
    """Whether a text of one line or more holds nothing that a database refuses, such as NUL or half a character."""
    return all(c.isprintable() or c in "\n\t" for c in text)


def _length_fault(text: str, most: int) -> str | None:
    size = len(text.encode())
    return f"is {size} bytes long: the record holds {most}, so shorten it" if size > most else None
