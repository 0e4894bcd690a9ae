"""Where Python finds a module, found out without importing it; and a user's folders that are named like packages of ours."""

from __future__ import annotations

import filecmp
import importlib
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

OURS = ("kernels", "runner", "tracking")
"""Packages of ours. A project may have folders of these names, and modules of its own in them."""


def find(name: str) -> ModuleSpec | None:
    """What an import of `name` would load; None where there is no such module. Imports nothing, packages above it included."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # ValueError: a module that was made by hand
        return None
    for depth in range(len(rest)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(".".join([top, *rest[: depth + 1]]), spec.submodule_search_locations)
    return spec


def share_our_names(folders: Iterable[str]) -> None:
    """Have `kernels.mine` found in a user's folder `kernels/` too, and so with our other packages. Our own modules come first."""
    for name in OURS:
        locations = importlib.import_module(name).__path__
        theirs = (str(Path(folder, name)) for folder in folders)
        locations.extend(f for f in theirs if f not in locations and Path(f).is_dir())


def hidden(name: str, folders: Sequence[str]) -> str | None:
    """Which file in a user's folders an import of `name` passes over, what for, and the fix; None where it passes over none.

    A copy of what is imported is not passed over: a cluster's job has two of what was submitted.
    """
    path = Path(*name.split("."))
    theirs = [p for f in folders for p in (Path(f, f"{path}.py"), Path(f, path, "__init__.py")) if p.is_file()]
    spec = find(name) or find(name.partition(".")[0])
    if not theirs or spec is None:
        return None
    found = [*filter(None, [spec.origin]), *(spec.submodule_search_locations or ())]
    if Path(found[0]).is_file() and filecmp.cmp(found[0], theirs[0], shallow=False):
        return None
    return f"{theirs[0]} is hidden by another {spec.name!r} ({found[0]}): give that file or its folder another name"
