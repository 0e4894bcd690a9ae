"""`runner accept` and what follows from it: best, history, rollback, reject, and the kernel loaded back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import command
from tests.command import ok
from tests.conftest import Finished, finish


@pytest.fixture
def copied(blocks: Finished, tmp_path: Path) -> Finished:
    """A store of its own for a test that changes it. Artifact paths are absolute in MLflow, so the folder is moved to."""
    folder = tmp_path / "copy"
    shutil.copytree(blocks.folder, folder)
    import sqlite3

    with sqlite3.connect(folder / "mlflow.db") as db:
        db.execute("UPDATE runs SET artifact_uri = replace(artifact_uri, ?, ?)", (str(blocks.folder), str(folder)))
        db.execute(
            "UPDATE experiments SET artifact_location = replace(artifact_location, ?, ?)", (str(blocks.folder), str(folder))
        )
    return Finished(folder, blocks.output, blocks.id)


def run_of(finished: Finished, block_n: int) -> str:
    return next(str(r["run_id"]) for r in finished.ranking() if r["block_N"] == block_n)


def accept(finished: Finished, run_id: str) -> subprocess.CompletedProcess[str]:
    return command.run("runner", "accept", run_id[:8], folder=finished.folder)


def test_the_winner_is_promoted_on_paired_evidence_and_loads_in_a_fresh_process(copied: Finished) -> None:
    winner = run_of(copied, 96)
    said = ok(accept(copied, winner))
    assert "paired speedup over the base" in said
    assert "clears 1" in said
    best = json.loads(ok(command.run("runner", "best", "--json", folder=copied.folder)))
    assert [b["run_id"] for b in best] == [winner]
    program = (
        "import torch, runner\n"
        "best = runner.load_best('gemm', M=192, N=192, K=192, dtype='float32')\n"
        "a, b = torch.randn(192, 192), torch.randn(192, 192)\n"
        "print(best.variant.config['block_N'], (best(a, b) - a @ b).abs().max().item() < 1e-3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copied.folder, env=command.clean_environment(), capture_output=True, text=True
    )
    assert done.stdout.split()[-2:] == ["96", "True"], done.stdout + done.stderr


def test_the_best_is_evaluated_in_pairs_with_its_baseline_and_two_runs_are_compared(copied: Finished) -> None:
    winner, slow = run_of(copied, 96), run_of(copied, 16)
    ok(accept(copied, winner))
    said = ok(
        command.run("runner", "evaluate", "--repeat", "20", "--sessions", "2", "--output-dir", "report", folder=copied.folder)
    )
    baseline, kernel = json.loads((copied.folder / "report/evaluation.json").read_text())
    assert baseline["name"] == "GEMM baseline (torch.mm)" and kernel["name"] == "TileLang GEMM"
    assert kernel["run_id"] == winner and (kernel["repeat"], kernel["sessions"]) == (20, 2) and kernel["tau"] is not None
    assert baseline["relative_error"] > 0 and baseline["max_abs_error"] is None, "it has an error of its own"
    assert kernel["speedup_low"] <= kernel["speedup_vs_baseline"] <= kernel["speedup_high"]
    assert baseline["latency_ms_median"] > 0 and baseline["speedup_vs_baseline"] is None
    text = (copied.folder / "report/evaluation.txt").read_text()
    assert "TileLang GEMM" in text and text.strip() in said
    header, *rows = (copied.folder / "report/evaluation.csv").read_text().splitlines()
    assert header.startswith("name,workload,device,latency_ms_median") and len(rows) == 2

    compared = json.loads(ok(command.run("runner", "compare", winner[:8], slow[:8], "--json", folder=copied.folder)))
    assert compared["config"] == {"block_N": [96, 16]} and compared["comparable"] == ""
    latency = next(m for m in compared["metrics"] if m["name"] == "latency_ms_median")
    assert latency["change"] == pytest.approx(latency["other"] / latency["one"] - 1) and latency["change"] > 0
    assert "-  float C_sum[" in compared["source"] and "+  float C_sum[" in compared["source"]
    shown = ok(command.run("runner", "compare", winner[:8], winner[:8], folder=copied.folder))
    assert "the configs are the same" in shown and "the generated source is the same" in shown


def test_a_slower_run_is_refused_with_the_verdicts_and_nothing_changes(copied: Finished) -> None:
    ok(accept(copied, run_of(copied, 96)))
    refused = accept(copied, run_of(copied, 16))
    assert refused.returncode == 1
    assert re.search(r"faster +fail", refused.stdout)
    assert "does not clear 1" in refused.stdout
    assert "would have shown" in refused.stdout
    assert len(json.loads(ok(command.run("runner", "history", "--json", folder=copied.folder)))) == 1


def test_a_run_against_itself_says_what_this_machine_can_tell(copied: Finished) -> None:
    said = ok(command.run("runner", "accept", run_of(copied, 96)[:8], "--self", folder=copied.folder))
    assert re.search(r"against itself: .* k=5 tau .* 250 pairs", said) and "this machine can tell a difference of" in said
    assert json.loads(ok(command.run("runner", "best", "--json", folder=copied.folder))) == []


def test_accepting_the_best_again_is_refused(copied: Finished) -> None:
    winner = run_of(copied, 96)
    ok(accept(copied, winner))
    again = accept(copied, winner)
    assert again.returncode == 1
    assert "the best already" in again.stderr


def test_history_shows_the_curve_and_rollback_moves_back(copied: Finished) -> None:
    base, winner = run_of(copied, 16), run_of(copied, 96)
    ok(accept(copied, base))
    ok(accept(copied, winner))
    lines = json.loads(ok(command.run("runner", "history", "--json", folder=copied.folder)))
    assert [line["run_id"] for line in lines] == [base, winner]
    assert lines[0]["latency_ms"] > lines[1]["latency_ms"]
    assert [line["decision"] for line in lines] == ["superseded", "accepted"]
    ok(command.run("runner", "rollback", folder=copied.folder))
    assert [b["run_id"] for b in json.loads(ok(command.run("runner", "best", "--json", folder=copied.folder)))] == [base]


def test_two_accepts_at_once_cannot_both_win(copied: Finished) -> None:
    both = [command.start("runner", "accept", run_of(copied, n)[:8], folder=copied.folder) for n in (48, 96)]
    outputs = [p.communicate(timeout=200)[0] for p in both]
    codes = [p.returncode for p in both]
    assert sorted(codes) == [0, 1], outputs
    loser = outputs[codes.index(1)]
    assert "Traceback" not in loser
    assert len(json.loads(ok(command.run("runner", "history", "--json", folder=copied.folder)))) == 1


def test_a_rejected_run_stays_in_the_record_with_its_reason(copied: Finished) -> None:
    run_id = run_of(copied, 48)
    ok(command.run("runner", "reject", run_id[:8], "--reason", "not on our cards", folder=copied.folder))
    assert "rejected by hand: not on our cards" in ok(command.run("runner", "show", run_id[:8], folder=copied.folder))


@pytest.mark.parametrize("prefix", ["ffffffffffff", "not-an-id"])
def test_a_run_that_is_not_there_is_one_line(blocks: Finished, prefix: str) -> None:
    done = command.run("runner", "accept", prefix, folder=blocks.folder)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert prefix in done.stderr


def test_a_run_of_another_protocol_is_refused(copied: Finished) -> None:
    """The best stands under more repeats than the run was measured with."""
    ok(accept(copied, run_of(copied, 16)))
    ok(command.run("sweep", "submit", "blocks.yaml", "--set", "measure.repeat=9", folder=copied.folder))
    listed = json.loads(ok(command.run("sweep", "list", "--json", folder=copied.folder)))
    other = Finished(copied.folder, "", listed[0]["id"])
    refused = accept(other, run_of(other, 96))
    assert refused.returncode == 1
    assert "measured under protocol v2/w1/r9, the best under v2/w1/r7" in refused.stderr


PLANTED = """
name: planted
kernel: tests.planted:FAMILY
workload: {M: 32, N: 64, K: 48, dtype: float32}
target: cpu
base: {behaviour: right, times: 3}
strategy: list
configs: [{behaviour: half_unless_poisoned, times: 1}, {behaviour: swallows_nan, times: 1}]
measure: {warmup: 2, repeat: 20, sessions: 2}
accept: {max_abs_error: null, mma: none, alone: none, max_spread: 9}
"""


def test_kernels_that_compute_half_or_hide_a_nan_are_refused_and_the_right_one_is_loaded(tmp_path: Path) -> None:
    """The first was accepted once, at 3.04 times the base with an error of 0: an old output stood for what it left out."""
    (tmp_path / "planted.yaml").write_text(PLANTED)
    finished = finish(tmp_path, "planted.yaml")
    assert re.search(
        r"wrong_result behaviour=half_unless_poisoned times=1: call \d+ of the timing loop, seed \d+: off by", finished.output
    )
    right, hides = (row(finished, behaviour) for behaviour in ("right", "swallows_nan"))
    assert hides["decision"] == "rejected" and "in the finals: before accepting, NaN and infinity, seed" in hides["reason"]
    refused = accept(finished, str(hides["run_id"]))
    assert refused.returncode == 1 and "refused" in refused.stderr
    assert right["decision"] == "candidate"
    said = ok(accept(finished, str(right["run_id"])))
    assert "1,000 of 1,000 outputs are the first one's" in said
    program = (
        "import torch, runner\n"
        "best = runner.load_best('tests.planted:FAMILY', M=32, N=64, K=48, dtype='float32')\n"
        "for seed in range(3):\n"
        "    a, b = torch.randn(32, 48), torch.randn(48, 64)\n"
        "    print((best(a, b) - a @ b).abs().max().item() < 1e-4)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=command.clean_environment(), capture_output=True, text=True
    )
    assert done.stdout.split()[-3:] == 3 * ["True"], done.stdout + done.stderr


def row(finished: Finished, behaviour: str) -> dict[str, Any]:
    return next(r for r in finished.ranking() if r["behaviour"] == behaviour)
