"""A candidate against the best: proven, measured again in pairs over fresh processes, promoted or refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from kernels.family import load_family
from kernels.sources import code_hash
from runner import gate, stats
from runner.errors import InfrastructureLost, JobFailed, Refused, RequestError
from runner.executors.base import Executor, run_one
from runner.finals import FIRST_DEADLINE, pair_deadline
from runner.jobs.requests import PairJob, ProveJob
from runner.neighbour import prove_beside
from runner.pairs import paired, percent, told, visible_gain
from runner.paths import search_folders
from runner.records import (
    PROTOCOL_VERSION,
    TIMED,
    Artifact,
    Decision,
    Device,
    Paired,
    PairSession,
    Proof,
    Protocol,
    Ruling,
    Try,
    Verdict,
)
from runner.sessions import measured
from tracking.registry import Best, Registry
from tracking.store import Store, Stored

SESSIONS, PAIRS = 5, 50
LAUNCHES, SECONDS = 1_000, 10.0
"""What a proof launches at most, and for how long."""

DOUBT = 0.05
"""Chance that a difference is taken for one that is none, over all tries together: the first has half of it, each next one half
of what is left.
"""


@dataclass(frozen=True)
class Accepted:
    """What was promoted, and on what evidence. `paired` is None for a first best that is its sweep's own base."""

    best: Best
    verdicts: tuple[Verdict, ...]
    paired: Paired | None


def accept(prefix: str, store: Store, executor: Executor, say: Callable[[str], None]) -> Accepted:
    """Promote a run. Raises NotFound, Refused (the verdicts were said) or InfrastructureLost (no such device here)."""
    stored, best = fit(prefix, store)
    _demand_passed(stored, store, say)
    reference, role = (best.stored, "best") if best else (_base_of(stored, store), "base")
    contest = _Contest(stored, reference, role, store, executor, say)
    verdicts, pairs = contest.play()
    _say_verdicts(verdicts, say)
    failed = [v.rule for v in verdicts if v.ruling is Ruling.FAIL]
    if failed:
        contest.record_try("; ".join(f"{v.rule}: {v.evidence}" for v in verdicts if v.ruling is Ruling.FAIL))
        if "alone" in failed:
            say(never_idle(store.file_of(stored)))
        raise Refused(f"refused {stored.run_id[:8]}: {', '.join(failed)}; the best is unchanged")
    return Accepted(Registry(store).promote(stored, pairs, verdicts, best.version if best else None), verdicts, pairs)


def with_itself(prefix: str, store: Store, executor: Executor, say: Callable[[str], None]) -> Paired:
    """A run's kernel in pairs with itself, as `accept` would: what differs is what this machine cannot tell apart.

    Promotes nothing and records nothing.
    """
    stored = timed(prefix, store)
    contest = _Contest(stored, stored, "kernel itself", store, executor, say)
    contest.measure()
    if contest.fault is not None:
        raise Refused(f"{stored.run_id[:8]}: {contest.fault.rule}: {contest.fault.evidence}")
    return contest.paired()


def told_apart(found: Paired) -> str:
    """What pairs of a kernel with itself came to, and which gain they would have shown."""
    pairs = sum(len(s.candidate_ms) for s in found.sessions)
    return (
        f"against itself: {told(found)} at {found.confidence:.0%}, {pairs} pairs"
        f"\nthis machine can tell a difference of {percent(visible_gain(found))} in as many"
    )


def timed(prefix: str, store: Store) -> Stored:
    """A run that was timed. Raises NotFound, or Refused for one that was not."""
    stored = store.find(prefix)
    _refuse_untimed(stored)
    return stored


def never_idle(file: str) -> str:
    """What to do on a machine where others always compute, in two lines."""
    return (
        "other processes used the device meanwhile: on a machine that is never idle no median can be trusted, but pairs can,"
        f" whose calls alternate. This judges by them:\n  sweep submit {file} --set accept.alone=none"
    )


def confidence_of(number: int) -> float:
    """Of the interval of a run's n-th try: trying for ever accepts what is not faster in less than `DOUBT` of all cases."""
    return 1 - DOUBT * 0.5 ** (number - 1)


def reject(prefix: str, reason: str, store: Store) -> Stored:
    """Mark a run as not wanted, with the reason. The best is withdrawn with a rollback instead."""
    stored = store.find(prefix)
    best = Registry(store).best(stored.outcome.variant.workload, stored.device_model)
    if best is not None and best.run_id == stored.run_id:
        raise Refused(f"{stored.run_id[:8]} is the best: `runner rollback {stored.run_id[:8]}` puts the one before it back")
    store.amend(stored.run_id, Decision.REJECTED, f"rejected by hand: {reason}", stored.outcome.verdicts)
    return stored


def fit(prefix: str, store: Store) -> tuple[Stored, Best | None]:
    """The run to measure, and the best that it is to beat. Raises NotFound, or Refused where measuring it could not help."""
    stored = store.find(prefix)
    best = Registry(store).best(stored.outcome.variant.workload, stored.device_model)
    _refuse_unfit(stored, best)
    return stored, best


