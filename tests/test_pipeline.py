"""The order of a sweep's stages and what becomes of each variant, whatever goes wrong on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runner import finals
from runner.cli import render
from runner.errors import FailureKind, InfrastructureLost, JobFailed, RequestError
from runner.executors.base import Executor
from runner.executors.inline import InlineExecutor
from runner.gate import Reference
from runner.jobs.requests import BenchJob, PairJob
from runner.pipeline import AHEAD, run
from runner.records import (
    Acceptance,
    Allowance,
    Artifact,
    Baseline,
    Decision,
    Device,
    Outcome,
    Protocol,
    Ruling,
    Status,
    SweepInfo,
    Target,
    Variant,
    Verdict,
)
from runner.submit import decided, report_of
from runner.sweep import Progress, Result, Sweep
from runner.targets.base import backend
from tests import outcomes
from tests.fake_executor import End, FakeExecutor, Fate
from tests.workbench import PROTOCOL, variant

CUDA = Target("cuda", "sm_90a")
CPU = Target("cpu", "x86_64")
LOST, CRASH = JobFailed(FailureKind.LOST, "the node went away"), JobFailed(FailureKind.CRASH, "killed by SIGSEGV")
DOES_NOT_BUILD = JobFailed(FailureKind.COMPILE_ERROR, "error: no")
ACCEPT = Acceptance(mma="none", max_spread=3.0, alone="none")


def device(index: int, kind: Any = "cuda") -> Device:
    return Device(kind, "NVIDIA H200", index, "node")


def of(name: str, target: Target = CUDA) -> Variant:
    return replace(outcomes.variant(), config={"x": name}, target=target)


def name_of(variant: Variant) -> str:
    return str(variant.config["x"])


def make_sweep(
    variants: tuple[Variant, ...], devices: tuple[Device, ...], acceptance: Acceptance = ACCEPT, **changes: Any
) -> Sweep:
    """The first variant is the base. `fetch` fails: what a sweep built itself it need not fetch."""

    def fetch(variant_id: str) -> Artifact:
        raise AssertionError(f"fetched {variant_id}")

    info: SweepInfo = outcomes.sweep(target=variants[0].target, acceptance=acceptance, swept=tuple(variants[0].config))
    settings: dict[str, Any] = {
        "info": replace(info, workload=variants[0].workload, device=devices[0]),
        "variants": variants,
        "base": variants[0],
        "pruned": {},
        "known": {},
        "protocol": PROTOCOL,
        "finals": 0,
        "sessions": 1,
        "flops": 1.0,
        "devices": devices,
        "baseline_name": "torch.mm",
        "best": None,
        "best_variant": None,
        "fetch": fetch,
    }
    return Sweep(**{**settings, **changes})


@dataclass
class Ran:
    """A sweep over fake jobs: what came of it, by the variants' names."""

    executor: FakeExecutor
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    result: Result = field(default_factory=Result)
    stages: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    decided: dict[str, Outcome] = field(default_factory=dict)  # at the end of the sweep, also what was known before

    def decisions(self) -> dict[str, str]:
        return {name: outcome.decision.value for name, outcome in self.decided.items()}

    def reasons(self) -> dict[str, str]:
        return {name: outcome.reason for name, outcome in self.decided.items()}

    def pairs(self) -> list[str]:
        return [line for line in self.executor.log if line.startswith("pair")]

    def in_pairs(self) -> list[PairJob]:
        return [job for job in self.executor.jobs if isinstance(job, PairJob)]

    def statuses(self) -> dict[str, str]:
        return {name: outcome.status.value for name, outcome in self.outcomes.items()}

    def timed(self) -> list[str]:
        return [line.split()[1] for line in self.executor.log if line.startswith("bench")]

    def built(self) -> list[str]:
        return [line.split()[1] for line in self.executor.log if line.startswith("build")]


def play(
    fates: Mapping[str, Fate],
    target: Target = CUDA,
    devices: int = 1,
    baselines: Mapping[int, list[End]] | None = None,
    seed: int | None = None,
    joins: tuple[tuple[int, Device], ...] = (),
    come_back: bool = True,
    room: int = 1_000,
    baseline_disturbed: str = "",
    **changes: Any,
) -> Ran:
    """Runs a sweep of the variants that `fates` names, the first of them the base."""
    executor = FakeExecutor(fates, name_of, baselines, seed)
    executor.joins, executor.come_back, executor.room = list(joins), come_back, room
    executor.baseline_disturbed = baseline_disturbed
    ran = Ran(executor)

    def emit(outcome: Outcome) -> None:
        name = name_of(outcome.variant)
        assert name not in ran.outcomes, f"{name} was settled twice"
        ran.outcomes[name] = outcome

    def watch(progress: Progress) -> None:
        ran.stages.append(progress.stage)
        ran.counts = {status: n for status, n in progress.statuses.items() if n}
        assert sum(ran.counts.values()) <= progress.total

    variants = tuple(of(name, target) for name in fates)
    sweep = make_sweep(variants, tuple(device(i, target.kind) for i in range(devices)), **changes)
    ran.result = run(sweep, executor, emit, watch)
    at_end = {**sweep.known, **{o.variant.id: o for o in ran.outcomes.values()}}
    ran.decided = {name_of(o.variant): o for o in decided(sweep, ran.result, at_end).values()}
    return ran


def fates(**times: float) -> dict[str, Fate]:
    """Variants of different sources that take so many milliseconds."""
    return {name: Fate(name, benches=[ms]) for name, ms in times.items()}


