"""What a job is asked to do. Every job that measures names its device; its child sees that one alone."""

from __future__ import annotations

from dataclasses import dataclass

from runner.records import Artifact, Device, Protocol, Variant, Workload

BASELINE = "baseline"
"""What stands for a reference's id where a variant is paired with its family's baseline."""


@dataclass(frozen=True)
class BenchJob:
    """Check and time one variant, with calls of the baseline in between. `form` is the way to call that (`Baseline.form`)."""

    variant: Variant
    artifact: Artifact
    device: Device
    protocol: Protocol
    search: tuple[str, ...] = ()
    memory_gb: float | None = None
    form: str = ""


@dataclass(frozen=True)
class BaselineJob:
    """Time the family's baseline in every form that the device has."""

    workload: Workload
    device: Device
    protocol: Protocol
    search: tuple[str, ...] = ()
    memory_gb: float | None = None


@dataclass(frozen=True)
class PairJob:
    """One session: `pairs` pairs of a candidate and a reference, alternated call by call.

    `reference` None: the candidate is paired with its family's baseline. Jobs of one `session` may share a process; a job of
    another starts a fresh one. Empty: any process will do.
    """

    candidate: Variant
    candidate_artifact: Artifact
    reference: Variant | None
    reference_artifact: Artifact | None
    device: Device
    protocol: Protocol
    search: tuple[str, ...] = ()
    memory_gb: float | None = None
    form: str = ""
    pairs: int = 50
    session: str = ""


@dataclass(frozen=True)
class ProveJob:
    """Run a variant on inputs of every kind, then launch it again and again, until `launches` or `seconds` are reached."""

    variant: Variant
    artifact: Artifact
    device: Device
    launches: int = 1_000
    seconds: float = 10.0
    search: tuple[str, ...] = ()
    memory_gb: float | None = None


MeasureJob = BenchJob | BaselineJob | PairJob | ProveJob
