"""A sweep file -> everything that is settled before the first job starts. Joins the engine's parts; starts nothing."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata

from kernels.family import Family, load_family
from kernels.sources import code_hash
from runner.errors import RequestError, nearest
from runner.expand import Expansion, expand
from runner.gate import IN_FINALS, Reference, decide, judge, with_verdict
from runner.paths import search_folders
from runner.prune import prune
from runner.records import TIMED, Artifact, Decision, Device, Outcome, Paired, SweepInfo, TargetKind, Variant
from runner.spec import SweepSpec, load_spec
from runner.sweep import Sweep
from runner.targets.base import BACKENDS, backend
from tracking.registry import Best, Registry
from tracking.store import Store, Stored

COMMIT = "SWEEP_RUNNER_COMMIT"
"""Environment variable of a job on a cluster: the commit that it was submitted from."""

EACH = "all"
"""What a file says of its devices to have each model measured in a sweep of its own."""

SOMEWHERE = "a device of the cluster"
"""The model of a device that only the cluster knows."""

Find = Callable[[TargetKind], tuple[Device, ...]]
"""Where devices of a kind are looked for: this machine, or a cluster."""


@dataclass(frozen=True)
class Asked:
    """What a sweep file asks for, which nothing is wrong with."""

    spec: SweepSpec
    family: Family
    expansion: Expansion
    pruned: Mapping[str, str]
    devices: tuple[Device, ...]  # of one model; empty where there is none, which is enough to plan
    notes: tuple[str, ...]
    settings: tuple[str, ...]
    fresh: bool
    again: SweepInfo | None
    id: str | None  # where one was given to it already
    more: tuple[str, ...]  # other models of devices that the file wants a sweep of its own on

    def demand_device(self) -> None:
        """Raises RequestError where there is no device to measure on."""
        if not self.devices:
            raise RequestError(
                f"no {self.spec.kind} device here: `runner doctor` says what was looked for; "
                "another target is chosen with --target"
            )


@dataclass(frozen=True)
class Planned(Asked):
    """What a sweep file comes to. `known` holds the runs that are taken over from earlier sweeps, by variant id."""

    known: Mapping[str, Stored]
    best: Best | None

    @property
    def missing(self) -> tuple[Variant, ...]:
        """What a submit would have to build and measure."""
        return tuple(v for v in self.expansion.variants if v.id not in self.known and v.id not in self.pruned)


def read(
    path: str,
    target: str | None,
    settings: Sequence[str],
    find: Find,
    fresh: bool = False,
    again: SweepInfo | None = None,
    id: str | None = None,
    model: str | None = None,
) -> Asked:
    """Read, expand and prune. `fresh` takes nothing over from earlier sweeps; the text of one that is taken up `again` is read.

    `model` is one of several that the file wants to run on. Raises SpecError or RequestError for what cannot be done as written.
    """
    said: list[str] = []

    def choose(asked: str) -> TargetKind:
        return _choose(target or asked, find, said)

    spec = load_spec(path, choose, load_family, settings, again.text if again else None)
    family = load_family(spec.family)
    devices, others = _one_model(find(spec.kind), model or ("" if spec.devices == EACH else spec.devices))
    resolved = backend(spec.kind).target(spec.arch or (devices[0].arch or None if devices else None))
    expansion = expand(spec, family, resolved, code_hash(spec.family), toolchain(spec.kind, devices))
    pruned = prune(expansion, family, backend(spec.kind).limits(resolved))
    each = spec.devices == EACH
    left_out = [f"left out, being another model than {devices[0].model}: {other}" for other in others if not each]
    notes = (*said, *left_out, *spec.notes)
    more = others if each and model is None else ()
    return Asked(spec, family, expansion, pruned, devices, notes, tuple(settings), fresh, again, again.id if again else id, more)


def toolchain(kind: TargetKind, devices: Sequence[Device] = ()) -> dict[str, str]:
    """What shapes the code beside its source: on the host of the devices, where that has told, and else on this machine."""
    if devices and devices[0].tilelang:
        return {"tilelang": devices[0].tilelang, **devices[0].toolchain}
    return {"tilelang": metadata.version("tilelang"), **backend(kind).toolchain()}


def read_again(info: SweepInfo, find: Find) -> Asked:
    """What a sweep asked for that was started before: the same text, target and settings."""
    return read(info.file, info.target.kind, info.settings, find, info.fresh, info, model=info.device.model)


def plan(asked: Asked, store: Store) -> Planned:
    """Look up what is known of it, and the best."""
    known: dict[str, Stored] = {}
    best = None
    if asked.devices:
        model, workload = asked.devices[0].model, asked.spec.workload
        known = store.known(workload, model, [v.id for v in asked.expansion.variants if v.id not in asked.pruned])
        if asked.fresh:
            known = {i: stored for i, stored in known.items() if asked.again and stored.sweep_id == asked.again.id}
        known = {i: stored for i, stored in known.items() if not _disturbed(stored, asked.spec)}
        best = Registry(store).best(workload, model)
    return Planned(**vars(asked), known=known, best=best)


def sweep_of(planned: Planned, store: Store) -> Sweep:
    """The engine's view of a plan. Raises RequestError where there is no device to measure on."""
    spec, again = planned.spec, planned.again
    planned.demand_device()
    best, reference = _comparable_best(planned)
    base = planned.expansion.base
    info = SweepInfo(
        id=planned.id or new_id(),
        name=spec.name,
        question=spec.question,
        file=spec.file,
        text=spec.text,
        workload=spec.workload,
        target=base.target,
        device=planned.devices[0],
        protocol=spec.protocol.key,
        acceptance=spec.acceptance,
        swept=spec.swept,
        notes=planned.notes,
        settings=planned.settings,
        fresh=planned.fresh,
        commit=git_commit(),
    )
    flops = planned.family.flops(spec.workload)
    runs = {**({best.variant_id: best.run_id} if best else {}), **{k: v.run_id for k, v in planned.known.items()}}

    def fetch(variant_id: str) -> Artifact:
        artifact = store.load(runs[variant_id]).outcome.artifact
        assert artifact is not None
        return replace(artifact, blob=store.artifact_blob(runs[variant_id]))

    return Sweep(
        info=info,
        variants=planned.expansion.variants,
        base=base,
        pruned=planned.pruned,
        known=_judged_again(planned, reference, flops),
        protocol=spec.protocol,
        finals=spec.finals,
        flops=flops,
        devices=planned.devices,
        baseline_name=planned.family.baseline_name,
        best=reference,
        best_variant=best.stored.outcome.variant if best else None,
        fetch=fetch,
        search=search_folders(),
        allowance=spec.allowance,
        sessions=spec.sessions,
        pairs=_played_before(planned, reference),
        played=any(stored.paired is not None for stored in planned.known.values()),
        attempts=store.attempts(again) if again else {},
    )