def known(name: str, source: str = "", ms: float = 1.0, **changes: Any) -> Outcome:
    """An outcome of an earlier sweep."""
    artifact = replace(outcomes.artifact(of(name)), source_hash=source or name, blob=b"")
    baseline = Baseline(device(0), "torch.mm", (1.0,))
    measurement = replace(outcomes.measurement(ms), reference_ms=(1.0,) * 8)
    found = outcomes.outcome(variant=of(name), artifact=artifact, measurement=measurement, baseline=baseline)
    return replace(found, **changes)


class TestOrder:
    @pytest.mark.parametrize("seed", range(8))
    def test_baseline_then_base_then_the_others(self, seed: int) -> None:
        ran = play(fates(base=2.0, a=1.0, b=1.5, c=3.0), seed=seed)
        measured = [line for line in ran.executor.log if not line.startswith("build")]
        assert measured[:2] == ["baseline on 0", "bench base on 0"] and measured[-1] == "baseline on 0"
        assert sorted(ran.timed()) == ["a", "b", "base", "c"]
        assert set(ran.statuses().values()) == {"measured"}

    @pytest.mark.parametrize("seed", range(8))
    def test_on_a_cpu_every_build_comes_before_any_timing(self, seed: int) -> None:
        log = play(fates(base=2.0, a=1.0, b=1.5), target=CPU, seed=seed).executor.log
        assert [line.split()[0] for line in log] == ["build"] * 3 + ["baseline"] + ["bench"] * 3 + ["baseline"]

    def test_on_a_gpu_timing_does_not_wait_for_the_last_build(self) -> None:
        ended = [play(fates(base=2.0, a=1.0, b=1.0, c=1.0), seed=seed).executor.ended for seed in range(20)]
        assert any(log.index("bench base on 0") < max(log.index(f"build {name}") for name in "abc") for log in ended)

    @pytest.mark.parametrize("seed", range(6))
    def test_on_a_gpu_no_more_is_built_than_the_devices_soon_take(self, seed: int) -> None:
        """Not even while the base, which is built late, holds them all up."""
        late = Fate("base", builds=[LOST, 1.0])
        ran = play({"base": late, **fates(**{f"v{i}": 1.0 for i in range(60)})}, devices=2, seed=seed, room=3)
        assert set(ran.statuses().values()) == {"measured"}
        waiting = most = 0
        for line in ran.executor.ended:
            waiting += line.startswith("build ") - line.startswith("bench ")
            most = max(most, waiting)
        assert most <= 2 * AHEAD + 3 + 2, "besides those that wait, three were being built and two are being timed"

    @pytest.mark.parametrize("seed", range(4))
    def test_every_device_has_a_baseline_of_its_own(self, seed: int) -> None:
        unlike = Allowance(siblings=9.0)
        ran = play(
            fates(**{f"v{i}": 1.0 for i in range(6)}), devices=2, seed=seed, baselines={0: [1.0], 1: [4.0]}, allowance=unlike
        )
        assert set(ran.result.baselines) == {("node", 0), ("node", 1)}
        for outcome in ran.outcomes.values():
            assert outcome.baseline and outcome.measurement and outcome.baseline.device == outcome.measurement.device
            assert outcome.baseline.before_ms[0] == {0: 1.0, 1: 4.0}[outcome.baseline.device.index]

    def test_one_job_at_a_time_on_a_device(self) -> None:
        log = play(fates(base=1.0, a=1.0, b=1.0)).executor.log
        assert [line for line in log if "bench" in line] == ["bench base on 0", "bench a on 0", "bench b on 0"]

    def test_the_baseline_is_timed_again_at_the_end(self) -> None:
        ran = play(fates(base=1.0, a=2.0), baselines={0: [1.0, 1.1]})
        baseline = ran.result.baselines["node", 0]
        assert (set(baseline.before_ms), set(baseline.after_ms)) == ({1.0}, {1.1})

    def test_a_deadline_grows_with_the_baseline(self) -> None:
        quick, slow = (play(fates(base=1.0), baselines={0: [ms]}).executor for ms in (1.0, 1000.0))
        deadlines = [e.deadlines[e.log.index("bench base on 0")] for e in (quick, slow)]
        assert deadlines[1] > deadlines[0] + finals.SLOWEST * PROTOCOL.repeat * 0.99

    def test_progress_counts_what_is_settled(self) -> None:
        ran = play({**fates(base=1.0, a=1.0), "bad": Fate("bad", benches=[CRASH])}, pruned={of("a").id: "too large"})
        assert ran.counts == {"measured": 1, "pruned": 1, "crash": 1}
        assert ran.stages[0].startswith("timing") and any(stage.endswith("again") for stage in ran.stages)


