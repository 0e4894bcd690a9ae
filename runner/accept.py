"""A candidate against the best: evidence checked, measured again in pairs on one device, promoted or refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.family import code_hash, load_family
from runner import stats
from runner.bench import PairJob
from runner.errors import InfrastructureLost, Refused, RequestError
from runner.executors.base import Executor, run_one
from runner.finals import pair_deadline
from runner.gate import judge_pair
from runner.paths import search_folders
from runner.records import PROTOCOL_VERSION, TIMED, Artifact, Decision, Device, Paired, Protocol, Ruling, Verdict
from tracking.registry import Best, Registry
from tracking.store import Store, Stored

PAIRS = 50


@dataclass(frozen=True)
class Accepted:
    """What was promoted, and on what evidence. `paired` is None for a first best that is its sweep's own base."""

    best: Best
    verdicts: tuple[Verdict, ...]
    paired: Paired | None


def accept(prefix: str, store: Store, executor: Executor, say: Callable[[str], None]) -> Accepted:
    """Promote a run. Raises NotFound, Refused (the verdicts were said) or InfrastructureLost (no such device here)."""
    stored, best = fit(prefix, store)
    verdicts = stored.outcome.verdicts
    failed = [v for v in verdicts if v.ruling is Ruling.FAIL and v.rule != "faster"]
    reference, role = (best.stored, "best") if best else (_base_of(stored, store), "base")
    paired = None
    if not failed and reference.run_id != stored.run_id:
        device = device_of(stored, executor)
        say(f"measuring {stored.label or 'the run'} in pairs with the {role}, {reference.label or 'its base'}, on {device.model}")
        paired = _measure(stored, reference, store, executor, device)
        verdicts = _verdicts_after(stored, paired, role)
    for verdict in verdicts:
        say(f"  {verdict.rule:<10} {verdict.ruling.value:<15} {verdict.evidence}")
    failed = [v for v in verdicts if v.ruling is Ruling.FAIL]
    if failed:
        raise Refused(f"refused {stored.run_id[:8]}: {', '.join(v.rule for v in failed)}; the best is unchanged")
    return Accepted(Registry(store).promote(stored, paired, verdicts, best.version if best else None), verdicts, paired)


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


def _refuse_unfit(stored: Stored, best: Best | None) -> None:
    """What no measurement could change."""
    outcome, name = stored.outcome, stored.run_id[:8]
    if outcome.status not in TIMED:
        raise Refused(f"refused {name}: it was not measured, it is {outcome.status.value}: {outcome.reason}")
    if best is not None and best.run_id == stored.run_id:
        raise Refused(f"refused {name}: it is the best already, since {best.accepted_at}")
    protocol = outcome.variant.protocol
    if not protocol.startswith(f"v{PROTOCOL_VERSION}/"):
        raise Refused(
            f"refused {name}: measured under protocol {protocol}, today's is v{PROTOCOL_VERSION}: submit its sweep again"
        )
    if best is not None and best.protocol != protocol:
        both = f"measured under protocol {protocol}, the best under {best.protocol}"
        raise Refused(f"refused {name}: {both}: submit its sweep with those settings")
    family = load_family(outcome.variant.workload.family, search_folders())
    if code_hash(family) != outcome.variant.code:
        raise Refused(f"refused {name}: the code of family {family.name} has changed since: submit its sweep again")


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


def _measure(stored: Stored, reference: Stored, store: Store, executor: Executor, device: Device) -> Paired:
    variant, search = stored.outcome.variant, search_folders()
    pairs = [artifact_of(s, store) for s in (stored, reference)]
    protocol = Protocol(warmup=_warmup(variant.protocol), repeat=PAIRS)
    assert reference.outcome.measurement is not None and stored.outcome.measurement is not None
    slowest = max(stats.median(s.outcome.measurement.samples_ms) for s in (stored, reference) if s.outcome.measurement)
    job = PairJob(variant, pairs[0], reference.outcome.variant, pairs[1], device, protocol, search)
    done = run_one(executor, job, pair_deadline(protocol, slowest))
    if done.failure is not None:
        raise Refused(f"refused {stored.run_id[:8]}: {done.failure}")
    paired: Paired = done.value
    return paired


def artifact_of(stored: Stored, store: Store) -> Artifact:
    """With its binary, proven whole."""
    artifact = stored.outcome.artifact
    if artifact is None:
        raise RequestError(f"run {stored.run_id[:8]} has no built kernel")
    return replace(artifact, blob=store.artifact_blob(stored.run_id))


def _verdicts_after(stored: Stored, paired: Paired, role: str) -> tuple[Verdict, ...]:
    """The run's own verdicts, with today's error and the paired speedup in place of what the sweep saw."""
    worst = max(c.max_abs_error for c in paired.checks)
    limit = stored.acceptance.max_abs_error
    ruling = Ruling.PASS if worst <= limit else Ruling.FAIL
    today = {
        "correct": Verdict("correct", ruling, f"max_abs_error {worst:.6g} measured again, limit {limit:g}"),
        "faster": judge_pair(paired, stored.acceptance, role),
    }
    return tuple(today.get(v.rule, v) for v in stored.outcome.verdicts)


def _warmup(protocol: str) -> int:
    """The warm-up calls in a protocol's key, `v1/w10/r50`."""
    return int(protocol.split("/")[1][1:])
