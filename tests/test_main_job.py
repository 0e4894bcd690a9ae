"""The main job, as a newcomer types it: submit, look, submit again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests import command
from tests.command import ok, sweep_file
from tests.conftest import Finished, finish


def runs_of(folder: Path) -> list:
    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    ids = [e.experiment_id for e in client.search_experiments()]
    return [r for r in client.search_runs(ids) if r.data.tags.get("variant_id")]


def test_the_main_job_ends_with_a_ranked_table_and_the_line_to_type_next(interleave: Finished) -> None:
    output = interleave.output
    assert "note: on cpu: M 131072 -> 512" in output, "what the target changed is said aloud"
    for width in (1, 2, 4, 8, 16):
        assert f"b_interleave={width}" in output
    assert "x torch.mm" in output
    assert "in MLflow: mlflow ui" in output
    candidate = next(r for r in interleave.ranking() if r["decision"] == "candidate")
    assert f"runner accept {candidate['run_id'][:8]}" in output


def test_no_temporary_file_of_it_stays(interleave: Finished) -> None:
    assert [path.name for path in (interleave.folder / "tmp").iterdir()] == []


def test_every_variant_is_in_mlflow_with_what_an_engineer_looks_for(interleave: Finished) -> None:
    found = runs_of(interleave.folder)
    assert {r.data.params["b_interleave"] for r in found} == {"1", "2", "4", "8", "16"}
    for run in found:
        metrics, tags, params = run.data.metrics, run.data.tags, run.data.params
        assert run.info.status == "FINISHED"
        for name in ("latency_ms_median", "latency_ms_p20", "latency_ms_p80", "latency_ms_min", "tflops", "max_abs_error",
                     "speedup_vs_baseline", "baseline_latency_ms_median", "compile_seconds", "prepack_ms"):  # fmt: skip
            assert name in metrics, name
        assert "mma_count" not in metrics, "a target without a matrix instruction has no count, not a zero"
        assert params["M"] == params["N"] == params["K"] == "512"
        assert params["dtype"] == "float32"
        assert tags["status"] == "measured"
        assert tags["decision"] in ("candidate", "beaten", "unproven", "rejected")
        assert tags["reason"] and tags["device"] and tags["protocol"] == "v2/w2/r10"
        assert len(tags["mlflow.note.content"].splitlines()) == 2


def test_a_run_keeps_its_source_its_samples_and_its_verdicts(interleave: Finished) -> None:
    run_id = interleave.ranking()[0]["run_id"]
    said = ok(command.run("runner", "show", run_id[:8], folder=interleave.folder))
    for rule in ("correct", "accurate", "deterministic", "mma", "plausible", "stable", "alone", "faster"):
        assert rule in said
    assert "not applicable" in said, "no matrix instruction on a CPU: neither passed nor failed"
    source = ok(command.run("runner", "show", run_id[:8], "--source", folder=interleave.folder))
    assert "gemm_kernel" in source
    stored = json.loads(ok(command.run("runner", "show", run_id[:8], "--json", folder=interleave.folder)))
    assert len(stored["outcome"]["measurement"]["samples_ms"]) == 10
    seeds = {c["seed"] for c in stored["outcome"]["measurement"]["checks"]}
    assert len(seeds) == 2


def test_submitting_the_same_file_again_measures_nothing_and_says_so(interleave: Finished) -> None:
    before = len(runs_of(interleave.folder))
    said = ok(command.run("sweep", "submit", "sweeps/interleave.yaml", "--target", "cpu", folder=interleave.folder))
    assert "nothing was started" in said
    assert "from before" in said
    assert len(runs_of(interleave.folder)) == before


def test_plan_tells_what_is_known_and_starts_nothing(interleave: Finished) -> None:
    said = ok(command.run("sweep", "plan", "sweeps/interleave.yaml", "--target", "cpu", folder=interleave.folder))
    assert "0 to measure, 5 known, 0 pruned" in said
    for_maca = ok(command.run("sweep", "plan", "sweeps/interleave.yaml", "--target", "maca", folder=interleave.folder))
    assert "131072x2048x7168" in for_maca
    assert "5 to measure" in for_maca


def test_one_more_value_measures_one_more_variant_and_one_that_cannot_run_is_pruned(blocks: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    shutil.copytree(blocks.folder, folder)
    before = {r.data.params["block_N"] for r in runs_of(folder)}
    again = finish(folder, str(sweep_file(folder, block_n="[16, 48, 96, 80, 1048576]")))
    assert again.id != blocks.id
    found = {r.data.params["block_N"]: r.data.tags for r in runs_of(folder)}
    assert found.keys() - before == {"80", "1048576"}
    assert found["80"]["status"] == "measured"
    assert found["1048576"]["status"] == "pruned" and "stack for the tiles needs" in found["1048576"]["reason"]
    assert len(runs_of(folder)) == len(before) + 2
    reused = {r["block_N"]: r["reused"] for r in again.ranking()}
    assert reused == {16: True, 48: True, 96: True, 80: False}


@pytest.mark.parametrize("change", ["measure.repeat=8", "base.pass.tl.disable_safe_memory_legalize=true", "workload.M=208"])
def test_what_a_measurement_depends_on_makes_it_another(interleave: Finished, change: str) -> None:
    said = ok(
        command.run("sweep", "plan", "sweeps/interleave.yaml", "--target", "cpu", "--set", change, folder=interleave.folder)
    )
    assert "5 to measure, 0 known" in said


def test_a_variant_that_does_not_compile_costs_only_itself_and_is_recorded(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, block_n="[16, 48]")
    path.write_text(path.read_text().replace("sweep:\n", "sweep:\n  pass.tl.no_such_config: [null, true]\n"))
    path.write_text(path.read_text() + 'where: ["block_N * block_K < 1000 or block_N == 48"]\n')
    finished = finish(tmp_path, str(path))
    statuses = sorted(r.data.tags["status"] for r in runs_of(tmp_path))
    assert statuses == ["compile_error", "compile_error", "measured", "measured"]
    assert "not measured, 2:" in finished.output
    assert "no_such_config" in finished.output, "the compiler's reason, in one line"
    failed = next(r for r in runs_of(tmp_path) if r.data.tags["status"] == "compile_error")
    assert "latency_ms_median" not in failed.data.metrics
    assert failed.info.status == "FAILED"


def test_a_sweep_in_which_nothing_was_measured_ends_with_one(tmp_path: Path) -> None:
    path = sweep_file(tmp_path, block_n="[16]")
    path.write_text(path.read_text().replace("block_K: 16", "block_K: 16, pass.tl.no_such_config: true"))
    done = command.run("sweep", "submit", str(path), folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "nothing could be measured" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_is_not_there_is_one_line_and_nothing_starts(tmp_path: Path) -> None:
    done = command.run("sweep", "submit", str(sweep_file(tmp_path)), folder=tmp_path, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "127.0.0.1:9" in done.stderr
    assert "building" not in done.stdout


@pytest.mark.parametrize(
    ("edit", "line", "hint"),
    [
        (("block_N: [", "blok_N: ["), 8, "block_N"),
        (("kernel: gemm", "kernel: gem"), 3, "gemm"),
        (("target: cpu", "target: cuba"), 5, "cuda"),
        (("[16, 48, 96]", "[]"), 8, "value"),
        (("repeat: 7", "repeat: seven"), 9, "repeat"),
    ],
)
def test_bad_input_is_one_line_with_file_line_and_fix_and_nothing_starts(
    tmp_path: Path, edit: tuple[str, str], line: int, hint: str
) -> None:
    path = sweep_file(tmp_path)
    path.write_text(path.read_text().replace(*edit))
    done = command.run("sweep", "submit", path.name, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert f"{path.name}:{line}: " in done.stderr
    assert hint in done.stderr
    assert not (tmp_path / "mlflow.db").exists()