class TestReference:
    def test_others_are_compared_with_the_base(self) -> None:
        ran = play(fates(base=2.0, fast=1.0, slow=4.0))
        said = {name: next(v for v in o.verdicts if v.rule == "faster") for name, o in ran.outcomes.items()}
        assert said["fast"].ruling is Ruling.NOT_APPLICABLE and "2.0000x the base" in said["fast"].evidence
        assert said["slow"].ruling is Ruling.FAIL and said["base"].ruling is Ruling.NOT_APPLICABLE
        assert ran.decisions() == {"base": "candidate", "fast": "unproven", "slow": "beaten"}, "nobody played in pairs"
        assert ran.outcomes["base"].is_base and not ran.outcomes["fast"].is_base
        assert ran.result.reference and ran.result.reference.variant_id == of("base").id

    def test_or_with_the_best_where_there_is_one(self) -> None:
        best = Reference("best", "f" * 12, "x=older", speedup=1 / 1.5)  # 1.5 ms where torch.mm takes 1
        ran = play(fates(base=2.0, fast=1.0), best=best, best_variant=of("older"))
        assert ran.result.reference == best
        assert "1.5000x the best" in ran.outcomes["fast"].reason
        assert ran.decisions() == {"base": "beaten", "fast": "unproven"}

    def test_calls_of_the_baseline_are_made_in_the_form_that_was_fastest_on_the_device(self) -> None:
        ran = play(fates(**{f"v{i}": 1.0 for i in range(4)}), devices=2, finals=1)
        jobs = [job for job in ran.executor.jobs if isinstance(job, (BenchJob, PairJob))]
        assert {job.form for job in jobs} == {"form 0", "form 1"}
        assert all(job.form == f"form {job.device.index}" for job in jobs)

    def test_a_baseline_that_was_disturbed_is_told(self) -> None:
        ran = play(fates(base=1.0), baseline_disturbed="python3 (pid 7) at 59 %")
        assert ran.result.baselines["node", 0].contended == "python3 (pid 7) at 59 %"
        assert any("torch.mm on NVIDIA H200 0 on node was disturbed: python3" in note for note in ran.result.notes)

    @pytest.mark.parametrize(
        "fate, status",
        [
            (Fate("base", builds=[DOES_NOT_BUILD]), Status.COMPILE_ERROR),
            (Fate("base", benches=[CRASH]), Status.CRASH),
            (Fate("base", benches=[LOST]), Status.LOST),
        ],
    )
    def test_a_base_that_fails_holds_up_nobody(self, fate: Fate, status: Status) -> None:
        ran = play({"base": fate, **fates(a=1.0, b=2.0)}, finals=2)
        assert ran.statuses() == {"base": status.value, "a": "measured", "b": "measured"}
        assert ran.result.reference is None and ran.result.finals == {}
        assert "nothing to compare with" in ran.outcomes["a"].reason

    def test_a_pruned_base_holds_up_nobody(self) -> None:
        ran = play(fates(base=1.0, a=1.0), pruned={of("base").id: "too large"}, finals=2)
        assert ran.statuses() == {"base": "pruned", "a": "measured"}
        assert ran.outcomes["base"].is_base and "base" not in ran.built()


class TestFailures:
    @pytest.mark.parametrize("stage", ["builds", "benches"])
    def test_what_was_lost_is_tried_once_more(self, stage: str) -> None:
        fate = Fate("a")
        setattr(fate, stage, [LOST, 1.0])
        ran = play({**fates(base=1.0), "a": fate})
        assert ran.statuses()["a"] == "measured" and ran.outcomes["a"].attempt == 2

    @pytest.mark.parametrize("stage", ["builds", "benches"])
    def test_and_then_given_up(self, stage: str) -> None:
        fate = Fate("a")
        setattr(fate, stage, [LOST])
        ran = play({**fates(base=1.0, b=1.0), "a": fate})
        assert ran.statuses() == {"base": "measured", "a": "lost", "b": "measured"}
        assert ran.outcomes["a"].attempt == 2
        assert (ran.built() if stage == "builds" else ran.timed()).count("a") == 2

    def test_a_lost_timing_is_not_built_again(self) -> None:
        ran = play({**fates(base=1.0), "a": Fate("a", benches=[LOST, 1.0])})
        assert ran.built().count("a") == 1 and ran.timed().count("a") == 2

    @pytest.mark.parametrize("job", ["baseline", "bench", "proof", "pair"])
    def test_inputs_that_prove_nothing_are_no_variants_fault_and_end_the_sweep(self, job: str) -> None:
        unsound = JobFailed(FailureKind.UNSOUND, "the baseline of gemm gives NaN for seed 7")
        fate = Fate("a", benches=[unsound] if job == "bench" else [1.0], proofs=[unsound] if job == "proof" else [1.0])
        fate.pairs = [unsound] if job == "pair" else []
        with pytest.raises(RequestError, match="the baseline of gemm gives NaN") as raised:
            play({**fates(base=2.0), "a": fate}, finals=1, baselines={0: [unsound]} if job == "baseline" else None)
        assert raised.value.exit_code == 2

    @pytest.mark.parametrize("kind", [k for k in FailureKind if k not in (FailureKind.LOST, FailureKind.UNSOUND)])
    def test_a_kernels_own_failure_is_never_tried_again(self, kind: FailureKind) -> None:
        ran = play({**fates(base=1.0), "a": Fate("a", benches=[JobFailed(kind, "why", "printed")])})
        assert ran.timed().count("a") == 1
        outcome = ran.outcomes["a"]
        assert outcome.status.value == kind.value and outcome.reason == "why" and outcome.attempt == 1
        assert outcome.failure and outcome.failure.output == "printed"
        assert outcome.artifact and outcome.artifact.source == "a"  # what crashed is worth reading

    def test_a_device_that_fails_is_left_out_and_said(self) -> None:
        ran = play(fates(base=1.0, a=1.0, b=1.0), devices=2, baselines={1: [CRASH]})
        assert set(ran.statuses().values()) == {"measured"}
        assert all(o.measurement and o.measurement.device.index == 0 for o in ran.outcomes.values())
        assert any("left out" in note and "SIGSEGV" in note for note in ran.result.notes)

    def test_when_all_devices_fail_the_sweep_ends(self) -> None:
        with pytest.raises(InfrastructureLost, match="SIGSEGV"):
            play(fates(base=1.0, a=1.0), devices=2, baselines={0: [CRASH], 1: [CRASH]})

    def test_a_baseline_that_fails_at_the_end_costs_nothing_that_was_measured(self) -> None:
        ran = play(fates(base=1.0, a=1.0), baselines={0: [1.0, CRASH]})
        assert set(ran.statuses().values()) == {"measured"}
        assert ran.result.baselines["node", 0].after_ms == () and "after the sweep failed" in ran.result.notes[0]


