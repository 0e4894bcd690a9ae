"""The end of a sweep: the baseline once more, and the best few measured again in pairs with the reference."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from runner import stats
from runner.errors import FailureKind
from runner.executors.base import Done
from runner.fleet import Fleet
from runner.gate import Reference, refused, refused_as_disturbed
from runner.jobs.requests import BaselineJob, PairJob, ProveJob
from runner.pairs import paired
from runner.records import Allowance, Artifact, Baseline, Decision, Device, Measurement, Outcome, PairSession, Protocol
from runner.sweep import Result, Sweep

FIRST_DEADLINE = 300.0  # seconds for a baseline at least: nothing is known yet about how long a call takes
SLOWEST = 50.0  # times the baseline: what a call may take before it counts as hanging
CHECKS = 4  # calls of a measurement that are neither warm-up nor timed
MIN_PAIRS = 20  # a median's interval from fewer pairs is too wide to rank by
FIRST_ROUND = 4  # contenders that each seat of the finals has in the round before them
FIRST_PAIRS = 10  # of each, which is enough to see who is worth more


class Contenders:
    """The best few by their calls of the baseline that pass every rule so far, with the artifacts that the finals need.

    Who is slower than the reference for sure is none. The others' artifacts are let go.
    """

    def __init__(self, sweep: Sweep):
        self._sweep = sweep
        self._best: list[Outcome] = []
        self._base: Outcome | None = None
        self._fetched: dict[str, Artifact] = {}

    def add(self, outcome: Outcome) -> None:
        if outcome.variant.id == self._sweep.base.id:
            self._base = outcome
        if outcome.decision not in (Decision.REJECTED, Decision.BEATEN) and _speed(outcome):
            # One more than the finals may take: the reference itself may be among them.
            self._best = sorted([*self._best, outcome], key=_speed, reverse=True)[: FIRST_ROUND * self._sweep.finals + 1]

    def leader(self) -> Outcome | None:
        return self._best[0] if self._best else None

    def rivals(self, reference: Reference | None) -> list[Outcome]:
        """Those that are to play against the reference, best first; nobody where there is none."""
        if reference is None:
            return []
        others = [o for o in self._best if not reference.is_kernel_of(o.variant, o.artifact)]
        return others[: FIRST_ROUND * self._sweep.finals]

    def artifact(self, variant_id: str) -> Artifact:
        """With its binary: from this sweep where it was built here, else from the store."""
        held = (o.artifact for o in (*self._best, self._base) if o is not None and o.variant.id == variant_id)
        artifact = next(held, None)
        if artifact is not None and artifact.blob:
            return artifact
        if variant_id not in self._fetched:
            self._fetched[variant_id] = self._sweep.fetch(variant_id)
        return self._fetched[variant_id]


def base_reference(sweep: Sweep, artifact: Artifact | None, measurement: Measurement | None) -> Reference | None:
    """The sweep's base, as what the others are compared with where there is no best; None where it was not timed."""
    return Reference.of("base", sweep.base, artifact, measurement, sweep.base.label(sweep.info.swept) or "base")


def known_reference(sweep: Sweep) -> Reference | None:
    """The best, or the base where it is known from before."""
    base = sweep.known.get(sweep.base.id)
    return sweep.best or (base_reference(sweep, base.artifact, base.measurement) if base is not None else None)


def due(sweep: Sweep) -> bool:
    """Whether there is nothing to measure but the finals: all is known, and nobody ever played, as after an interrupt."""
    if sweep.played or any(v.id not in sweep.known and v.id not in sweep.pruned for v in sweep.variants):
        return False
    contenders = Contenders(sweep)
    for outcome in sweep.known.values():
        contenders.add(outcome)
    return bool(contenders.rivals(known_reference(sweep)))


def baselines_again(sweep: Sweep, fleet: Fleet, result: Result, say: Callable[[str], None]) -> None:
    """The same baselines after the sweep: by how much the cards have drifted meanwhile."""
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
            result.baselines[device.key] = _joined(result.baselines[device.key], done.value)
        else:
            result.notes.append(f"{sweep.baseline_name} after the sweep failed on {device}: {done.failure.detail}")


