"""What the parts of the runner say to each other.

Every record is frozen, pickles, holds no tensor and no callable, and knows nothing of Ray or MLflow.
`to_dict`/`from_dict` are the one serialisation; what is written to disk or to MLflow goes through them.
Times are milliseconds unless a name says otherwise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Literal

Value = int | float | str | bool | None
TargetKind = Literal["cpu", "cuda", "maca"]

PROTOCOL_VERSION = 1
"""Version of the way time is taken and results are checked (docs/protocol.md). Part of every variant's identity."""

PASS_PREFIX = "pass."
"""Config keys with this prefix are TileLang pass configs: `pass.tl.enable_fast_math`."""

ENV_PREFIX = "env."
"""Config keys with this prefix are environment variables set in the build's process: `env.TILELANG_MACA_GEMM_K_PACK`."""


class Status(str, Enum):
    """What became of a variant. Only `LOST` is the infrastructure's doing, and only it is retried."""

    MEASURED = "measured"
    DUPLICATE = "duplicate"
    PRUNED = "pruned"
    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    LAUNCH_ERROR = "launch_error"
    WRONG_RESULT = "wrong_result"
    HANG = "hang"
    CRASH = "crash"
    LOST = "lost"
    CANCELLED = "cancelled"


TIMED = frozenset({Status.MEASURED, Status.DUPLICATE})
UNSETTLED = frozenset({Status.LOST, Status.CANCELLED})
"""Statuses that a later submit tries again."""