class TestCards:
    """Several of one model in one sweep."""

    def test_each_variant_is_compared_by_its_own_cards_baseline(self) -> None:
        """The second card is half as fast at everything: what takes 2 ms there is as fast as 1 ms on the first."""
        on = {f"v{i}": Fate(f"v{i}") for i in range(6)}
        ran = play(on, devices=2, baselines={0: [1.0], 1: [2.0]}, allowance=Allowance(siblings=9.0))
        base = ran.outcomes["v0"].measurement
        assert base and base.device.index == 0
        elsewhere = [o for o in ran.outcomes.values() if o.measurement and o.measurement.device.index == 1]
        assert elsewhere and all("2.0000x the base" in o.reason for o in elsewhere)
        rows = report_of(make_sweep(tuple(of(n) for n in on), (device(0),)), {o.variant.id: o for o in ran.outcomes.values()},
                         {o.variant.id: "r" for o in ran.outcomes.values()}, ran.result, {}).rows  # fmt: skip
        assert {r.outcome.variant.id for r in rows[: len(elsewhere)]} == {o.variant.id for o in elsewhere}

    @pytest.mark.parametrize("seed", range(6))
    def test_one_that_is_unlike_the_others_measures_nothing(self, seed: int) -> None:
        ran = play(fates(**{f"v{i}": 1.0 for i in range(6)}), devices=3, seed=seed, baselines={0: [1.0], 1: [1.05], 2: [1.01]})
        used = {o.measurement.device.index for o in ran.outcomes.values() if o.measurement}
        assert used == {0, 2}
        (note,) = ran.result.notes
        assert re.match(r"NVIDIA H200 1 on node left out: [45].0% slower at torch.mm than the other NVIDIA H200s", note)

    def test_of_two_the_faster_one_is_believed(self) -> None:
        ran = play(fates(**{f"v{i}": 1.0 for i in range(4)}), devices=2, baselines={0: [1.1], 1: [1.0]})
        assert {o.measurement.device.index for o in ran.outcomes.values() if o.measurement} == {1}

    def test_what_was_lost_with_one_is_measured_on_another(self) -> None:
        ran = play({**fates(base=1.0, b=1.0), "a": Fate("a", benches=[LOST, 1.0])}, devices=2, come_back=False)
        assert set(ran.statuses().values()) == {"measured"}
        where = [line.split()[-1] for line in ran.executor.log if line.startswith("bench a")]
        assert sorted(where) == ["0", "1"]
        assert any("went before the end" in note for note in ran.result.notes)

    def test_while_there_is_none_it_says_what_it_waits_for(self) -> None:
        ran = play({**fates(base=1.0, b=1.0), "a": Fate("a", benches=[LOST, 1.0])})
        (waited,) = (i for i, stage in enumerate(ran.stages) if stage == "waiting for a device: NVIDIA H200")
        assert ran.stages[waited + 1].startswith("timing"), "and it came back"

    def test_without_any_left_the_sweep_ends(self) -> None:
        with pytest.raises(InfrastructureLost, match="no device is left"):
            play({**fates(base=1.0, b=1.0), "a": Fate("a", benches=[LOST])}, come_back=False)

    def test_one_that_joins_later_starts_with_its_baseline_and_takes_its_share(self) -> None:
        ran = play(fates(**{f"v{i}": 1.0 for i in range(12)}), joins=((14, device(1)),))
        log = ran.executor.log
        on_it = [line for line in log if line.endswith("on 1")]
        assert on_it[0] == "baseline on 1" and len(on_it) > 2 and on_it[-1] == "baseline on 1"

    def test_one_that_comes_while_the_base_is_still_built_gets_its_baseline(self) -> None:
        """The first card has its baseline by then, and waits with it for the second one's."""
        ran = play({"base": Fate("base", builds=[LOST, 1.0]), **fates(a=1.0, b=1.0)}, joins=((4, device(1)),))
        assert ran.executor.ended[:4] == ["build base", "build a", "build b", "baseline on 0"]
        assert set(ran.statuses().values()) == {"measured"} and set(ran.result.baselines) == {("node", 0), ("node", 1)}

    def test_a_device_whose_baseline_is_lost_again_and_again_is_left_out(self) -> None:
        ran = play(fates(base=1.0, a=1.0), devices=2, baselines={1: [LOST]})
        assert set(ran.statuses().values()) == {"measured"}
        assert ran.executor.log.count("baseline on 1") == 2 and any("left out" in note for note in ran.result.notes)

    def test_finals_go_on_when_their_device_is_lost(self) -> None:
        ran = play({**fates(base=2.0), "a": Fate("a", benches=[1.0, LOST, 1.0])}, finals=1)
        assert of("a").id in ran.result.finals