class _Contest:
    """A run against what it is to beat, on one device of its model. Without a difference between the two it is only proven."""

    def __init__(
        self, stored: Stored, reference: Stored, role: str, store: Store, executor: Executor, say: Callable[[str], None]
    ):
        self._stored, self._reference, self._role = stored, reference, role
        self._store, self._executor, self._say = store, executor, say
        self._device = device_of(stored, executor)
        self._variant, self._search = stored.outcome.variant, search_folders()
        self._artifact = artifact_of(stored, store)
        self._earlier = [t for t in store.tries(stored.run_id) if t.sessions and self._is_like(t)]
        self.sessions: list[PairSession] = []
        self.fault: Verdict | None = None  # what ended it early
        self._beside = ""  # what came of a shape beside its own

    def play(self) -> tuple[tuple[Verdict, ...], Paired | None]:
        """The run's verdicts as they are now, and its pairs, with those of earlier tries; None where there are none."""
        proof = self._prove()
        if self.fault is None and self._reference.run_id != self._stored.run_id:
            self.measure()
        found = None if self.fault or not self.sessions else self.paired()
        return self._verdicts(proof, found), found

    def measure(self) -> None:
        """Session by session, to the last or to what ends it."""
        name, against = self._stored.label or "the run", self._reference.label or "its base"
        self._say(f"measuring {name} in pairs with the {self._role}, {against}, on {self._device.model}")
        outcomes = self._stored.outcome, self._reference.outcome
        slowest = max(stats.median(o.measurement.samples_ms) for o in outcomes if o.measurement)
        protocol = Protocol(warmup=_warmup(self._variant.protocol), repeat=PAIRS)
        opposing = self._reference.outcome.variant, artifact_of(self._reference, self._store)
        job = PairJob(self._variant, self._artifact, *opposing, self._device, protocol, self._search, pairs=PAIRS)
        required = self._stored.acceptance.alone == "required"
        try:
            for session in measured(self._executor, job, SESSIONS, pair_deadline(protocol, slowest), required):
                if session.contended and required:
                    self.fault = gate.refused_as_disturbed(session.contended, "")
                    return
                self.sessions.append(session)
        except JobFailed as failure:
            self.fault = gate.refused(failure, "in pairs: ")

    def paired(self) -> Paired:
        """Of all sessions of all tries, with the confidence that so many tries ask for."""
        tries = len(self._earlier) + 1
        sessions = [*(s for t in self._earlier for s in t.sessions), *self.sessions]
        if tries > 1:
            pairs = sum(len(s.candidate_ms) for s in sessions)
            self._say(f"{_ordinal(tries)} try: {len(sessions)} sessions, {pairs} pairs in all")
        return paired(self._variant.id, self._reference.variant_id, sessions, confidence_of(tries))

    def record_try(self, reason: str) -> None:
        """Keep what was measured for the next try, and that there was one."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        model = self._stored.device_model
        key = self._variant.protocol
        self._store.add_try(self._stored.run_id, Try(self._reference.variant_id, key, model, reason, now, tuple(self.sessions)))

    def _is_like(self, tried: Try) -> bool:
        """Whether an earlier try was against the same, in the same way, on the same model."""
        against = self._reference.variant_id, self._variant.protocol, self._stored.device_model
        return (tried.reference_id, tried.protocol, tried.device_model) == against

    def _prove(self) -> Proof | None:
        self._say(f"proving {self._stored.label or 'the run'} on inputs of every kind, and in up to {LAUNCHES:,} launches")
        job = ProveJob(self._variant, self._artifact, self._device, LAUNCHES, SECONDS, self._search)
        done = run_one(self._executor, job, 2 * FIRST_DEADLINE + SECONDS)
        if done.failure is not None:
            self.fault = gate.refused(done.failure, "before it was promoted: ")
            return None
        beside = prove_beside(self._variant, self._device, self._executor, self._search)
        self._beside = beside.said
        if beside.failure is not None:
            self.fault = gate.refused(beside.failure, "before it was promoted: ")
        proof: Proof = done.value
        return proof

    def _verdicts(self, proof: Proof | None, found: Paired | None) -> tuple[Verdict, ...]:
        """The run's own, with what was seen today in the place of what the sweep saw."""
        acceptance, verdicts = self._stored.acceptance, self._stored.outcome.verdicts
        today: list[Verdict] = []
        if proof is not None:
            today += self._seen_in(proof)
        if self.sessions:
            today += self._seen_in_pairs()
        if found is not None:
            today.append(gate.judge_pair(found, acceptance, self._role))
        elif self._reference.run_id == self._stored.run_id:
            said = "there is no best, and this is the base that its sweep compared the others with"
            today.append(Verdict("faster", Ruling.NOT_APPLICABLE, said))
        if self.fault is not None:
            today.append(self.fault)
        for verdict in today:
            verdicts = gate.with_verdict(verdicts, verdict)
        return verdicts

    def _seen_in(self, proof: Proof) -> list[Verdict]:
        acceptance, kinds = self._stored.acceptance, {check.inputs for check in proof.checks}
        checks = [c for c in (*proof.checks, *(c for s in self.sessions for c in s.checks)) if c.inputs == "normal"]
        calls, equal = (sum(getattr(s, name) for s in self.sessions) for name in ("calls", "equal"))
        found = [gate.deterministic(proof.launches + calls, proof.equal + equal, acceptance)]
        others = f", also on {', '.join(sorted(kinds - {'normal'}))}" if kinds - {"normal"} else ""
        others += f"; {self._beside}" if self._beside else ""
        return [*found, gate.correct(checks, acceptance, others)] if checks else found

    def _seen_in_pairs(self) -> list[Verdict]:
        """By the pairs' own samples."""
        acceptance, samples = self._stored.acceptance, [s.candidate_ms for s in self.sessions]
        workload = self._variant.workload
        flops = load_family(workload.family, self._search).flops(workload)
        median = stats.median([ms for session in samples for ms in session])
        said = [s.contended for s in self.sessions if s.contended is not None]
        return [
            gate.plausible(flops / median / 1e9, self._device, workload.dtype),
            gate.steady(stats.median([stats.relative_spread(s) for s in samples]), acceptance, " in the middle session"),
            gate.alone(next(filter(None, said), "") if said else None, acceptance),
        ]


