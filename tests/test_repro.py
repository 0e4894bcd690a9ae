"""`runner repro`: one variant again, alone, with everything it prints, for a failed one as for a good one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from runner.build import BuildJob, build
from runner.executors.base import measure_child, run_measure
from runner.jobs.requests import ProveJob
from runner.repro import checker_faults
from runner.targets.base import backend
from tests import command
from tests.command import ok, sweep_file
from tests.workbench import variant

REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at gemm_kernel+0x3f0 in device_kernel.cu:41
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x10 is out of bounds
========= ERROR SUMMARY: 1 error
"""
"""In the words of compute-sanitizer 2025.3."""


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


def test_sanitize_where_there_is_no_memory_checker_says_so(folder: Path) -> None:
    done = command.run("runner", "repro", run_of(folder, "measured")[:8], "--sanitize", folder=folder)
    assert done.returncode == 2
    assert "--sanitize needs compute-sanitizer on the PATH and an NVIDIA card; this run is of cpu" in done.stderr


def test_what_a_memory_checker_reports_is_one_line_for_each_fault() -> None:
    assert checker_faults(REPORT) == ["Invalid __global__ write of size 4 bytes at gemm_kernel+0x3f0 in device_kernel.cu:41"]
    assert checker_faults("========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n") == []


def test_a_child_runs_under_another_command(tmp_path: Path) -> None:
    log, tool = tmp_path / "log", tmp_path / "checker"
    tool.write_text('#!/bin/sh\nshift\necho "========= COMPUTE-SANITIZER" > "$1"\nshift\n"$@"\n')
    tool.chmod(0o755)
    child = measure_child(backend("cpu").devices()[0], (str(tool), "--log-file", str(log)))
    try:
        assert child.run(os.getpid, deadline=60) != os.getpid()
    finally:
        child.close()
    assert log.read_text() == "========= COMPUTE-SANITIZER\n"


@pytest.mark.gpu
@pytest.mark.skipif(not backend("cuda").devices(), reason="needs an NVIDIA GPU: none is listed by nvidia-smi")
def test_the_real_memory_checker_names_a_stray_write(tmp_path: Path) -> None:
    device, log = backend("cuda").devices()[0], tmp_path / "log"
    stray = variant("tests.broken_cuda_families:STRAY", {"M": 64, "N": 64}, kind="cuda", after=0)
    artifact = build(BuildJob(stray))
    child = measure_child(device, backend("cuda").memory_checker(log))
    try:
        run_measure(child, ProveJob(stray, artifact, device, launches=0), 300)
    finally:
        child.close()
    assert any("write of size 4" in fault for fault in checker_faults(log.read_text()))
