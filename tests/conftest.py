"""Sweeps that many tests look at, run once: each through the command line, on a real Ray, into a real store."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.process import forkserver
from tests import command
from tests.command import ROOT, ok, sweep_file

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them what is to be ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