def play(sweep: Sweep, fleet: Fleet, result: Result, contenders: Contenders, say: Callable[[str], None]) -> None:
    """The contenders alternated with the reference, call by call on one device: the order that counts."""
    rivals = contenders.rivals(result.reference)
    if result.reference is not None and rivals:
        _Finals(sweep, fleet, result, contenders, result.reference, say).play(rivals)


class _Finals:
    """A first round of few pairs where there are more contenders than seats; then those in the seats, proven and in full."""

    def __init__(
        self,
        sweep: Sweep,
        fleet: Fleet,
        result: Result,
        contenders: Contenders,
        reference: Reference,
        say: Callable[[str], None],
    ):
        self._sweep, self._fleet, self._result, self._contenders = sweep, fleet, result, contenders
        self._reference, self._say = reference, say
        self._opponent = sweep.best_variant or sweep.base
        self._processes = count(1)

    def play(self, rivals: Sequence[Outcome]) -> None:
        ranked = deque(self._first_round(rivals))
        while ranked and len(self._result.finals) < self._sweep.finals:
            self._in_full(self._proven(ranked, self._sweep.finals - len(self._result.finals)))
        if not self._result.finals:
            self._result.notes.append(f"no contender was left in the finals: none of {len(rivals)} could be paired in full")

    def _first_round(self, rivals: Sequence[Outcome]) -> list[Outcome]:
        """Who is still there, best first."""
        if len(rivals) <= self._sweep.finals:
            return list(rivals)
        played: list[tuple[float, Outcome]] = []
        process = self._fresh()
        for number, rival in enumerate(rivals, 1):
            self._say(f"first round {number} of {len(rivals)}, {FIRST_PAIRS} pairs with the {self._reference.role}")
            if (session := self._session(rival, FIRST_PAIRS, process)) is not None:
                played.append((stats.paired_speedup(session.candidate_ms, session.reference_ms)[0], rival))
        played.sort(key=lambda found: found[0], reverse=True)
        for place, (speedup, rival) in enumerate(played, 1):
            said = f"{speedup:.4f}x the {self._reference.role} in {FIRST_PAIRS} pairs, place {place} of {len(played)}"
            self._result.unproven[rival.variant.id] = f"{said}: not among those that were paired in full"
        return [rival for _, rival in played]

    def _proven(self, ranked: deque[Outcome], seats: int) -> list[Outcome]:
        """The next in rank that are right on inputs of every kind, as many as there are seats."""
        chosen: list[Outcome] = []
        while ranked and len(chosen) < seats:
            rival = ranked.popleft()
            variant, artifact = rival.variant, self._contenders.artifact(rival.variant.id)
            search, memory = self._sweep.search, self._sweep.allowance.memory_gb
            self._say(f"finals: {variant.label(self._sweep.info.swept) or 'base'} on inputs of every kind")
            job = ProveJob(variant, artifact, self._device(), launches=0, search=search, memory_gb=memory)
            if self._took_place(rival, self._run(job)):
                chosen.append(rival)
        return chosen

    def _in_full(self, chosen: Sequence[Outcome]) -> None:
        """Every session in a process of its own, which its finalists share."""
        pairs = max(self._sweep.protocol.repeat, MIN_PAIRS)
        taken: dict[str, list[PairSession]] = {rival.variant.id: [] for rival in chosen}
        for number in range(1, self._sweep.sessions + 1):
            process = self._fresh()
            for place, rival in enumerate(chosen, 1):
                if rival.variant.id not in taken:
                    continue
                where = f"session {number} of {self._sweep.sessions}"
                self._say(f"finals {place} of {len(chosen)}, {where}: {pairs} pairs with the {self._reference.role}")
                if (session := self._session(rival, pairs, process)) is not None:
                    taken[rival.variant.id].append(session)
                else:
                    del taken[rival.variant.id]
        for variant_id, sessions in taken.items():
            self._result.unproven.pop(variant_id, None)
            self._result.finals[variant_id] = paired(variant_id, self._reference.variant_id, sessions)

    def _session(self, rival: Outcome, pairs: int, process: str) -> PairSession | None:
        """Once more where others disturbed it. None where the rival has no place in the finals any more."""
        for _ in range(2):
            done = self._run(self._pair(rival, pairs, process))
            if not self._took_place(rival, done):
                return None
            session: PairSession = done.value
            if not session.contended or self._sweep.info.acceptance.alone != "required":
                return session
        self._result.refused[rival.variant.id] = refused_as_disturbed(session.contended or "")
        return None

    def _took_place(self, rival: Outcome, done: Done) -> bool:
        """Whether a job of the finals gave a value; the result says why where it did not."""
        if done.failure is None:
            return True
        if done.failure.kind is FailureKind.LOST:
            self._result.unproven[rival.variant.id] = f"lost twice in the finals: {done.failure.detail}"
        else:
            self._result.refused[rival.variant.id] = refused(done.failure)
        return False

    def _pair(self, rival: Outcome, pairs: int, process: str) -> PairJob:
        artifact, opposing = (self._contenders.artifact(i) for i in (rival.variant.id, self._reference.variant_id))
        device, sweep = self._device(), self._sweep
        return PairJob(
            rival.variant,
            artifact,
            self._opponent,
            opposing,
            device,
            sweep.protocol,
            sweep.search,
            sweep.allowance.memory_gb,
            form=_known(self._result, device).form,
            pairs=pairs,
            session=process,
        )

    def _run(self, job: PairJob | ProveJob) -> Done:
        """Once more on whatever device is here where the job was lost."""
        for _ in range(2):
            job = replace(job, device=self._device())
            pairs = job.pairs if isinstance(job, PairJob) else MIN_PAIRS
            protocol = replace(self._sweep.protocol, repeat=pairs)
            done = self._fleet.run(job, 2 * deadline(self._result, job.device, protocol, self._sweep.allowance))
            if done.failure is None or done.failure.kind is not FailureKind.LOST:
                break
        return done

    def _device(self) -> Device:
        """The first that is here, each time the same as long as it stays."""
        while not self._fleet.here:
            self._fleet.next()
        return self._fleet.here[0]

    def _fresh(self) -> str:
        """The name of a process that nobody has used yet."""
        return f"{self._sweep.info.id} finals {next(self._processes)}"


