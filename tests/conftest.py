"""Sweeps that many tests look at, run once: each through the command line, on a real Ray, into a real store."""

from __future__ import annotations

import importlib
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from kernels.finding import OURS
from runner.process import forkserver
from tests import command
from tests.command import ROOT, ok, sweep_file

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them what is to be ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one that starts them under nohup, the closing of a terminal


@pytest.fixture
def imports_as_they_were(tmp_path: Path) -> Iterator[None]:
    """For tests that load a user's modules, from `tmp_path` or the examples: the next test may have others of their names."""
    path, modules = list(sys.path), set(sys.modules)
    ours = {name: importlib.import_module(name).__path__ for name in OURS}
    before = {name: list(locations) for name, locations in ours.items()}
    yield
    sys.path[:] = path
    for name, locations in ours.items():
        locations[:] = before[name]
    for name in sorted(set(sys.modules) - modules, reverse=True):  # a folder's modules before the folder
        spec = vars(sys.modules[name]).get("__spec__")
        places = [spec.origin, *(spec.submodule_search_locations or ())] if isinstance(spec, ModuleSpec) else []
        if any(str(place).startswith((str(tmp_path), str(ROOT / "docs"))) for place in places):
            del sys.modules[name]


@dataclass(frozen=True)
class Finished:
    """A finished sweep: the folder it was run in, what the command printed, and its id."""

    folder: Path
    output: str
    id: str

    def ranking(self) -> list[dict[str, Any]]:
        said = ok(command.run("sweep", "status", self.id, "--json", folder=self.folder))
        rows: list[dict[str, Any]] = json.loads(said)["ranking"]
        return rows


def finish(folder: Path, *arguments: str, **environment: str) -> Finished:
    output = ok(command.run("sweep", "submit", *arguments, folder=folder, **environment))
    listed = json.loads(ok(command.run("sweep", "list", "--json", folder=folder, **environment)))
    return Finished(folder, output, listed[0]["id"])


@pytest.fixture(scope="session")
def interleave(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The README's main job: `sweep submit sweeps/interleave.yaml`, in an empty folder that holds the sweeps, and all its own."""
    folder = tmp_path_factory.mktemp("newcomer")
    shutil.copytree(ROOT / "sweeps", folder / "sweeps")
    (folder / "tmp").mkdir()
    # Ray's own files elsewhere: the paths of its sockets may not be long.
    where = {"TMPDIR": str(folder / "tmp"), "RAY_TMPDIR": tempfile.gettempdir()}
    return finish(folder, "sweeps/interleave.yaml", "--target", "cpu", **{forkserver.ADDRESS: ""}, **where)


@pytest.fixture(scope="session")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A sweep with clear winners. Tests that change its store take a copy: `copied`."""
    folder = tmp_path_factory.mktemp("blocks")
    return finish(folder, str(sweep_file(folder)))