def new_id() -> str:
    return uuid.uuid4().hex[:8]


def local_devices(kind: TargetKind) -> tuple[Device, ...]:
    return backend(kind).devices()


def _disturbed(stored: Stored, spec: SweepSpec) -> bool:
    """Whether somebody else computed on the device while a run was timed, and this sweep does not take that, or its own did
    not: then the run can never be accepted, and another one may be.
    """
    measurement = stored.outcome.measurement
    asked_for = "required" in (spec.acceptance.alone, stored.acceptance.alone)
    return asked_for and measurement is not None and bool(measurement.contended)


def git_commit() -> str:
    """The commit that the working tree stands on, with `+dirty` when it was changed; empty outside git."""
    if submitted := os.environ.get(COMMIT):
        return submitted

    def git(*arguments: str) -> str:
        try:
            return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:
            return ""

    commit = git("rev-parse", "--short=12", "HEAD")
    return commit + ("+dirty" if commit and git("status", "--porcelain", "--untracked-files=no") else "")


def _choose(asked: str, find: Find, said: list[str]) -> TargetKind:
    if asked != "auto":
        return backend(asked).kind
    for kind in BACKENDS:
        if devices := find(backend(kind).kind):
            said.append(f"target auto: {kind}, on {devices[0].model}")
            return backend(kind).kind
    raise RequestError("target auto: no device of any kind was found")


def _one_model(devices: tuple[Device, ...], wanted: str) -> tuple[tuple[Device, ...], tuple[str, ...]]:
    """Results of different models are never ranked together, so a sweep runs on one: the first, or that which is wanted.

    Then the other models that there are. Raises RequestError where there is none like that.
    """
    models = list(dict.fromkeys(d.model for d in devices))
    if wanted and models and wanted not in models and models != [SOMEWHERE]:
        raise RequestError(f"devices: there is no {wanted} here: {nearest(wanted, models)}")
    chosen = wanted or (models[0] if models else "")
    return tuple(d for d in devices if d.model in (chosen, SOMEWHERE)), tuple(m for m in models if m != chosen)


def _comparable_best(planned: Planned) -> tuple[Best | None, Reference | None]:
    """The best, where it was measured under this sweep's protocol; numbers of two protocols are never compared."""
    best = planned.best
    if best is None or best.protocol != planned.spec.protocol.key:
        return None, None
    outcome = best.stored.outcome
    variant = outcome.variant
    reference = Reference.of("best", variant, outcome.artifact, outcome.measurement, variant.label(planned.spec.swept))
    return (best, reference) if reference is not None else (None, None)


def _played_before(planned: Planned, reference: Reference | None) -> dict[str, Paired]:
    """Pairs of earlier sweeps with today's reference, by variant id: they hold whatever else was measured since."""
    against = reference.variant_id if reference else planned.expansion.base.id
    pairs = {i: stored.paired for i, stored in planned.known.items()}
    return {i: paired for i, paired in pairs.items() if paired is not None and paired.reference_id == against}


def _judged_again(planned: Planned, reference: Reference | None, flops: float) -> dict[str, Outcome]:
    """What is known, under the rules of this sweep's file and against today's reference."""
    base = planned.known.get(planned.expansion.base.id)
    if reference is None and base is not None:
        variant, label = planned.expansion.base, planned.expansion.base.label(planned.spec.swept) or "base"
        reference = Reference.of("base", variant, base.outcome.artifact, base.outcome.measurement, label)
    return {variant_id: _judge(stored, planned, reference, flops) for variant_id, stored in planned.known.items()}


def _judge(stored: Stored, planned: Planned, reference: Reference | None, flops: float) -> Outcome:
    outcome = replace(stored.outcome, is_base=stored.variant_id == planned.expansion.base.id)
    if outcome.status not in TIMED or outcome.measurement is None or outcome.artifact is None:
        return outcome
    acceptance = planned.spec.acceptance
    verdicts = judge(outcome.variant, outcome.artifact, outcome.measurement, outcome.baseline, acceptance, flops, reference)
    for verdict in outcome.verdicts:
        if verdict.evidence.startswith(IN_FINALS) and not (verdict.rule == "alone" and acceptance.alone == "none"):
            verdicts = with_verdict(verdicts, verdict)
    decision, reason = decide(verdicts)
    if planned.best is not None and planned.best.run_id == stored.run_id:
        decision = Decision.ACCEPTED
    return replace(outcome, verdicts=verdicts, decision=decision, reason=reason)