def baseline_job(sweep: Sweep, device: Device) -> BaselineJob:
    return BaselineJob(sweep.info.workload, device, sweep.protocol, sweep.search, sweep.allowance.memory_gb)


def baseline_deadline(allowance: Allowance) -> float:
    return max(FIRST_DEADLINE, allowance.deadline_s[1])


def deadline(result: Result, device: Device, protocol: Protocol, allowance: Allowance) -> float:
    """Seconds that a measurement may take: the floor, to set up, and every call at `SLOWEST` times the device's baseline."""
    floor, ceiling = allowance.deadline_s
    baseline_s = stats.median(_known(result, device).before_ms) / 1e3
    return min(ceiling, floor + (protocol.warmup + protocol.repeat + CHECKS) * SLOWEST * baseline_s)


def pair_deadline(protocol: Protocol, slowest_ms: float) -> float:
    """Seconds that a pair may take outside a sweep, when the slower of the two is known to take so long."""
    return FIRST_DEADLINE + 2 * (protocol.warmup + protocol.repeat) * SLOWEST * slowest_ms / 1e3


def _known(result: Result, device: Device) -> Baseline:
    """A device's baseline, or that of another of its model where it has none yet."""
    return result.baselines.get(device.key) or next(iter(result.baselines.values()))


def _joined(before: Baseline, after: Baseline) -> Baseline:
    """One record of both times; who disturbed either is told."""
    told = [said for said in (before.contended, after.contended) if said is not None]
    return replace(before, after_ms=after.before_ms, contended=next(filter(None, told), "") if told else None)


def _speed(outcome: Outcome) -> float:
    """Over the calls of the baseline among its own; 0 where there are none."""
    return (outcome.measurement.speedup_vs_baseline if outcome.measurement else None) or 0.0
