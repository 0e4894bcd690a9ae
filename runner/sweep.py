"""A sweep as the engine sees it: what was settled before it starts, how far it is, and what is known at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runner.gate import Reference
from runner.records import Allowance, Artifact, Baseline, Device, Outcome, Paired, Protocol, SweepInfo, Variant, Verdict


@dataclass(frozen=True)
class Sweep:
    """Everything that is settled before the first job starts. `variants` begins with `base`."""

    info: SweepInfo
    variants: tuple[Variant, ...]
    base: Variant
    pruned: Mapping[str, str]  # variant id -> reason
    known: Mapping[str, Outcome]  # variant id -> outcome of an earlier sweep, judged again
    protocol: Protocol
    finals: int
    flops: float
    devices: tuple[Device, ...]  # all of one model
    baseline_name: str
    best: Reference | None
    best_variant: Variant | None
    fetch: Callable[[str], Artifact]  # the artifact of a known variant or of the best, with its blob
    search: tuple[str, ...] = ()
    allowance: Allowance = field(default_factory=Allowance)
    sessions: int = 3  # fresh processes that the finals are played in
    pairs: Mapping[str, Paired] = field(default_factory=dict)  # variant id -> with the same reference, in an earlier sweep
    played: bool = False  # whether any of the known variants was in the finals of an earlier sweep
    attempts: Mapping[str, int] = field(default_factory=dict)  # variant id -> tries of this sweep before it was taken up again


@dataclass
class Progress:
    """What a person waiting wants to see."""

    total: int
    stage: str = "building"
    building: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    best: Outcome | None = None


@dataclass
class Result:
    """What is known only at the end. Baselines are keyed by host and index of their device, all others by variant id."""

    baselines: dict[tuple[str, int], Baseline] = field(default_factory=dict)
    finals: dict[str, Paired] = field(default_factory=dict)  # played in full
    refused: dict[str, Verdict] = field(default_factory=dict)  # in the finals: the rule that was broken there
    unproven: dict[str, str] = field(default_factory=dict)  # why a contender did not play in full
    reference: Reference | None = None
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
