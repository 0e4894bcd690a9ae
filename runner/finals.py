"""The end of a sweep: the baseline once more, and the best few measured again in pairs with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

from runner import stats
from runner.errors import FailureKind
from runner.executors.base import Done
from runner.fleet import Fleet
from runner.gate import Reference, beside
from runner.jobs.requests import BaselineJob, PairJob
from runner.records import Allowance, Artifact, Decision, Device, Outcome, Protocol, Variant
from runner.sweep import Result, Sweep

FIRST_DEADLINE = 300.0  # seconds for a baseline at least: nothing is known yet about how long a call takes
SLOWEST = 50.0  # times the baseline: what a call may take before it counts as hanging
CHECKS = 4  # calls of a measurement that are neither warm-up nor timed
MIN_PAIRS = 20  # a median's interval from fewer pairs is too wide to rank by


class Contenders:
    """The fastest few that pass every rule, with the artifacts that the finals need; the others' are let go."""

    def __init__(self, sweep: Sweep):
        self._sweep = sweep
        self._best: list[tuple[float, Outcome]] = []
        self._base: Outcome | None = None

    def add(self, outcome: Outcome, reference: Reference | None) -> None:
        """`reference` is what all are compared with."""
        if outcome.variant.id == self._sweep.base.id:
            self._base = outcome
        if outcome.decision in (Decision.CANDIDATE, Decision.ACCEPTED):
            assert outcome.measurement is not None
            found = beside(outcome.measurement, outcome.baseline, reference), outcome
            # One more than the finals take: the reference itself may be among them.
            self._best = sorted([*self._best, found], key=itemgetter(0))[: self._sweep.finals + 1]

    def leader(self) -> Outcome | None:
        return self._best[0][1] if self._best else None

    def rivals(self, reference_id: str) -> list[Outcome]:
        return [o for _, o in self._best if o.variant.id != reference_id][: self._sweep.finals]

    def artifact(self, variant_id: str) -> Artifact:
        """With its binary: from this sweep where it was built here, else from the store."""
        held = (o.artifact for o in (*(o for _, o in self._best), self._base) if o is not None and o.variant.id == variant_id)
        artifact = next(held, None)
        return artifact if artifact is not None and artifact.blob else self._sweep.fetch(variant_id)


def baselines_again(sweep: Sweep, fleet: Fleet, result: Result, say: Callable[[str], None]) -> None:
    """The same baselines after the sweep: what they moved by is what the results between may have moved by."""
    say(f"timing {sweep.baseline_name} again")
    for before in result.baselines.values():
        if before.device in fleet.idle:
            fleet.measure(baseline_job(sweep, before.device), baseline_deadline(sweep.allowance))
        elif before.device not in fleet.dismissed:
            result.notes.append(f"{before.device} went before the end: {sweep.baseline_name} was not timed there again")
    while fleet.measuring:
        if (done := fleet.next()) is None:
            continue
        assert isinstance(done.job, BaselineJob)
        device = done.job.device
        fleet.free(device)
        if done.failure is None:
            result.baselines[device.key] = replace(result.baselines[device.key], after_ms=done.value)
        else:
            result.notes.append(f"{sweep.baseline_name} after the sweep failed on {device}: {done.failure.detail}")


def play(sweep: Sweep, fleet: Fleet, result: Result, contenders: Contenders, say: Callable[[str], None]) -> None:
    """Each finalist alternated with the reference on one device: the order that counts."""
    reference = result.reference
    rivals = contenders.rivals(reference.variant_id) if reference else []
    if reference is None or not rivals:
        return
    variant = sweep.best_variant or sweep.base
    artifact = contenders.artifact(reference.variant_id)
    protocol = replace(sweep.protocol, repeat=max(sweep.protocol.repeat, MIN_PAIRS))
    for number, rival in enumerate(rivals, 1):
        say(f"finals {number} of {len(rivals)}, paired with the {reference.role}")
        pair = (rival.variant, contenders.artifact(rival.variant.id), variant, artifact)
        done = _pair(sweep, fleet, result, pair, protocol)
        if done.failure is not None and done.failure.kind is FailureKind.LOST:
            done = _pair(sweep, fleet, result, pair, protocol)
        if done.failure is None:
            result.finals[rival.variant.id] = done.value
        else:
            result.notes.append(f"finals of {rival.variant.label(sweep.info.swept)}: {done.failure}")


def _pair(
    sweep: Sweep, fleet: Fleet, result: Result, pair: tuple[Variant, Artifact, Variant, Artifact], protocol: Protocol
) -> Done:
    """On the first device that is here, each time the same as long as it stays."""
    while not fleet.here:
        fleet.next()
    device = fleet.here[0]
    job = PairJob(*pair, device, protocol, sweep.search, sweep.allowance.memory_gb)
    return fleet.run(job, 2 * deadline(result, device, protocol, sweep.allowance))


def baseline_job(sweep: Sweep, device: Device) -> BaselineJob:
    return BaselineJob(sweep.info.workload, device, sweep.protocol, sweep.search, sweep.allowance.memory_gb)


def baseline_deadline(allowance: Allowance) -> float:
    return max(FIRST_DEADLINE, allowance.deadline_s[1])


def deadline(result: Result, device: Device, protocol: Protocol, allowance: Allowance) -> float:
    """Seconds that a measurement may take: the floor, to set up, and every call at `SLOWEST` times the device's baseline."""
    floor, ceiling = allowance.deadline_s
    known = result.baselines.get(device.key) or next(iter(result.baselines.values()))  # of its model, where it has none yet
    baseline_s = stats.median(known.before_ms) / 1e3
    return min(ceiling, floor + (protocol.warmup + protocol.repeat + CHECKS) * SLOWEST * baseline_s)


def pair_deadline(protocol: Protocol, slowest_ms: float) -> float:
    """Seconds that a pair may take outside a sweep, when the slower of the two is known to take so long."""
    return FIRST_DEADLINE + 2 * (protocol.warmup + protocol.repeat) * SLOWEST * slowest_ms / 1e3
