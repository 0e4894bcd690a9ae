"""Vendors' ports follow TileLang's releases late: the families must lower on the oldest that is supported, unchanged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command import ROOT
from tests.older_lowering import KNOBS, NO_LAYOUT, asked

OLDEST = "0.1.9"
PACKAGES = (f"tilelang=={OLDEST}", "apache-tvm-ffi==0.1.10")  # with 0.1.12, which its metadata allows, it cannot be imported
INSTRUCTIONS = {"sm_80": "mma_sync", "sm_90a": "wgmma_ss"}


@pytest.fixture(scope="session")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the oldest TileLang, to be put first on a process's path. No network, no pass."""
    folder = tmp_path_factory.mktemp("older")
    install = ("-m", "pip", "install", "-q", "--target", str(folder), "--no-deps", "--no-compile", *PACKAGES)
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def lowered(older: Path) -> Iterator[dict[str, dict[str, Any]]]:
    """What `tests.older_lowering` says, by architecture; the two at once."""
    # Where the newer one's parts are, it has left in the environment of who imported it.
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("TVM_", "TL_"))}
    environment = {**rest, "PYTHONPATH": os.pathsep.join([str(older), str(ROOT)])}
    running = {
        arch: subprocess.Popen(
            [sys.executable, "-m", "tests.older_lowering", arch],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for arch in KNOBS
    }
    try:
        said = {arch: process.communicate(timeout=280) for arch, process in running.items()}
        assert not any(process.returncode for process in running.values()), said
        yield {arch: json.loads(out.splitlines()[-1]) for arch, (out, _) in said.items()}
    finally:
        for process in running.values():
            process.kill()


def test_the_oldest_is_the_one_that_is_asked_for() -> None:
    assert re.search(rf'"tilelang>={re.escape(OLDEST)}"', (ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("arch", KNOBS)
def test_it_is_the_older_one(lowered: dict[str, dict[str, Any]], older: Path, arch: str) -> None:
    assert lowered[arch]["version"] == OLDEST and Path(lowered[arch]["file"]).is_relative_to(older)


@pytest.mark.parametrize("arch", KNOBS)
def test_every_config_feeds_the_matrix_instruction(lowered: dict[str, dict[str, Any]], arch: str) -> None:
    for found in lowered[arch]["lowered"]:
        if found["config"]["c_staging"] in NO_LAYOUT[arch]:
            assert found["mma"] == 0 and "not injective" in found["said"], found
        else:
            assert found["mma"] >= 1 and found["said"] == INSTRUCTIONS[arch], found


@pytest.mark.parametrize("arch", KNOBS)
def test_they_show_every_value_that_a_sweep_file_has(lowered: dict[str, dict[str, Any]], arch: str) -> None:
    shown = {item for found in lowered[arch]["lowered"] for item in found["config"].items()}
    for of in asked(arch):
        assert {(knob, of.config[knob]) for knob in KNOBS[arch]} <= shown
