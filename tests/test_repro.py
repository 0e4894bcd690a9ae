"""`runner repro`: one variant again, alone, with everything it prints, for a failed one as for a good one."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests import command
from tests.command import ok, sweep_file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with a variant that is measured and one that does not compile."""
    found = tmp_path_factory.mktemp("repro")
    path = sweep_file(found, block_n="[16]")
    path.write_text(path.read_text().replace("sweep:\n", "sweep:\n  pass.tl.no_such_config: [null, true]\n"))
    ok(command.run("sweep", "submit", str(path), folder=found))
    return found


def run_of(folder: Path, status: str) -> str:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return next(str(r.info.run_id) for r in runs if r.data.tags.get("status") == status)


def test_a_measured_variant_is_measured_again_and_compared(folder: Path) -> None:
    said = ok(command.run("runner", "repro", run_of(folder, "measured")[:8], folder=folder))
    then, now = (next(line for line in said.splitlines() if line.startswith(word)) for word in ("then:", "now:"))
    assert "measured, median" in then
    assert "measured, median" in now


def test_a_failed_variant_fails_again_with_all_that_the_compiler_said(folder: Path) -> None:
    said = ok(command.run("runner", "repro", run_of(folder, "compile_error")[:8], folder=folder))
    assert "--- the build printed:" in said
    assert "now:  compile_error" in said
    assert "no_such_config" in said
