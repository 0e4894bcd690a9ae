"""What the registry promises: the best is one accepted run, its history is kept, and two promotions at once cannot both win."""

from __future__ import annotations

import dataclasses
import multiprocessing
import subprocess
import sys
import uuid
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from runner.errors import NotFound, Refused
from runner.records import Decision, Ruling, Verdict
from tests import outcomes as make
from tests.servers import local_folder, mlflow_server
from tracking import layout, lock
from tracking.registry import Best, Kept, Registry
from tracking.store import Store
from tracking.stored import Stored

__all__ = ["local_folder", "mlflow_server"]

ROOT = Path(__file__).parent.parent
VERDICTS = (Verdict("faster", Ruling.PASS, "1.05x [1.04, 1.06] clears 1"),)
ROUNDS = 10


@pytest.fixture(params=["sqlite", "server"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "sqlite":
        request.getfixturevalue("local_folder")
        return Store()
    return Store(request.getfixturevalue("mlflow_server"))


@pytest.fixture
def local(local_folder: Path) -> Store:
    return Store()


def candidates(store: Store, number: int) -> list[Stored]:
    """Measured variants of one sweep, on a device model that no other test uses."""
    device = dataclasses.replace(make.DEVICE, model=f"H200 {uuid.uuid4().hex[:6]}")
    info = make.sweep(id=uuid.uuid4().hex[:8], device=device)
    parent = store.open_sweep(info, number)
    written = [make.outcome(latency_ms=2.0 - i / 10, config={"b_interleave": 2**i}) for i in range(number)]
    return [store.load(store.write(parent, info, outcome, make.FLOPS)) for outcome in written]


def promote(registry: Registry, run: Stored, over: Best | None, speedup: float = 1.05) -> Best:
    return registry.promote(run, make.paired(run.outcome, speedup), VERDICTS, over.version if over else None)


def decisions(store: Store, runs: list[Stored]) -> list[Decision]:
    return [store.load(run.run_id).decision for run in runs]


def test_nothing_was_accepted_yet(store: Store) -> None:
    registry, workload = Registry(store), make.WORKLOAD
    assert registry.best(workload, "a new device") is None
    assert registry.history(workload, "a new device") == []
    with pytest.raises(NotFound, match="nothing was accepted yet"):
        registry.rollback(workload, "a new device")


def test_a_promoted_run_is_the_best_and_the_one_before_is_superseded(store: Store) -> None:
    registry = Registry(store)
    first, second, rejected = runs = candidates(store, 3)
    before = registry.promote(first, None, VERDICTS, None)
    best = promote(registry, second, over=before)
    assert registry.best(make.WORKLOAD, first.device_model) == best
    assert (best.version, best.run_id, best.variant_id, best.protocol) == (2, second.run_id, second.variant_id, "v2/w10/r50")
    assert best.stored.outcome.verdicts == VERDICTS
    assert decisions(store, runs) == [Decision.SUPERSEDED, Decision.ACCEPTED, rejected.decision]
    assert "in 3 sessions of pairs" in best.stored.outcome.reason
    assert "1.0500x version 1" in best.stored.outcome.reason
    assert store.client.get_run(second.run_id).data.metrics["paired_speedup"] == 1.05
    version = store.client.get_model_version_by_alias(layout.model_name(make.WORKLOAD, first.device_model), "best")
    assert version.source == f"runs:/{second.run_id}/kernel"
    assert [b.version for b in registry.bests() if b.device_model == first.device_model] == [2]


def test_the_history_is_the_whole_curve(store: Store) -> None:
    registry, best = Registry(store), None
    runs = candidates(store, 3)
    for run in runs:
        best = promote(registry, run, over=best)
    history = registry.history(make.WORKLOAD, runs[0].device_model)
    assert [(v.version, v.run_id) for v in history] == [(i, run.run_id) for i, run in enumerate(runs, 1)]
    assert [v.latency_ms for v in history] == pytest.approx([2.0, 1.9, 1.8])
    assert [v.is_best for v in history] == [False, False, True]
    assert history[1].label == "b_interleave=2" and history[1].paired_low == pytest.approx(1.04)
    assert (history[1].paired_sessions, history[1].paired_tau) == (3, 0.003)
    assert history[1].speedup_vs_baseline == pytest.approx(1.5 / 1.9), "by the calls of the baseline among its own"
    assert history[1].accepted_by and history[1].accepted_at.endswith("+00:00")


def test_a_rollback_goes_one_back_or_to_a_version_and_sets_the_decisions_right(store: Store) -> None:
    registry, best = Registry(store), None
    runs = candidates(store, 3)
    device = runs[0].device_model
    for run in runs:
        best = promote(registry, run, over=best)
    assert registry.rollback(make.WORKLOAD, device).run_id == runs[1].run_id
    assert decisions(store, runs) == [Decision.SUPERSEDED, Decision.ACCEPTED, Decision.SUPERSEDED]
    assert registry.rollback(make.WORKLOAD, device).version == 1
    with pytest.raises(NotFound, match="nothing lies before it"):
        registry.rollback(make.WORKLOAD, device)
    with pytest.raises(NotFound, match="choose from 1, 2, 3"):
        registry.rollback(make.WORKLOAD, device, to=7)
    assert registry.rollback(make.WORKLOAD, device, to=3).run_id == runs[2].run_id
    assert decisions(store, runs) == [Decision.SUPERSEDED, Decision.SUPERSEDED, Decision.ACCEPTED]


def test_a_run_accepted_again_after_a_rollback_is_accepted(local: Store) -> None:
    registry = Registry(local)
    first, second = runs = candidates(local, 2)
    promote(registry, second, over=promote(registry, first, over=None))
    back = registry.rollback(make.WORKLOAD, first.device_model)
    again = promote(registry, second, over=back)
    assert (again.version, again.run_id) == (3, second.run_id)
    assert decisions(local, runs) == [Decision.SUPERSEDED, Decision.ACCEPTED]
    assert [v.is_best for v in registry.history(make.WORKLOAD, first.device_model)] == [False, False, True]


def test_a_promotion_against_a_best_that_moved_is_refused_and_changes_nothing(store: Store) -> None:
    registry = Registry(store)
    first, second, late = runs = candidates(store, 3)
    stale = promote(registry, first, over=None)
    best = promote(registry, second, over=stale)
    for expected in (None, stale):
        with pytest.raises(Refused, match="it is version 2"):
            promote(registry, late, over=expected)
    assert registry.best(make.WORKLOAD, first.device_model) == best
    assert store.load(late.run_id) == late
    assert decisions(store, runs) == [Decision.SUPERSEDED, Decision.ACCEPTED, Decision.CANDIDATE]
    assert len(registry.history(make.WORKLOAD, first.device_model)) == 2


def test_a_workload_whose_name_mlflow_would_refuse(local: Store) -> None:
    workload = dataclasses.replace(make.WORKLOAD, family="my.kernels:GEMM")
    device = dataclasses.replace(make.DEVICE, model="Dan's CPU @ 2.2/3.1 GHz")
    info = make.sweep(workload=workload, device=device)
    run_id = local.write(local.open_sweep(info, 1), info, make.outcome(variant=make.variant(workload)))
    best = Registry(local).promote(local.load(run_id), None, VERDICTS, None)
    assert Registry(local).best(workload, device.model) == best
    assert [v.run_id for v in Registry(local).history(workload, device.model)] == [run_id]


def race(uri: str, run_id: str, rounds: int, start: Barrier, results: Queue[tuple[int, str, str]]) -> None:
    """Promote one run again and again, each time over the best that both racers saw before the start."""
    store = Store(uri)
    registry, run = Registry(store), store.load(run_id)
    for number in range(rounds):
        best = registry.best(make.WORKLOAD, run.device_model)
        start.wait(timeout=200)
        try:
            promote(registry, run, over=best)
            results.put((number, run_id, "won"))
        except Refused as refusal:
            results.put((number, run_id, str(refusal)))
        start.wait(timeout=200)


@pytest.mark.timeout(600)
def test_of_two_promotions_at_once_exactly_one_wins(store: Store) -> None:
    runs = candidates(store, 2)
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    racers = [context.Process(target=race, args=(store.uri, run.run_id, ROUNDS, start, results), daemon=True) for run in runs]
    for racer in racers:
        racer.start()
    ends = [results.get(timeout=300) for _ in range(2 * ROUNDS)]
    for racer in racers:
        racer.join(timeout=60)
    for number in range(ROUNDS):
        told = [end for n, _, end in ends if n == number]
        assert told.count("won") == 1, told
        assert any("changed while you measured" in end for end in told), told
    winners = [run for _, run, end in sorted(ends) if end == "won"]
    history = Registry(store).history(make.WORKLOAD, runs[0].device_model)
    assert [v.run_id for v in history] == winners
    assert [v.is_best for v in history] == [False] * (ROUNDS - 1) + [True]
    accepted = [run.run_id for run in runs if store.load(run.run_id).decision is Decision.ACCEPTED]
    assert accepted == [winners[-1]]
    assert not [m.name for m in store.client.search_registered_models() if runs[0].device_model in m.name and "lock" in m.name]


DIES_HOLDING = """
import os, sys
sys.path.insert(0, {path!r})
from tracking import connection, lock
with lock.promotion_lock(connection.connect({uri!r}), {model!r}):
    os._exit(9)
"""


@pytest.fixture
def abandon() -> Callable[[Store, str], None]:
    """A real process that dies while it holds the lock."""

    def die(store: Store, model: str) -> None:
        code = DIES_HOLDING.format(path=str(ROOT), uri=store.uri, model=model)
        assert subprocess.run([sys.executable, "-c", code]).returncode == 9

    return die


def test_a_lock_whose_owner_died_is_respected_until_it_is_stale(
    store: Store, abandon: Callable[[Store, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = candidates(store, 1)
    registry, name = Registry(store), layout.model_name(make.WORKLOAD, run.device_model)
    abandon(store, name)
    monkeypatch.setattr(lock, "PATIENCE_SECONDS", 0.3)
    with pytest.raises(Refused, match=r"another promotion .* under way \(process \d+ on "):
        promote(registry, run, over=None)
    assert registry.best(make.WORKLOAD, run.device_model) is None
    monkeypatch.setattr(lock, "STALE_SECONDS", 0.0)
    assert promote(registry, run, over=None).run_id == run.run_id
    assert promote(registry, run, over=registry.best(make.WORKLOAD, run.device_model)).version == 2


def test_a_stale_lock_is_taken_away_once_whoever_tries(local: Store, abandon: Callable[[Store, str], None]) -> None:
    abandon(local, "a model")
    name = "a model (promotion lock)"
    token = local.client.get_registered_model(name).tags["token"]
    assert lock._bury(local.client, name, token) is not None
    with lock.promotion_lock(local.client, "a model"):
        held = local.client.get_registered_model(name).tags["token"]
        assert lock._bury(local.client, name, token) is None  # a latecomer who saw the dead owner's token
        lock._release(local.client, name, token)  # and the dead owner himself, back from a long sleep
        lock._release(local.client, name, "0dd")  # and one whose own lock a person removed by hand
        assert local.client.get_registered_model(name).tags["token"] == held


class TestADeletedRun:
    """A person deletes runs in MLflow's page, one of them the best."""

    @pytest.fixture
    def said(self, local: Store) -> list[str]:
        said: list[str] = []
        local.say = said.append
        return said

    def test_is_no_best_any_more_and_the_way_back_is_said(self, local: Store, said: list[str]) -> None:
        registry, (only, _) = Registry(local), candidates(local, 2)
        registry.promote(only, None, VERDICTS, None)
        for _ in range(2):
            local.client.delete_run(only.run_id)
            assert registry.best(make.WORKLOAD, only.device_model) is None
            assert registry.bests() == []
            assert len(said) == 2 and set(said) == {said[0]}
            assert f"`mlflow runs restore --run-id {only.run_id}`" in said[0] and "`runner rollback`" in said[0]
            said.clear()
            (line,) = registry.history(make.WORKLOAD.name, only.device_model)
            assert line.run_id == only.run_id
            assert Kept(make.WORKLOAD.name, only.device_model) in registry.kept()
            local.client.restore_run(only.run_id)
            best = registry.best(make.WORKLOAD, only.device_model)
            assert best is not None and best.run_id == only.run_id

    def test_that_was_the_best_gives_way_to_the_next_without_a_comparison(self, local: Store, said: list[str]) -> None:
        registry, (gone, other) = Registry(local), candidates(local, 2)
        before = registry.promote(gone, None, VERDICTS, None)
        with pytest.raises(Refused, match="changed while you measured"):
            registry.promote(other, None, VERDICTS, None)
        local.client.delete_run(gone.run_id)
        best = promote(registry, other, over=None)
        assert (best.version, best.run_id) == (before.version + 1, other.run_id) or best.run_id == other.run_id
        assert "the sweep's base" in best.stored.outcome.reason

    def test_is_passed_over_by_a_rollback(self, local: Store, said: list[str]) -> None:
        registry, runs = Registry(local), candidates(local, 3)
        best = None
        for run in runs:
            best = promote(registry, run, over=best)
        for run in runs[1:]:
            local.client.delete_run(run.run_id)
        with pytest.raises(NotFound, match=f"version 2 .* was deleted: `mlflow runs restore --run-id {runs[1].run_id}`"):
            registry.rollback(make.WORKLOAD.name, runs[0].device_model, to=2)
        assert registry.rollback(make.WORKLOAD.name, runs[0].device_model).run_id == runs[0].run_id
        local.client.delete_run(runs[0].run_id)
        with pytest.raises(NotFound, match="first best"):
            registry.rollback(make.WORKLOAD.name, runs[0].device_model)