def _say_verdicts(verdicts: Sequence[Verdict], say: Callable[[str], None]) -> None:
    for verdict in verdicts:
        say(f"  {verdict.rule:<13} {verdict.ruling.value:<15} {verdict.evidence}")


def _demand_passed(stored: Stored, store: Store, say: Callable[[str], None]) -> None:
    """Raises Refused where a rule was broken that no pair is about."""
    verdicts = stored.outcome.verdicts
    failed = [v.rule for v in verdicts if v.ruling is Ruling.FAIL and v.rule != "faster"]
    if not failed:
        return
    _say_verdicts(verdicts, say)
    if failed == ["alone"]:
        say(never_idle(store.file_of(stored)))
    raise Refused(f"refused {stored.run_id[:8]}: {', '.join(failed)}; the best is unchanged")


def _refuse_untimed(stored: Stored) -> None:
    outcome = stored.outcome
    if outcome.status not in TIMED:
        why = f"it was not measured, it is {outcome.status.value}: {outcome.reason}"
        raise Refused(f"refused {stored.run_id[:8]}: {why}")


def _refuse_unfit(stored: Stored, best: Best | None) -> None:
    """What no measurement could change. A best of an older version can be challenged: the pairs are taken today, of both."""
    _refuse_untimed(stored)
    outcome, name = stored.outcome, stored.run_id[:8]
    if best is not None and best.run_id == stored.run_id:
        raise Refused(f"refused {name}: it is the best already, since {best.accepted_at}")
    protocol = outcome.variant.protocol
    version, _, settings = protocol.partition("/")
    if version != f"v{PROTOCOL_VERSION}":
        raise Refused(
            f"refused {name}: measured under protocol {protocol}, today's is v{PROTOCOL_VERSION}: submit its sweep again"
        )
    if best is not None and best.protocol.partition("/")[2] != settings:
        both = f"measured under protocol {protocol}, the best under {best.protocol}"
        raise Refused(f"refused {name}: {both}: submit its sweep with those settings")
    family = outcome.variant.workload.family
    if code_hash(family) != outcome.variant.code:
        raise Refused(f"refused {name}: the code of family {family} has changed since: submit its sweep again")


def _base_of(stored: Stored, store: Store) -> Stored:
    """Without a best, a run is compared with the base of the sweep that measured it (or that the base was taken over by)."""
    if stored.outcome.is_base:
        return stored
    sweep = store.find_sweep(stored.sweep_id)
    ranked = next((str(row["run_id"]) for row in store.ranking(sweep) if row["base"]), None)
    if ranked is not None:
        return store.load(ranked)
    # A sweep that was killed has no ranking; its base may be measured all the same.
    measured = next((s for s in store.outcomes(sweep) if s.outcome.is_base and s.outcome.status in TIMED), None)
    if measured is None:
        raise Refused(f"refused {stored.run_id[:8]}: no best yet, and the base of sweep {sweep.name} {sweep.id} was not measured")
    return measured


def device_of(stored: Stored, executor: Executor) -> Device:
    """A device of the run's own model. Raises InfrastructureLost where there is none."""
    kind = stored.outcome.variant.target.kind
    found = executor.devices(kind)
    device = next((d for d in found if d.model == stored.device_model), None)
    if device is None:
        have = ", ".join(sorted({d.model for d in found})) or "none"
        raise InfrastructureLost(f"{stored.run_id[:8]} was measured on {stored.device_model}; {kind} devices here: {have}")
    return device


def artifact_of(stored: Stored, store: Store) -> Artifact:
    """With its binary, proven whole."""
    artifact = stored.outcome.artifact
    if artifact is None:
        raise RequestError(f"run {stored.run_id[:8]} has no built kernel")
    return replace(artifact, blob=store.artifact_blob(stored.run_id))


def _warmup(protocol: str) -> int:
    """The warm-up calls in a protocol's key, `v1/w10/r50`."""
    return int(protocol.split("/")[1][1:])


def _ordinal(number: int) -> str:
    """`2nd`, `3rd`, `11th`."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