class TestDuplicates:
    @pytest.mark.parametrize("seed", range(8))
    def test_take_their_twins_measurement(self, seed: int) -> None:
        ran = play({**fates(base=2.0), "a": Fate("same"), "b": Fate("same"), "c": Fate("same")}, seed=seed, finals=1)
        twins = {name: ran.outcomes[name] for name in "abc"}
        (first,) = [o for o in twins.values() if o.status is Status.MEASURED]
        others = [o for o in twins.values() if o.status is Status.DUPLICATE]
        assert len(others) == 2 and sum(name in "abc" for name in ran.timed()) == 1
        for outcome in others:
            assert outcome.duplicate_of == first.variant.id
            assert outcome.measurement == first.measurement and outcome.decision is first.decision
            assert outcome.artifact and outcome.artifact.variant_id == outcome.variant.id
            assert name_of(first.variant) in outcome.reason
        assert ran.decisions() == {"base": "beaten", "a": "candidate", "b": "candidate", "c": "candidate"}
        assert all("paired speedup over the base 2.0000" in ran.reasons()[name] for name in "abc")

    @pytest.mark.parametrize("seed", range(8))
    def test_of_the_base_wait_for_the_base(self, seed: int) -> None:
        ran = play({"base": Fate("same"), "a": Fate("same"), **fates(b=1.0)}, seed=seed)
        assert ran.timed() == ["base", "b"]
        assert ran.statuses() == {"base": "measured", "a": "duplicate", "b": "measured"}
        assert ran.outcomes["a"].duplicate_of == of("base").id

    @pytest.mark.parametrize("seed", range(4))
    def test_share_a_failure(self, seed: int) -> None:
        ran = play(
            {**fates(base=2.0), "a": Fate("same", benches=[CRASH]), "b": Fate("same", benches=[CRASH])}, target=CPU, seed=seed
        )
        assert ran.statuses() == {"base": "measured", "a": "crash", "b": "crash"}
        assert len([n for n in ran.timed() if n != "base"]) == 1
        assert any("same generated source" in ran.outcomes[name].reason for name in "ab")

    def test_are_found_among_what_is_known(self) -> None:
        earlier = known("earlier", source="same", ms=1.0)
        ran = play(
            {**fates(base=2.0), "earlier": Fate("same"), "a": Fate("same")},
            known={earlier.variant.id: earlier},
        )
        assert ran.statuses() == {"base": "measured", "a": "duplicate"} and ran.timed() == ["base"]
        assert ran.outcomes["a"].duplicate_of == earlier.variant.id

    def test_a_base_with_a_known_twin_is_compared_with_all_the_same(self) -> None:
        earlier = known("earlier", source="same", ms=2.0)
        ran = play(
            {"base": Fate("same", benches=[2.0]), "earlier": Fate("same"), **fates(fast=1.0)},
            known={earlier.variant.id: earlier},
            finals=1,
        )
        assert ran.statuses() == {"base": "duplicate", "fast": "measured"}
        assert ran.result.reference and ran.result.reference.variant_id == of("base").id
        assert "2.0000x the base" in ran.outcomes["fast"].reason
        assert ran.pairs() == ["pair fast with base"]  # with the artifact that was built here; nobody plays against itself
        assert ran.decisions() == {"base": "beaten", "earlier": "beaten", "fast": "candidate"}


class TestKnown:
    def test_is_not_measured_again(self) -> None:
        earlier = {o.variant.id: o for o in (known("base", ms=2.0), known("a"))}
        ran = play(fates(base=2.0, a=1.0, b=1.0), known=earlier)
        assert ran.statuses() == {"b": "measured"} and ran.built() == ["b"] and ran.timed() == ["b"]
        assert "2.0000x the base" in ran.outcomes["b"].reason

    def test_alone_starts_nothing(self) -> None:
        earlier = {o.variant.id: o for o in (known("base"), known("a"))}
        assert play(fates(base=2.0, a=1.0), known=earlier, finals=3, played=True).executor.log == []
        assert play(fates(base=2.0, a=1.0), known=earlier, finals=0).executor.log == []

    def test_alone_plays_the_finals_that_an_interrupt_kept_from_being_played(self) -> None:
        earlier = {o.variant.id: o for o in (known("base"), known("a", ms=0.5))}
        fetched: list[str] = []

        def fetch(variant_id: str) -> Artifact:
            fetched.append(variant_id)
            return replace(outcomes.artifact(of("a")), blob=b"binary")

        ran = play(fates(base=2.0, a=1.0), known=earlier, finals=1, sessions=3, fetch=fetch)
        assert ran.executor.log[0] == "baseline on 0" and ran.timed() == ran.built() == []
        assert ran.pairs() == ["pair a with base"] * 3 and ran.decisions() == {"base": "beaten", "a": "candidate"}
        assert sorted(fetched) == sorted([of("a").id, of("base").id]), "each once, however many sessions there are"

    def test_pairs_with_the_same_reference_hold(self) -> None:
        """Nothing is started, and who won is a candidate still."""
        earlier = {o.variant.id: o for o in (known("base"), known("a"), known("b"))}
        pairs = {of("a").id: outcomes.paired(earlier[of("a").id], 1.5), of("b").id: outcomes.paired(earlier[of("b").id], 1.2)}
        ran = play(fates(base=2.0, a=1.0, b=1.5), known=earlier, finals=3, played=True, pairs=pairs)
        assert ran.executor.log == [] and ran.decisions() == {"base": "beaten", "a": "candidate", "b": "beaten"}

    def test_one_that_is_rejected_by_now_beats_nobody(self) -> None:
        """It won in pairs once, and does not fulfil what this sweep asks for."""
        earlier = {o.variant.id: o for o in (known("base"), known("a", decision=Decision.REJECTED), known("b"))}
        earlier[of("a").id] = replace(
            earlier[of("a").id], verdicts=(Verdict("mma", Ruling.FAIL, "none"), Verdict("faster", Ruling.PASS, "won"))
        )
        pairs = {of("a").id: outcomes.paired(earlier[of("a").id], 1.5), of("b").id: outcomes.paired(earlier[of("b").id], 1.2)}
        ran = play(fates(base=2.0, a=1.0, b=1.5), known=earlier, finals=3, played=True, pairs=pairs)
        assert ran.decisions() == {"base": "beaten", "a": "rejected", "b": "candidate"}
        assert "winner" not in ran.reasons()["b"]

    def test_a_known_failure_stays_one(self) -> None:
        failed = replace(outcomes.outcome(Status.CRASH), variant=of("a"))
        ran = play(fates(base=2.0, a=1.0), known={failed.variant.id: failed})
        assert ran.statuses() == {"base": "measured"}


