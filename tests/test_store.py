"""What the store promises: everything comes back, once, whole, and a fault is one line."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.errors import InfrastructureLost, NotFound, RequestError, Unreadable
from runner.records import SCHEMA, TIMED, UNSETTLED, Decision, Outcome, RankedRow, Ruling, Status, SweepInfo, Try, Verdict
from tests import outcomes as make
from tests.servers import free_port, local_folder, mlflow_server, running
from tracking import layout, queries
from tracking.report.closing import ending
from tracking.store import Store

__all__ = ["local_folder", "mlflow_server"]

ROOT = Path(__file__).parent.parent


@pytest.fixture
def local(local_folder: Path) -> Store:
    return Store()


@pytest.fixture(params=["sqlite", "server"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "sqlite":
        return request.getfixturevalue("local")
    return Store(request.getfixturevalue("mlflow_server"))


@pytest.fixture
def info() -> SweepInfo:
    """A sweep on a device model that no other test uses: on a shared server, an experiment of its own."""
    return make.sweep(id=uuid.uuid4().hex[:8], device=dataclasses.replace(make.DEVICE, model=f"H200 {uuid.uuid4().hex[:6]}"))


def without_blob(outcome: Outcome) -> Outcome:
    return (
        outcome
        if outcome.artifact is None
        else dataclasses.replace(outcome, artifact=dataclasses.replace(outcome.artifact, blob=b""))
    )


def write(store: Store, info: SweepInfo, *outcomes: Outcome) -> list[str]:
    parent = store.open_sweep(info, len(outcomes))
    return [store.write(parent, info, o, make.FLOPS) for o in outcomes]


def artifact_path(store: Store, run_id: str, name: str) -> Path:
    return Path(store.client.get_run(run_id).info.artifact_uri, name)


def test_an_outcome_of_every_status_comes_back_as_it_was(store: Store, info: SweepInfo) -> None:
    written = [make.outcome(status, config={"b_interleave": i}) for i, status in enumerate(Status)]
    for run_id, outcome in zip(write(store, info, *written), written):
        stored = Store(store.uri).load(run_id)
        assert stored.outcome == without_blob(outcome)
        assert (stored.sweep_id, stored.sweep_name, stored.device_model) == (info.id, info.name, info.device.model)
        assert (stored.acceptance, stored.swept, stored.decision) == (info.acceptance, info.swept, outcome.decision)
        expected = "KILLED" if outcome.status in UNSETTLED else "FINISHED" if outcome.failure is None else "FAILED"
        assert store.client.get_run(run_id).info.status == expected


def test_a_run_is_filled_as_its_reader_expects(local: Store, info: SweepInfo) -> None:
    run = local.client.get_run(write(local, info, make.outcome(latency_ms=2.0, is_base=True))[0])
    assert run.info.run_name == "b_interleave=4"
    assert run.data.params == {
        **{"M": "512", "N": "256", "K": "128", "dtype": "float16", "block_M": "128", "threads": "256", "swizzle": "true"},
        **{"split_k": "null", "b_interleave": "4", "pass.tl.enable_fast_math": "true", "env.TILELANG_MACA_GEMM_K_PACK": "2"},
    }
    metrics = run.data.metrics
    assert (metrics["latency_ms_median"], metrics["latency_ms_min"]) == (2.0, 1.96)
    assert metrics["latency_ms_p20"] < 2.0 < metrics["latency_ms_p80"]
    assert metrics["tflops"] == pytest.approx(make.FLOPS / 2e-3 / 1e12)
    assert metrics["peak_fraction"] == pytest.approx(metrics["tflops"] / 989)
    assert (metrics["baseline_latency_ms_median"], metrics["speedup_vs_baseline"]) == (1.5, 0.75)
    assert (metrics["relative_error"], metrics["baseline_relative_error"]) == (2.1e-4, 2.07e-4)
    assert metrics["equal_share"] == 1.0
    assert (metrics["max_abs_error"], metrics["mma_count"], metrics["registers"], metrics["spill_bytes"]) == (0, 1, 168, 0)
    tags = run.data.tags
    assert tags["baseline_form"] == "plain"
    assert (tags["base"], tags["target"], tags["host"], tags["source_hash"]) == ("true", "cuda sm_90a", "node-7", "5eed")
    assert (tags["version.nvcc"], tags["version.driver"], tags["protocol"]) == ("12.8", "570.1", "v2/w10/r50")
    tried, came = tags["mlflow.note.content"].split("\n")
    assert "b_interleave=4" in tried and info.question in tried
    assert "2 ms" in came and "0.750x torch.mm" in came and "candidate: every rule passed" in came


@pytest.mark.parametrize("status", sorted(set(Status) - TIMED, key=str))
def test_what_was_not_timed_has_no_latency_at_all(local: Store, info: SweepInfo, status: Status) -> None:
    metrics = local.client.get_run(write(local, info, make.outcome(status))[0]).data.metrics
    assert not [name for name in metrics if "latency" in name or name in ("tflops", "max_abs_error", "speedup_vs_baseline")]


def test_a_number_that_is_not_known_is_absent(local: Store, info: SweepInfo) -> None:
    of = make.variant()
    device = dataclasses.replace(make.DEVICE, peak_tflops={})
    cpu_like = make.artifact(of, mma_count=None, resources={})
    nothing_beside = {"reference_ms": (), "accuracy": None, "baseline_accuracy": None, "calls": 0, "equal": 0}
    measured = dataclasses.replace(make.measurement(device=device, error=math.inf), **nothing_beside)
    parent = local.open_sweep(info, 1)
    run_id = local.write(parent, info, make.outcome(artifact=cpu_like, measurement=measured, baseline=None))
    metrics = local.client.get_run(run_id).data.metrics
    unknown = {
        "tflops",
        "peak_fraction",
        "mma_count",
        "registers",
        "max_abs_error",
        "relative_error",
        "baseline_relative_error",
        "equal_share",
        "speedup_vs_baseline",
        "baseline_latency_ms_median",
    }
    assert not unknown & set(metrics)
    assert all(math.isfinite(v) for v in metrics.values())
    assert local.load(run_id).outcome.measurement == measured


def test_the_artifacts_are_there_and_named_for_the_viewer(store: Store, info: SweepInfo) -> None:
    timed, failed = write(store, info, make.outcome(), make.outcome(Status.COMPILE_ERROR, config={"threads": 512}))

    def names(run_id: str, folder: str | None = None) -> set[str]:
        return {f.path for f in store.client.list_artifacts(run_id, folder)}

    everywhere = {"outcome.json", "verdicts.json", "config.json"}
    assert names(timed) == everywhere | {"samples.json", "build.log", "kernel"}
    assert names(timed, "kernel") == {"kernel/kernel.cu.txt", "kernel/artifact.bin"}
    assert names(failed) == everywhere | {"error.txt"}


def test_more_knobs_than_one_request_may_hold(store: Store, info: SweepInfo) -> None:
    config = {f"knob_{i}": i for i in range(250)}
    (run_id,) = write(store, info, make.outcome(config=config))
    assert config.items() <= store.load(run_id).outcome.variant.config.items()
    assert len(store.client.get_run(run_id).data.params) == 250 + 11


def test_a_long_reason_is_cut_where_one_can_see_it_and_kept_whole_in_the_outcome(local: Store, info: SweepInfo) -> None:
    reason = "x" * 9000
    (run_id,) = write(local, info, make.outcome(reason=reason))
    tag = local.client.get_run(run_id).data.tags["reason"]
    assert len(tag) == layout.MAX_TAG and tag.endswith("…")
    assert local.load(run_id).outcome.reason == reason


def test_the_same_attempt_is_written_once_and_another_attempt_again(store: Store, info: SweepInfo) -> None:
    parent = store.open_sweep(info, 1)
    first = store.write(parent, info, make.outcome(Status.LOST))
    assert store.write(parent, info, make.outcome(Status.LOST)) == first
    again = Store(store.uri)
    assert again.open_sweep(info, 1) == parent
    assert again.write(parent, info, make.outcome(Status.LOST)) == first
    assert again.write(parent, info, make.outcome(attempt=2)) != first
    assert len(store.outcomes(store.find_sweep(info.id))) == 2


DIES_WRITING = """
import os, sys
sys.path[:0] = {path!r}
from tests import outcomes as make
from runner.records import *
from tracking import connection
from tracking.store import Store
store = Store({uri!r})
info = make.sweep(id={sweep!r})
parent = store.open_sweep(info, 2)
store.write(parent, info, make.outcome(config={{"threads": 128}}))
connection.{step} = lambda *a, **k: os._exit(9)
store.write(parent, info, make.outcome())
"""


@pytest.mark.parametrize("step", ["upload", "log"])
def test_what_a_killed_driver_left_half_written_is_not_seen_and_is_written_anew(local: Store, step: str) -> None:
    info, half, whole = make.sweep(), make.variant(), make.variant(threads=128)
    code = DIES_WRITING.format(path=[str(ROOT)], uri=local.uri, sweep=info.id, step=step)
    assert subprocess.run([sys.executable, "-c", code], cwd=Path.cwd()).returncode == 9
    experiment = local.client.get_experiment_by_name(layout.experiment_name(info.workload, info.device.model))
    unfinished = local.client.search_runs([experiment.experiment_id], f"tags.variant_id = '{half.id}'")
    assert [r.info.status for r in unfinished] == ["RUNNING"]

    assert set(local.known(info.workload, info.device.model, [half.id, whole.id])) == {whole.id}
    with pytest.raises(NotFound):
        local.find(half.id)
    parent = local.open_sweep(info, 2)
    run_id = local.write(parent, info, make.outcome())
    assert run_id != unfinished[0].info.run_id
    assert local.find(half.id).run_id == run_id
    assert local.client.get_run(unfinished[0].info.run_id).info.lifecycle_stage == "deleted"
    assert local.client.get_run(unfinished[0].info.run_id).info.status == "KILLED"


def test_reap_removes_the_unfinished_runs_of_that_sweep_only(local: Store, info: SweepInfo) -> None:
    parent = local.open_sweep(info, 1)
    whole = local.write(parent, info, make.outcome())
    experiment = local.load(whole).experiment_id
    tags = {"kind": "variant", "mlflow.parentRunId": parent}
    mine = local.client.create_run(experiment, tags={**tags, "sweep_id": info.id}).info.run_id
    other = local.client.create_run(experiment, tags={**tags, "sweep_id": "0ther"}).info.run_id
    assert (local.reap(info.id), local.reap(info.id)) == (1, 0)
    stages = {run: local.client.get_run(run).info.lifecycle_stage for run in (whole, mine, other)}
    assert stages == {whole: "active", mine: "deleted", other: "active"}


def test_a_writer_that_fails_leaves_nothing_to_be_seen(local: Store, info: SweepInfo, tmp_path: Path) -> None:
    parent = local.open_sweep(info, 1)
    artifacts = Path(local.client.get_run(parent).info.artifact_uri).parents[1]
    artifacts.rename(tmp_path / "moved")
    artifacts.write_text("a file where the folder was")
    with pytest.raises(InfrastructureLost) as lost:
        local.write(parent, info, make.outcome())
    assert "\n" not in str(lost.value)
    assert local.known(info.workload, info.device.model, [make.variant().id]) == {}
    artifacts.unlink()
    (tmp_path / "moved").rename(artifacts)
    run_id = local.write(parent, info, make.outcome())
    assert local.find(make.variant().id).run_id == run_id


@pytest.mark.parametrize("few", [0, 100], ids=["many asked for", "few asked for"])
def test_known_gives_the_latest_settled_outcome_of_each_variant_however_many_pages(
    store: Store, info: SweepInfo, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "FEW", few)
    later = dataclasses.replace(info, id=uuid.uuid4().hex[:8])
    statuses = [Status.MEASURED, Status.COMPILE_ERROR, Status.PRUNED, Status.LOST, Status.CANCELLED]
    first = [make.outcome(status, config={"b_interleave": i}) for i, status in enumerate(statuses)]
    write(store, info, *first)
    second = write(
        store, later, make.outcome(Status.HANG, config={"b_interleave": 0}), make.outcome(Status.LOST, config={"b_interleave": 1})
    )
    reader = Store(store.uri, page_size=2)
    ids = [o.variant.id for o in first]
    known = reader.known(info.workload, info.device.model, [*ids, "feedfeedfeed"])
    assert {id: s.outcome.status for id, s in known.items()} == {
        ids[0]: Status.HANG,
        ids[1]: Status.COMPILE_ERROR,
        ids[2]: Status.PRUNED,
    }
    assert known[ids[0]].run_id == second[0]
    assert set(reader.known(info.workload, info.device.model, ids[1:2])) == {ids[1]}
    assert reader.known(info.workload, "another device", ids) == {}


def test_known_does_not_give_what_was_deleted(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, make.outcome())
    local.client.delete_run(run_id)
    assert local.known(info.workload, info.device.model, [make.variant().id]) == {}


def test_a_run_is_found_by_any_unique_prefix_of_its_run_or_variant_id(store: Store, info: SweepInfo) -> None:
    of = make.outcome(config={"b_interleave": uuid.uuid4().int % 10**9})
    (run_id,) = write(store, info, of)
    for prefix in (run_id, run_id[:16], of.variant.id, of.variant.id[:10]):
        assert store.find(prefix).run_id == run_id


def test_an_ambiguous_prefix_is_answered_with_what_it_could_mean(local: Store, info: SweepInfo) -> None:
    ids = write(local, info, *(make.outcome(config={"b_interleave": i}) for i in range(20)))
    digit = Counter(i[0] for i in ids).most_common(1)[0][0]  # twenty ids, sixteen digits: two share their first
    same = [i for i in ids if i.startswith(digit)]
    with pytest.raises(NotFound) as several:
        local.find(digit)
    message = str(several.value)
    assert info.name in message and "b_interleave=" in message and "20" in message
    assert sum(run[:12] in message for run in same) >= 2


def test_a_variant_that_was_run_again_is_found_as_its_newest_settled_run(local: Store, info: SweepInfo) -> None:
    attempts = write(local, info, make.outcome(Status.LOST), make.outcome(attempt=2), make.outcome(Status.CANCELLED, attempt=3))
    assert local.find(make.variant().id[:8]).run_id == attempts[1]


def test_what_is_no_variant_is_not_found(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, make.outcome())
    parent = local.load(run_id).parent_run_id
    local.client.delete_run(run_id)
    for wrong in (parent, run_id, run_id[:10], "", "%", "_" * 32, "best"):
        with pytest.raises(NotFound):
            local.find(wrong)
    for wrong in (parent, run_id, "nonsense"):
        with pytest.raises(NotFound):
            local.load(wrong)


def test_an_empty_store_has_nothing(local: Store) -> None:
    assert local.sweeps() == []
    with pytest.raises(NotFound):
        local.find("ab")
    with pytest.raises(NotFound):
        local.find_sweep("ab")


def test_refused_tries_are_kept_in_order_and_counted(store: Store, info: SweepInfo) -> None:
    (run_id,) = write(store, info, make.outcome())
    assert store.tries(run_id) == []
    tries = [Try("0" * 12, "v2/w10/r50", "H200", why, "2026-01-02T03:04:05+00:00", (make.session(),)) for why in "ab"]
    for number, tried in enumerate(tries, 1):
        store.add_try(run_id, tried)
        assert store.tries(run_id) == tries[:number]
        assert store.client.get_run(run_id).data.tags["refused_accepts"] == str(number)
    assert store.load(run_id).outcome == without_blob(make.outcome()), "it says nothing else of the run"


def test_a_decision_is_amended_with_its_evidence(store: Store, info: SweepInfo) -> None:
    outcome = make.outcome()
    (run_id,) = write(store, info, outcome)
    verdicts = (Verdict("faster", Ruling.FAIL, "1.01x [0.99, 1.03] does not clear 1.02"),)
    store.amend(run_id, Decision.BEATEN, "not faster", verdicts, make.paired(outcome, 1.01), drift=0.04)
    after, run = store.load(run_id), store.client.get_run(run_id)
    assert (after.decision, after.outcome.decision, after.outcome.reason) == (Decision.BEATEN, Decision.BEATEN, "not faster")
    assert after.paired == make.paired(outcome, 1.01), "a later sweep goes by it where the reference is the same"
    assert (run.data.metrics["paired_sessions"], run.data.metrics["paired_tau"]) == (3, 0.003)
    assert (after.outcome.verdicts, after.outcome.measurement) == (verdicts, outcome.measurement)
    assert run.data.metrics["paired_speedup"] == 1.01
    assert run.data.metrics["paired_speedup_low"] < 1.01 < run.data.metrics["paired_speedup_high"]
    assert run.data.metrics["baseline_drift"] == 0.04
    assert "beaten: not faster" in run.data.tags["mlflow.note.content"]
    assert "paired.json" in {f.path for f in store.client.list_artifacts(run_id)}
    assert run.info.status == "FINISHED"


def test_the_binary_comes_back_byte_for_byte(store: Store, info: SweepInfo) -> None:
    (run_id,) = write(store, info, make.outcome())
    assert store.artifact_blob(run_id) == make.BLOB


def test_a_binary_that_was_changed_or_is_gone_is_refused(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, make.outcome())
    path = artifact_path(local, run_id, layout.BLOB)
    path.write_bytes(make.BLOB[:-1])
    with pytest.raises(InfrastructureLost, match="changed or cut short"):
        local.artifact_blob(run_id)
    path.unlink()
    with pytest.raises(InfrastructureLost, match="is gone"):
        local.artifact_blob(run_id)


def test_what_was_never_timed_has_no_binary(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, make.outcome(Status.HANG))
    with pytest.raises(RequestError, match="'hang'"):
        local.artifact_blob(run_id)


def test_a_closed_sweep_has_its_table_chart_and_counts_and_closing_again_replaces_them(
    store: Store, info: SweepInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = (
        make.outcome(latency_ms=1.0),
        make.outcome(latency_ms=2.0, config={"b_interleave": 8}, decision=Decision.REJECTED),
    )
    ids = write(store, info, fast, slow)
    rows = [RankedRow(ids[0], fast, paired=make.paired(fast)), RankedRow(ids[1], slow, reused=True)]
    parent = store.load(ids[0]).parent_run_id
    failures = {"compile_error: no available layout found": 12, "hang": 1}
    store.close_sweep(parent, info, ending(info, rows[:1], {}, "cancelled", "KILLED"))
    store.close_sweep(parent, info, ending(info, rows, failures, "b_interleave=4 is best", flops=make.FLOPS))

    run = store.client.get_run(parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)  # `load_table` asks the environment, whatever client it is called on
    table = store.client.load_table(run.info.experiment_id, "ranking.json", [parent])
    assert list(table["b_interleave"]) == [4, 8] and list(table["latency_ms"]) == [1.0, 2.0]
    assert list(table["run_id"]) == ids and list(table["reused"]) == [False, True]
    sweep = store.find_sweep(info.id[:6])
    assert [line["run_id"] for line in store.ranking(sweep)] == ids
    assert sweep.counts == {"measured": 2, "compile_error": 12, "hang": 1}
    assert (sweep.status, sweep.best_latency_ms, sweep.best_speedup) == ("FINISHED", 1.0, 1.5)
    assert run.data.tags["failures"] == "12 compile_error: no available layout found, 1 hang"
    note = run.data.tags["mlflow.note.content"]
    assert info.question in note and "b_interleave=4 is best" in note and "cancelled" not in note
    assert {"chart.png", "ranking.json", "failures.json", "summary.txt", "sweep.yaml"} <= {
        f.path for f in store.client.list_artifacts(parent)
    }


def test_a_chart_is_a_picture_even_of_very_many_variants(info: SweepInfo) -> None:
    from tracking.report.chart import MOST_BARS, latency_chart

    rows = [RankedRow("run", make.outcome(latency_ms=1 + i / 10, config={"b_interleave": i})) for i in range(2 * MOST_BARS)]
    few, many = latency_chart(info, rows[:3]), latency_chart(info, rows)
    assert few.startswith(b"\x89PNG") and many.startswith(b"\x89PNG")
    height = int.from_bytes(many[20:24], "big")
    assert int.from_bytes(few[20:24], "big") < height < 2000


def test_sweeps_are_listed_newest_first_with_what_was_asked(store: Store, info: SweepInfo) -> None:
    later = dataclasses.replace(info, id=uuid.uuid4().hex[:8], name="later")
    store.open_sweep(info, 3)
    store.open_sweep(later, 5)
    listed = [s for s in store.sweeps() if s.device_model == info.device.model]
    assert [(s.id, s.name, s.planned, s.status) for s in listed] == [
        (later.id, "later", 5, "RUNNING"),
        (info.id, info.name, 3, "RUNNING"),
    ]
    assert store.sweep_info(listed[1]) == info
    assert store.ranking(listed[0]) == []
    assert len(store.sweeps(limit=1)) == 1


def test_what_a_newer_version_adds_to_its_records_is_passed_over(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, outcome := make.outcome())
    sweep, run = local.find_sweep(info.id), local.client.get_run(run_id)
    for name in (layout.OUTCOME_JSON, layout.SWEEP_JSON):
        path = artifact_path(local, run_id if name == layout.OUTCOME_JSON else sweep.run_id, name)
        data = json.loads(path.read_text())
        assert data["schema"] == SCHEMA
        path.write_text(json.dumps({**data, "schema": SCHEMA + 1, "added_later": 1}))
    acceptance = json.loads(run.data.tags[layout.ACCEPTANCE])
    local.client.set_tag(run_id, layout.ACCEPTANCE, json.dumps({**acceptance, "min_sessions": 3}))
    assert local.load(run_id).outcome == without_blob(outcome) and local.load(run_id).acceptance == info.acceptance
    local.decide(run_id, Decision.SUPERSEDED)
    rewritten = json.loads(artifact_path(local, run_id, layout.OUTCOME_JSON).read_text())
    assert (rewritten["decision"], rewritten["schema"], rewritten["added_later"]) == ("superseded", SCHEMA + 1, 1), "and kept"
    assert local.sweep_info(sweep) == info


Damage = Callable[[Store, str], object]


def _changed(**changes: object) -> Damage:
    def damage(store: Store, run_id: str) -> None:
        path = artifact_path(store, run_id, layout.OUTCOME_JSON)
        path.write_text(json.dumps({**json.loads(path.read_text()), "schema": SCHEMA + 1, **changes}))

    return damage


UNREADABLE: dict[str, tuple[Damage, str]] = {
    "decision": (_changed(decision="retired"), f"its schema is {SCHEMA + 1}, this version reads {SCHEMA}; .*'retired'"),
    "field": (_changed(variant={}), "Variant lacks code, config"),
    "tag": (lambda store, run_id: store.client.set_tag(run_id, layout.DECISION, "retired"), "'retired'"),
    "no JSON": (
        lambda store, run_id: artifact_path(store, run_id, layout.OUTCOME_JSON).write_text("{") and None,
        "names no schema",
    ),
}


@pytest.mark.parametrize("damage, why", UNREADABLE.values(), ids=UNREADABLE)
def test_a_record_of_another_version_costs_one_line_and_only_itself(
    local_folder: Path, info: SweepInfo, damage: Damage, why: str
) -> None:
    said: list[str] = []
    store = Store(say=said.append)
    good, other = make.outcome(config={"b_interleave": 1}), make.outcome(config={"b_interleave": 2})
    kept, changed = write(store, info, good, other)
    damage(store, changed)
    with pytest.raises(Unreadable, match=f"^run {changed[:12]} cannot be read: .*{why}") as raised:
        store.load(changed)
    assert "\n" not in str(raised.value)
    assert [s.run_id for s in store.outcomes(store.find_sweep(info.id))] == [kept]
    assert list(store.known(info.workload, info.device.model, [good.variant.id, other.variant.id])) == [good.variant.id]
    assert said == [f"left out: {raised.value}"] * 2


def test_a_status_that_only_a_newer_version_has_is_measured_again(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, outcome := make.outcome())
    local.client.set_tag(run_id, layout.STATUS, "measured by ear")
    assert local.known(info.workload, info.device.model, [outcome.variant.id]) == {}


def test_a_sweep_of_another_version_is_left_out_of_the_list_in_one_line(local_folder: Path, info: SweepInfo) -> None:
    said: list[str] = []
    store = Store(say=said.append)
    parent = store.open_sweep(info, 3)
    later = dataclasses.replace(info, id=uuid.uuid4().hex[:8])
    store.open_sweep(later, 3)
    store.client.delete_tag(parent, layout.PLANNED)
    assert [s.id for s in store.sweeps()] == [later.id]
    (line,) = said
    assert line.startswith(f"left out: run {parent[:12]}, ") and "'planned' is missing" in line
    with pytest.raises(Unreadable, match="'planned' is missing"):
        store.find_sweep(info.id)


def test_a_deleted_experiment_is_said_with_the_way_back(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, make.outcome())
    local.client.delete_experiment(local.load(run_id).experiment_id)
    with pytest.raises(RequestError, match="mlflow experiments restore"):
        Store().open_sweep(info, 1)


def test_the_check_leaves_nothing_to_be_seen(store: Store) -> None:
    def visible() -> tuple[set[str], int]:
        experiments = list(store.client.search_experiments())
        return {e.name for e in experiments}, len(store.client.search_runs([e.experiment_id for e in experiments]))

    before = visible()
    store.check()
    Store(store.uri).check()
    assert visible() == before


def test_the_tracking_uri_of_the_environment_is_obeyed(monkeypatch: pytest.MonkeyPatch, local_folder: Path) -> None:
    assert Store().uri == f"sqlite:///{local_folder}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    assert Store().uri == "http://127.0.0.1:1"
    assert Store("sqlite:///here.db").uri == "sqlite:///here.db"


def test_mlflow_ui_without_a_flag_shows_the_same_runs(local: Store, info: SweepInfo) -> None:
    (run_id,) = write(local, info, make.outcome())
    stored = local.load(run_id)
    assert local.ui_hint(stored.experiment_id, run_id).startswith("mlflow ui  (then http://127.0.0.1:5000/#/experiments/")
    with running(Path.cwd(), command="ui") as address:
        with urllib.request.urlopen(f"{address}/api/2.0/mlflow/runs/get?run_id={run_id}") as answer:
            assert json.load(answer)["run"]["info"]["experiment_id"] == stored.experiment_id
        with urllib.request.urlopen(f"{address}/get-artifact?path=kernel/kernel.cu.txt&run_uuid={run_id}") as answer:
            assert answer.read().decode() == make.artifact(make.variant()).source


@pytest.mark.timeout(60)
def test_a_server_that_is_down_is_said_in_one_line_and_soon(local_folder: Path) -> None:
    address = f"http://user:secret@127.0.0.1:{free_port()}"
    with pytest.raises(InfrastructureLost, match="nothing answers there") as down:
        Store(address).check()
    assert "\n" not in str(down.value) and "secret" not in str(down.value)


@pytest.mark.parametrize(
    "uri",
    [
        "http://me:se%40cret@127.0.0.1:not-a-port",
        "weird://me:secret@127.0.0.1/x",
        "postgresql+nodriver://me:secret@127.0.0.1/x",
        "postgresql+absent://127.0.0.1/x?user=me&password=secret",
    ],
)
def test_a_password_is_never_said(uri: str) -> None:
    """Not by us, and not where MLflow or a database quotes the address."""
    with pytest.raises(InfrastructureLost) as lost:
        Store(uri).check()
    said = str(lost.value)
    assert "***" in said and "cret" not in said and "\n" not in said


def test_a_database_whose_driver_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymssql", None)
    with pytest.raises(InfrastructureLost, match="its driver pymssql is not installed"):
        Store("mssql+pymssql://127.0.0.1/x").check()


def test_a_server_that_refuses_us_or_keeps_its_artifacts_to_itself_is_explained(tmp_path: Path) -> None:
    elsewhere = f"/no-such-folder-{uuid.uuid4().hex}/artifacts"
    options = ("--no-serve-artifacts", "--default-artifact-root", elsewhere, "--allowed-hosts", "127.0.0.1:*,127.0.0.1")
    with running(tmp_path, "--backend-store-uri", f"sqlite:///{tmp_path}/server.db", *options) as address:
        with pytest.raises(InfrastructureLost, match="--no-serve-artifacts") as kept:
            Store(address).check()
        with pytest.raises(InfrastructureLost, match="--allowed-hosts localhost") as refused:
            Store(address.replace("127.0.0.1", "localhost")).check()
    assert "\n" not in str(kept.value) + str(refused.value)
    assert not Path(elsewhere).exists()


def test_artifacts_that_cannot_be_written_are_one_line(local: Store, local_folder: Path) -> None:
    (local_folder / "mlruns").write_text("a file where the folder should be")
    with pytest.raises(InfrastructureLost) as lost:
        local.check()
    assert "mlruns" in str(lost.value) and "\n" not in str(lost.value)


def test_an_old_store_of_files_is_said_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: Default\n")
    with pytest.raises(InfrastructureLost, match="migrate-filestore"):
        Store().check()


USES_A_STORE = """
from tests import outcomes as make
from tracking.report.closing import ending
from tracking.store import Store
store, info = Store(), make.sweep()
store.check()
parent = store.open_sweep(info, 1)
run_id = store.write(parent, info, make.outcome(), make.FLOPS)
store.artifact_blob(run_id)
store.known(info.workload, info.device.model, [make.variant().id])
store.close_sweep(parent, info, ending(info, [], {}, "done"))
"""


@pytest.mark.parametrize("where", ["sqlite", "server"])
def test_using_a_store_prints_nothing_the_first_time_included(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    settings = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW_")}
    settings["PYTHONPATH"] = str(ROOT)
    if where == "server":
        settings["MLFLOW_TRACKING_URI"] = request.getfixturevalue("mlflow_server")
    done = subprocess.run([sys.executable, "-c", USES_A_STORE], cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_the_store_does_not_import_mlflow() -> None:
    code = "import sys, tracking.store, tracking.registry; print({'mlflow', 'matplotlib', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