class Ruling(str, Enum):
    """A rule's answer. `NOT_APPLICABLE` is never counted as a pass: it says why instead."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


class Decision(str, Enum):
    REJECTED = "rejected"
    CANDIDATE = "candidate"
    ACCEPTED = "accepted"
    SUPERSEDED = "superseded"


@dataclass(frozen=True)
class Target:
    """A backend and an architecture, resolved once at submit. `arch` is `native`, `sm_90a`, `xcore1000`, …"""

    kind: TargetKind
    arch: str

    def __str__(self) -> str:
        return self.kind if self.arch == "native" else f"{self.kind} {self.arch}"


@dataclass(frozen=True)
class Limits:
    """What a device of a target allows one block to use; None is "no such limit"."""

    max_threads: int | None
    shared_memory_bytes: int | None
    warp_size: int | None
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Device:
    """One card (or this machine's CPU). `index` counts within the host; `model` is what results are kept apart by."""

    kind: TargetKind
    model: str
    index: int = 0
    host: str = ""
    uuid: str = ""
    peak_tflops: Mapping[str, float] = field(default_factory=dict)  # by dtype; empty: unknown
    bound_tflops: Mapping[str, float] = field(default_factory=dict)  # what none of its kind exceeds, where no peak is known
    arch: str = ""  # what code for it is generated for; empty: the target's default
    tilelang: str = ""  # the version on its host, where another one asks
    toolchain: Mapping[str, str] = field(default_factory=dict)  # `Backend.toolchain` of its host, likewise

    @property
    def key(self) -> tuple[str, int]:
        """What it is known by within a sweep: its host and its index there."""
        return self.host, self.index

    def __str__(self) -> str:
        return f"{self.model} {self.index} on {self.host}"


@dataclass(frozen=True)
class Workload:
    """What is computed: a family, its shape and dtype. `origin` says where a shape came from ("moe", "on: cpu")."""

    family: str
    shape: Mapping[str, int]
    dtype: str
    origin: str = ""

    @property
    def name(self) -> str:
        """`gemm 131072x2048x7168 float16`: the words an experiment is found by."""
        return f"{self.family} {'x'.join(str(v) for v in self.shape.values())} {self.dtype}"


@dataclass(frozen=True)
class Variant:
    """A workload, how it is computed, and for which target; everything a measurement depends on is in its `id`.

    `code` is the hash of the family's source, `toolchain` the versions that shape the generated code, `protocol`
    how time is taken (`Protocol.key`).
    """

    workload: Workload
    config: Mapping[str, Value]
    target: Target
    code: str
    toolchain: Mapping[str, str]
    protocol: str

    @cached_property
    def id(self) -> str:
        """12 hex digits; equal exactly when a measurement of one is a measurement of the other."""
        identity = to_dict(self)
        del identity["workload"]["origin"]
        return digest(identity)[:12]

    @property
    def knobs(self) -> dict[str, Value]:
        return {k: v for k, v in self.config.items() if not k.startswith((PASS_PREFIX, ENV_PREFIX))}

    @property
    def pass_configs(self) -> dict[str, Value]:
        return {k[len(PASS_PREFIX) :]: v for k, v in self.config.items() if k.startswith(PASS_PREFIX)}

    @property
    def env(self) -> dict[str, str]:
        return {k[len(ENV_PREFIX) :]: str(v) for k, v in self.config.items() if k.startswith(ENV_PREFIX)}

    def label(self, knobs: tuple[str, ...] = ()) -> str:
        """The knobs named (all where none is), as `b_interleave=4 threads=512`."""
        return " ".join(f"{k}={self.config[k]}" for k in (knobs or tuple(self.config)) if k in self.config)


@dataclass(frozen=True)
class Protocol:
    """How one variant is timed: `warmup` calls, then `repeat` timed ones, results checked with two seeds."""

    warmup: int = 10
    repeat: int = 50

    @property
    def key(self) -> str:
        return f"v{PROTOCOL_VERSION}/w{self.warmup}/r{self.repeat}"


@dataclass(frozen=True)
class Allowance:
    """What one job may use before it is ended: seconds, from a floor to a ceiling, and gigabytes of the node's memory.

    No part of a variant's identity: a measurement that was finished does not depend on it.
    """

    deadline_s: tuple[float, float] = (60.0, 600.0)  # of a measurement
    compile_deadline_s: tuple[float, float] = (60.0, 300.0)
    memory_gb: float | None = None  # None: a share of what the node has free
    siblings: float = 0.03  # by how much a card's baseline may differ from that of the others of its model


@dataclass(frozen=True)
class Acceptance:
    """What the gate demands. `mma` is "required" or "none" (the target has no matrix instruction), `alone` likewise.

    `alone: none` is for a machine that is never idle: what others disturbed is then told and no longer held against a variant.
    """

    max_abs_error: float = 0.0
    mma: str = "required"
    min_speedup: float = 1.0
    max_spread: float = 0.2
    alone: str = "required"


@dataclass(frozen=True)
class Artifact:
    """What a build leaves. `blob` is TileLang's own cache entry, packed; `sha256` is of `blob`."""

    variant_id: str
    source: str
    source_hash: str
    blob: bytes = field(repr=False)
    sha256: str = ""
    compile_seconds: float = 0.0
    mma_count: int | None = None  # None: the target has no matrix instruction
    mma_instruction: str = ""
    resources: Mapping[str, int] = field(default_factory=dict)  # registers, spill_bytes, shared_bytes
    evidence: Mapping[str, str | int] = field(default_factory=dict)  # launch_bounds, reads_A, async_copies, sass_HGMMA …
    log: str = ""


@dataclass(frozen=True)
class Check:
    """One comparison of a finite, wholly written output with the baseline's; a worse one is a failure, not a check."""

    seed: int
    when: str  # "before timing", "as timed" or "after timing"
    max_abs_error: float


@dataclass(frozen=True)
class Measurement:
    """Samples in call order, and what they were taken under."""

    device: Device
    protocol: str
    samples_ms: tuple[float, ...]
    checks: tuple[Check, ...]
    prepack_ms: float = 0.0
    cache: str = ""  # "cleared between calls" or why not
    state: Mapping[str, float | str] = field(default_factory=dict)  # clock_mhz, power_w, temperature_c, threads …
    versions: Mapping[str, str] = field(default_factory=dict)
    measured_at: str = ""  # UTC, ISO 8601
    contended: str | None = None  # who else computed on the device meanwhile; "" for nobody, None where it cannot be told

    @property
    def max_abs_error(self) -> float:
        return max(c.max_abs_error for c in self.checks)


@dataclass(frozen=True)
class Baseline:
    """The vendor path for the same math on the same device, before and (once the sweep is over) after."""

    device: Device
    name: str  # "torch.mm"
    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Paired:
    """A candidate against a reference, alternated call by call on one device. Speedup = reference / candidate."""

    candidate_id: str
    reference_id: str
    candidate_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    speedup: float
    low: float
    high: float
    confidence: float
    checks: tuple[Check, ...] = ()
    contended: str | None = None  # as in Measurement


@dataclass(frozen=True)
class Verdict:
    """A rule's ruling with its evidence in one line."""

    rule: str
    ruling: Ruling
    evidence: str


@dataclass(frozen=True)
class Failure:
    """Why a variant has no measurement: one readable line, and the tail of what was printed."""

    detail: str
    output: str = ""


@dataclass(frozen=True)
class Outcome:
    """All that became of one variant. The status decides which fields exist; checked when it is made."""

    variant: Variant
    status: Status
    reason: str
    decision: Decision
    verdicts: tuple[Verdict, ...] = ()
    artifact: Artifact | None = None
    measurement: Measurement | None = None
    baseline: Baseline | None = None
    failure: Failure | None = None
    duplicate_of: str = ""  # variant id
    is_base: bool = False
    attempt: int = 1
    deadlines: Mapping[str, float] = field(default_factory=dict)  # seconds that "build" and "measure" were given

    def __post_init__(self) -> None:
        def demand(ok: bool, what: str) -> None:
            if not ok:
                raise ValueError(f"an outcome that is {self.status.value!r} {what}")

        timed = self.status in TIMED
        demand((self.measurement is not None) == timed, "has a measurement exactly when it was timed")
        demand((self.artifact is not None) or not timed, "needs its artifact")
        demand(bool(self.duplicate_of) == (self.status is Status.DUPLICATE), "names its twin exactly when a duplicate")
        demand(timed or self.decision is Decision.REJECTED, "was not timed and can only be rejected")
        demand(
            (self.failure is not None) == (not timed and self.status is not Status.PRUNED),
            "carries a failure exactly when it failed",
        )
        demand(bool(self.reason), "needs a reason")


@dataclass(frozen=True)
class SweepInfo:
    """What a sweep is, as far as its record goes: who asked what, of which workload, on which device model."""

    id: str  # 8 hex digits, new for every submit
    name: str
    question: str
    file: str  # as the user named it
    text: str  # the file's own text
    workload: Workload
    target: Target
    device: Device  # the first of the model that the sweep runs on
    protocol: str
    acceptance: Acceptance
    swept: tuple[str, ...]  # knobs that vary, in the file's order
    notes: tuple[str, ...] = ()  # what was said aloud: overrides by target, the target chosen by `auto`
    settings: tuple[str, ...] = ()  # `--set` options
    fresh: bool = False  # nothing was taken over from earlier sweeps
    commit: str = ""  # git commit of the working tree, "+dirty" when it was changed; empty outside git


@dataclass(frozen=True)
class RankedRow:
    """One line of a sweep's table; every timed variant has one, best first, whether measured now or taken from before."""

    run_id: str
    outcome: Outcome
    paired: Paired | None = None  # finalists only
    reused: bool = False


PLAIN = frozenset((float, int, str, bool))


def to_dict(record: Any) -> Any:
    """A record as plain JSON values; bytes are left out (they travel on their own)."""
    if record is None or type(record) in PLAIN:  # most of a record is numbers
        return record
    if isinstance(record, Enum):
        return record.value
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        pairs = ((f.name, getattr(record, f.name)) for f in dataclasses.fields(record))
        return {k: to_dict(v) for k, v in pairs if not isinstance(v, bytes)}
    if isinstance(record, Mapping):
        return {str(k): to_dict(v) for k, v in record.items()}
    if isinstance(record, (list, tuple)):
        return [to_dict(v) for v in record]
    return record


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, whatever order its keys were written in."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def variant_from_dict(data: Mapping[str, Any]) -> Variant:
    return Variant(
        workload=Workload(**data["workload"]),
        config=dict(data["config"]),
        target=Target(**data["target"]),
        code=data["code"],
        toolchain=dict(data["toolchain"]),
        protocol=data["protocol"],
    )


def measurement_from_dict(data: Mapping[str, Any]) -> Measurement:
    return Measurement(
        **{
            **data,
            "device": Device(**data["device"]),
            "samples_ms": tuple(data["samples_ms"]),
            "checks": tuple(Check(**c) for c in data["checks"]),
        }
    )


def paired_from_dict(data: Mapping[str, Any]) -> Paired:
    samples = {k: tuple(data[k]) for k in ("candidate_ms", "reference_ms")}
    return Paired(**{**data, **samples, "checks": tuple(Check(**c) for c in data["checks"])})


def baseline_from_dict(data: Mapping[str, Any]) -> Baseline:
    return Baseline(Device(**data["device"]), data["name"], tuple(data["before_ms"]), tuple(data["after_ms"]))


def outcome_from_dict(data: Mapping[str, Any], blob: bytes = b"") -> Outcome:
    """The inverse of `to_dict` for an outcome; `blob` is the artifact's binary, where the caller has it."""

    def some(key: str, make: Any) -> Any:
        return None if data.get(key) is None else make(data[key])

    return Outcome(
        variant=variant_from_dict(data["variant"]),
        status=Status(data["status"]),
        reason=data["reason"],
        decision=Decision(data["decision"]),
        verdicts=tuple(Verdict(v["rule"], Ruling(v["ruling"]), v["evidence"]) for v in data["verdicts"]),
        artifact=some("artifact", lambda a: Artifact(**a, blob=blob)),
        measurement=some("measurement", measurement_from_dict),
        baseline=some("baseline", baseline_from_dict),
        failure=some("failure", lambda f: Failure(**f)),
        duplicate_of=data["duplicate_of"],
        is_base=data["is_base"],
        attempt=data["attempt"],
        deadlines=dict(data.get("deadlines", {})),
    )