class TestFinals:
    TIMES: Mapping[str, float] = {"base": 4.0, "a": 1.0, "b": 2.0, "c": 3.0, "slow": 5.0}
    MANY: Mapping[str, float] = {f"v{i}": 1.0 + i / 100 for i in range(20)}

    def test_pair_the_best_few_with_the_base(self) -> None:
        ran = play(fates(**self.TIMES), finals=3)
        assert ran.pairs() == ["pair a with base", "pair b with base", "pair c with base"]
        assert {name: ran.result.finals[of(name).id].speedup for name in "ab"} == pytest.approx({"a": 4.0, "b": 2.0})
        proofs = [line for line in ran.executor.log if line.startswith("prove")]
        assert proofs == ["prove a", "prove b", "prove c"]
        again = len(ran.executor.log) - 1 - ran.executor.log[::-1].index("baseline on 0")
        assert again < ran.executor.log.index("prove a"), "the sweep's last word on drift comes before"

    def test_the_winner_is_the_candidate_and_who_was_beaten_is_told_by_how_much(self) -> None:
        ran = play(fates(**self.TIMES), finals=3)
        assert ran.decisions() == {"base": "beaten", "a": "candidate", "b": "beaten", "c": "beaten", "slow": "beaten"}
        assert ran.reasons()["b"].startswith("2.0000x the base, 0.5000x the winner")
        assert "0.8000x the base by its calls of torch.mm" in ran.reasons()["slow"]

    def test_only_what_passes_every_rule_plays_and_nothing_that_is_slower_for_sure(self) -> None:
        assert play(fates(base=4.0, slow=5.0), finals=3).pairs() == []
        ran = play({**fates(base=4.0), "a": Fate("a", others=["python3"])}, finals=3, acceptance=Acceptance(mma="none"))
        assert ran.pairs() == [] and ran.decisions() == {"base": "candidate", "a": "rejected"}

    def test_what_is_slower_by_less_than_the_margin_plays(self) -> None:
        """Its own calls of the baseline are no proof: here the pairs say that it is the faster one."""
        ran = play({**fates(base=1.0), "a": Fate("a", benches=[1.01], pairs=[0.9])}, finals=1)
        assert "0.9901x the base" in ran.outcomes["a"].reason
        assert ran.decisions() == {"base": "beaten", "a": "candidate"}

    def test_take_enough_pairs_for_an_interval(self) -> None:
        ran = play(fates(base=2.0, a=1.0), finals=1)
        (paired,) = ran.result.finals.values()
        assert len(paired.candidate_ms) == finals.MIN_PAIRS > PROTOCOL.repeat

    def test_a_sessions_finalists_share_a_process_and_each_session_has_one_of_its_own(self) -> None:
        ran = play(fates(**self.TIMES), finals=3, sessions=3)
        order = [(name_of(job.candidate), job.session) for job in ran.in_pairs()]
        assert [name for name, _ in order] == ["a", "b", "c"] * 3
        processes = [order[i][1] for i in range(9)]
        assert processes[0:3] == [processes[0]] * 3 and processes[3:6] == [processes[3]] * 3
        assert len(set(processes)) == 3 and "" not in processes
        found = ran.result.finals[of("a").id]
        assert len(found.sessions) == 3 and found.tau is not None

    def test_a_first_round_of_few_pairs_says_who_plays_in_full(self) -> None:
        played = fates(base=2.0, **self.MANY)
        played["v15"].pairs = [0.5]  # by its own calls sixteenth of twenty, and the fastest of all in pairs
        ran = play(played, finals=4, sessions=2)
        jobs = ran.in_pairs()
        first, full = jobs[:16], jobs[16:]
        assert {job.pairs for job in first} == {10} and len({job.session for job in first}) == 1
        assert [name_of(job.candidate) for job in first] == [f"v{i}" for i in range(16)]
        assert [name_of(job.candidate) for job in full] == ["v15", "v0", "v1", "v2"] * 2
        assert {job.pairs for job in full} == {20} and len({job.session for job in full}) == 2
        assert ran.decisions()["v15"] == "candidate" and ran.decisions()["v0"] == "beaten"

    def test_who_never_played_in_full_is_unproven_with_the_reason(self) -> None:
        ran = play(fates(base=2.0, **self.MANY), finals=4)
        assert ran.decisions()["v5"] == ran.decisions()["v19"] == "unproven"
        assert "1.9048x the base in 10 pairs, place 6 of 16" in ran.reasons()["v5"]
        assert "by its calls of torch.mm" in ran.reasons()["v19"]

    def test_no_more_artifacts_are_kept_than_may_play(self) -> None:
        contenders = finals.Contenders(make_sweep((of("base"),), (device(0),), finals=2))
        for i in range(50):
            contenders.add(replace(known(f"v{i}", ms=1.0 + i / 100), decision=Decision.UNPROVEN))
        assert len(contenders._best) == 4 * 2 + 1

    def test_pair_with_the_best_where_there_is_one(self) -> None:
        fetched: list[str] = []

        def fetch(variant_id: str) -> Artifact:
            fetched.append(variant_id)
            return replace(outcomes.artifact(of("older")), blob=b"older")

        best = Reference("best", of("older").id, "x=older", speedup=1 / 4.5)
        played = {**fates(base=4.7, a=1.0), "older": Fate("older", benches=[4.5])}
        ran = play(
            played,
            pruned={},
            known={of("older").id: known("older", ms=4.5, decision=Decision.ACCEPTED)},
            best=best,
            best_variant=of("older"),
            fetch=fetch,
            finals=1,
        )
        assert ran.pairs() == ["pair a with older"] and fetched == [of("older").id]
        assert ran.decisions() == {"base": "beaten", "a": "candidate", "older": "accepted"}

    @pytest.mark.parametrize(
        "kind, rule", [(FailureKind.WRONG_RESULT, "correct"), (FailureKind.SIDE_EFFECT, "pure"), (FailureKind.CRASH, "correct")]
    )
    def test_one_that_fails_its_proof_is_refused_and_the_next_takes_its_place(self, kind: FailureKind, rule: str) -> None:
        bad = Fate("a", proofs=[JobFailed(kind, "one-hot rows, seed 7: off by 3 at [0, 1]")])
        ran = play({**fates(base=4.0, b=2.0, c=3.0), "a": bad}, finals=2, sessions=2)
        assert ran.pairs()[3:] == ["pair b with base", "pair c with base"] * 2
        refused = ran.decided["a"]
        assert (refused.status, refused.decision) == (Status.MEASURED, Decision.REJECTED)
        verdict = next(v for v in refused.verdicts if v.rule == rule)
        assert verdict.ruling is Ruling.FAIL and "one-hot rows, seed 7: off by 3 at [0, 1]" in verdict.evidence
        assert refused.reason.startswith(f"{rule}: in the finals: ")
        assert ran.decisions()["b"] == "candidate"

    def test_one_that_crashes_in_pairs_is_refused_and_the_next_plays_every_session(self) -> None:
        played = {**fates(base=4.0, b=2.0, c=3.0), "a": Fate("a", pairs=[1.0, 1.0, CRASH])}
        ran = play(played, finals=2, sessions=2)
        assert ran.decisions() == {"base": "beaten", "a": "rejected", "b": "candidate", "c": "beaten"}
        assert "SIGSEGV" in ran.reasons()["a"] and of("a").id not in ran.result.finals
        assert len(ran.result.finals[of("c").id].sessions) == 2
        assert ran.pairs()[-2:] == ["pair c with base"] * 2

    def test_a_disturbed_session_is_repeated_once(self) -> None:
        fate = Fate("a", benches=[1.0], disturbed=["python3 (pid 7)", "", ""])
        ran = play({**fates(base=4.0), "a": fate}, finals=1, sessions=2, acceptance=Acceptance(mma="none"))
        found = ran.result.finals[of("a").id]
        assert len(ran.pairs()) == 3 and len(found.sessions) == 2 and found.contended == ""
        assert ran.decisions()["a"] == "candidate"

    def test_and_who_is_disturbed_twice_in_it_is_refused(self) -> None:
        fate = Fate("a", disturbed=["python3 (pid 7)"])
        ran = play({**fates(base=4.0, b=2.0), "a": fate}, finals=1, acceptance=Acceptance(mma="none"))
        assert ran.decisions() == {"base": "beaten", "a": "rejected", "b": "candidate"}
        assert ran.reasons()["a"] == "alone: in the finals: disturbed twice in one session: python3 (pid 7)"

    def test_where_quiet_is_not_asked_for_it_is_told_and_not_repeated(self) -> None:
        ran = play({**fates(base=4.0), "a": Fate("a", disturbed=["python3 (pid 7)"])}, finals=1)
        assert len(ran.pairs()) == 1 and ran.result.finals[of("a").id].contended == "python3 (pid 7)"

    def test_what_is_lost_twice_is_not_held_against_it(self) -> None:
        ran = play({**fates(base=4.0, b=2.0), "a": Fate("a", pairs=[LOST])}, finals=1)
        assert ran.decisions() == {"base": "beaten", "a": "unproven", "b": "candidate"}
        assert "lost twice in the finals: the node went away" in ran.reasons()["a"]

    def test_it_is_said_where_nobody_is_left(self) -> None:
        ran = play({**fates(base=4.0), "a": Fate("a", proofs=[CRASH])}, finals=2)
        assert ran.decisions() == {"base": "candidate", "a": "rejected"}
        assert any("no contender was left in the finals: none of 1" in note for note in ran.result.notes)

    def test_duplicates_of_one_that_is_refused_are_refused(self) -> None:
        twins = {"a": Fate("same", proofs=[CRASH]), "b": Fate("same", proofs=[CRASH])}
        ran = play({**fates(base=4.0), **twins}, finals=2)
        assert ran.decisions() == {"base": "candidate", "a": "rejected", "b": "rejected"}

    def test_who_won_side_by_side_goes_before_what_was_measured_alone(self) -> None:
        """A ratio that a lucky process gave to one that was not paired must not make it the candidate."""
        played = {**fates(base=4.0, a=1.0, b=1.5, c=2.0), "lost": Fate("lost", benches=[1.2])}
        ran = play(played, finals=0)
        paired = {
            of("b").id: outcomes.paired(ran.outcomes["b"], 1.02),
            of("lost").id: outcomes.paired(ran.outcomes["lost"], 0.98),
        }
        result = replace(ran.result, finals=paired)
        sweep = make_sweep(tuple(map(of, played)), (device(0),))
        found = decided(sweep, result, {o.variant.id: o for o in ran.outcomes.values()})
        report = report_of(sweep, found, dict.fromkeys(found, "run"), result, {})
        assert [name_of(row.outcome.variant) for row in report.rows] == ["b", "a", "c", "base", "lost"]
        assert report.candidate is report.rows[0]

    def test_none_are_asked_for(self) -> None:
        assert play(fates(**self.TIMES), finals=0).pairs() == []


class TestReport:
    def lines(self, ran: Ran) -> list[str]:
        """What is said below the table."""
        sweep = make_sweep(tuple(map(of, ran.outcomes)), (device(0),))
        found = {o.variant.id: o for o in ran.decided.values()}
        report = report_of(sweep, found, dict.fromkeys(found, "run"), ran.result, {("node", 0): 0.2})
        return [part for part in render.report(report, 1.0) if isinstance(part, str)]

    def test_on_a_machine_that_is_never_idle_it_says_what_gets_an_answer(self) -> None:
        busy = {name: Fate(name, others=["python3 (pid 7)"]) for name in ("base", "a")}
        said = self.lines(play(busy, acceptance=Acceptance(mma="none"), finals=1))
        assert any("sweep submit sweeps/interleave.yaml --set accept.alone=none" in line for line in said)
        one_was_alone = {**busy, "base": Fate("base")}
        said = self.lines(play(one_was_alone, acceptance=Acceptance(mma="none"), finals=1))
        assert not any("accept.alone=none" in line for line in said)

    def test_a_baseline_that_drifted_is_told_and_no_result_is_called_suspect(self) -> None:
        said = self.lines(play(fates(base=2.0, a=1.0), finals=1, baselines={0: [1.0, 1.2]}, baseline_disturbed="python3 (pid 7)"))
        (line,) = (line for line in said if line.startswith("torch.mm on NVIDIA H200: 1 ms"))
        assert "disturbed: python3 (pid 7)" in line and "+20.0% after the sweep; the device has drifted" in line
        assert not any("suspect" in line for line in said) and any(line.startswith("candidate: x=a") for line in said)


class TestInterrupt:
    def test_keeps_what_was_measured_and_cancels_the_rest(self) -> None:
        ran = play({**fates(base=1.0), "a": Fate("a", benches=[KeyboardInterrupt()]), **fates(b=1.0)})
        assert ran.result.interrupted
        assert ran.statuses() == {"base": "measured", "a": "cancelled", "b": "cancelled"}
        assert ran.outcomes["a"].failure

    def test_during_the_builds(self) -> None:
        ran = play({"base": Fate("base", builds=[KeyboardInterrupt()]), **fates(a=1.0)}, pruned={of("a").id: "too large"})
        assert ran.statuses() == {"base": "cancelled", "a": "pruned"} and ran.outcomes["base"].is_base

    def test_during_the_finals_cancels_nothing_that_is_settled(self) -> None:
        ran = play({**fates(base=4.0), "a": Fate("a", benches=[1.0, KeyboardInterrupt()])}, finals=1)
        assert ran.result.interrupted and ran.statuses() == {"base": "measured", "a": "measured"}


def test_a_real_sweep_with_every_sort_of_kernel() -> None:
    family, shape = "tests.broken_families:MIXED", {"M": 8, "N": 16}
    behaviours = ("SLOW", "RIGHT", "NOTHING", "CRASHES", "DOES_NOT_COMPILE")
    variants = (*(variant(family, shape, behaviour=b) for b in behaviours), variant(family, shape, behaviour="RIGHT", block=2))
    pruned = variant(family, shape, behaviour="RIGHT", block=3)
    settled: list[Outcome] = []
    executor: Executor = InlineExecutor()
    sweep = make_sweep(
        (*variants, pruned), backend("cpu").devices(), finals=1, pruned={pruned.id: "block is 3"}, protocol=Protocol(1, 7)
    )
    try:
        result = run(sweep, executor, settled.append, lambda progress: None)
    finally:
        executor.close()
    found = {(str(o.variant.config["behaviour"]), o.variant.config["block"]): o for o in settled}
    assert {key: o.status.value for key, o in found.items()} == {
        ("SLOW", 1): "measured",
        ("RIGHT", 1): "measured",
        ("RIGHT", 2): "duplicate",
        ("RIGHT", 3): "pruned",
        ("NOTHING", 1): "wrong_result",
        ("CRASHES", 1): "crash",
        ("DOES_NOT_COMPILE", 1): "compile_error",
    }
    right = decided(sweep, result, {o.variant.id: o for o in settled})[found["RIGHT", 1].variant.id]
    assert right.decision is Decision.CANDIDATE, right.reason
    assert right.artifact and "negate" in right.artifact.source and right.artifact.compile_seconds > 0
    assert found["RIGHT", 2].duplicate_of == right.variant.id
    assert found["CRASHES", 1].failure and "about to crash" in found["CRASHES", 1].failure.output
    assert "no_such_name" in found["DOES_NOT_COMPILE", 1].reason
    assert result.finals[right.variant.id].low > 2.0
    assert all(b.before_ms and b.after_ms for b in result.baselines.values())
