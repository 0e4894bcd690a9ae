"""What the parts of the runner say to each other.

Every record is frozen, pickles, holds no tensor and no callable, and knows nothing of Ray or MLflow.
`to_dict`/`from_dict` are the one serialisation; what is written to disk or to MLflow goes through them.
Times are milliseconds unless a name says otherwise.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from statistics import median
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
Value = int | float | str | bool | None
TargetKind = Literal["cpu", "cuda", "maca"]

PROTOCOL_VERSION = 2
"""Version of the way time is taken and results are checked (docs/protocol.md). Part of every variant's identity."""

SCHEMA = 1
"""Version of what is written of a record. It grows where a reader of the version before could not make sense of it."""

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
    SIDE_EFFECT = "side_effect"
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
    """`CANDIDATE` is won in pairs, alone or tied; `BEATEN` is right and slower; `UNPROVEN` was never measured in pairs."""

    REJECTED = "rejected"
    UNPROVEN = "unproven"
    BEATEN = "beaten"
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
    """How one variant is timed: `warmup` calls at least, then `repeat` timed ones, every result checked."""

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
    """What the gate demands. `mma` is "required" or "none" (the target has no matrix instruction); so are the other words.

    `max_abs_error` is against the baseline, None for information only. `max_error_ratio` is against float64: how many times the
    baseline's own error a variant's may be, None for what its dtype asks. `alone: none` is for a machine that is never idle: what
    others disturbed is then told and no longer held against a variant.
    """

    max_abs_error: float | None = 0.0
    mma: str = "required"
    min_speedup: float = 1.0
    max_spread: float = 0.2
    alone: str = "required"
    deterministic: str = "required"
    max_error_ratio: float | None = None


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
    inputs: str = "normal"  # their kind: "normal", "integers", "one-hot rows", …


@dataclass(frozen=True)
class Accuracy:
    """How far a result is from the same math in float64, over a sample of its elements."""

    relative_error: float  # Frobenius norm of the difference, as a share of the exact result's
    ulp_share: float  # share of the elements that are off by more than one unit in their last place
    elements: int


@dataclass(frozen=True)
class Measurement:
    """Samples in call order, and what they were taken under.

    `reference_ms` are calls of the baseline, spread evenly among the timed ones: whatever slows the device down slows both.
    """

    device: Device
    protocol: str
    samples_ms: tuple[float, ...]
    checks: tuple[Check, ...]
    prepack_ms: float = 0.0
    cache: str = ""  # "cleared between calls" or why not
    state: Mapping[str, float | str] = field(default_factory=dict)  # clock_mhz, power_w, temperature_c, threads …
    versions: Mapping[str, str] = field(default_factory=dict)
    measured_at: str = ""  # UTC, ISO 8601
    contended: str | None = None  # other processes on the device meanwhile; "" for none, None where it cannot be told
    reference_ms: tuple[float, ...] = ()
    calls: int = 0  # whose output was compared bit by bit with that of the first, timed or warming up
    equal: int = 0  # of those
    accuracy: Accuracy | None = None  # None: there is no exact result to compare with
    baseline_accuracy: Accuracy | None = None
    first_call_ms: float = 0.0  # by the host's clock; it loads what later calls find loaded
    settled_call_ms: float = 0.0  # the fastest of the other calls before timing, by the host's clock
    batch: int = 1  # calls that one pair of device events timed
    exposed: int = 0  # samples taken again, because the device waited for the host to launch

    @property
    def max_abs_error(self) -> float:
        return max(c.max_abs_error for c in self.checks)

    @property
    def speedup_vs_baseline(self) -> float | None:
        """By the baseline's calls among its own; None for a record from before there were any."""
        return median(self.reference_ms) / median(self.samples_ms) if self.reference_ms else None


@dataclass(frozen=True)
class Baseline:
    """The vendor path for the same math on the same device, before and (once the sweep is over) after."""

    device: Device
    name: str  # "torch.mm"
    before_ms: tuple[float, ...]
    after_ms: tuple[float, ...] = ()
    contended: str | None = None  # other processes on the device, before or after
    form: str = ""  # the fastest way to call it: "transposed B, cublaslt"; empty: there is one way
    forms: Mapping[str, float | str] = field(default_factory=dict)  # every way with its median in ms, or why it cannot be had
    accuracy: Accuracy | None = None


@dataclass(frozen=True)
class PairSession:
    """Pairs of one process, in call order."""

    candidate_ms: tuple[float, ...]
    reference_ms: tuple[float, ...]
    checks: tuple[Check, ...] = ()
    contended: str | None = None  # as in Measurement
    calls: int = 0  # of the candidate, as in Measurement
    equal: int = 0
    state: Mapping[str, float | str] = field(default_factory=dict)
    measured_at: str = ""


@dataclass(frozen=True)
class Paired:
    """A candidate against a reference, alternated call by call on one device, in several processes.

    Speedup = reference / candidate. The interval is over processes where there are several, else within the one. `tau` is how
    much processes differ beyond what their own pairs explain, as a share (0.01 is 1 %); None where there is one.
    """

    candidate_id: str
    reference_id: str
    speedup: float
    low: float
    high: float
    confidence: float
    tau: float | None = None
    sessions: tuple[PairSession, ...] = ()

    @property
    def candidate_ms(self) -> tuple[float, ...]:
        return tuple(ms for session in self.sessions for ms in session.candidate_ms)

    @property
    def reference_ms(self) -> tuple[float, ...]:
        return tuple(ms for session in self.sessions for ms in session.reference_ms)

    @property
    def checks(self) -> tuple[Check, ...]:
        return tuple(check for session in self.sessions for check in session.checks)

    @property
    def contended(self) -> str | None:
        """The first session's that was disturbed; None where none can tell."""
        said = [session.contended for session in self.sessions if session.contended is not None]
        return next(filter(None, said), "") if said else None


@dataclass(frozen=True)
class Proof:
    """What a variant did beside being timed, before it is promoted: inputs of other kinds, and many launches."""

    checks: tuple[Check, ...]
    launches: int  # whose output was compared bit by bit with that of the first
    equal: int  # of those
    seed: int = 0  # of the inputs that nobody had seen before


@dataclass(frozen=True)
class Try:
    """An attempt to have a run accepted that was refused after it was measured: the next one counts its sessions, and it."""

    reference_id: str  # variant id of what the run was paired with
    protocol: str
    device_model: str
    reason: str
    tried_at: str  # UTC, ISO 8601
    sessions: tuple[PairSession, ...] = ()


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
NUMBERS = frozenset((float, int, bool))
Reader = Callable[[Any], Any]
"""Makes a value of some type from its JSON, or raises ValueError."""


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


def versioned(record: Any) -> dict[str, Any]:
    """A record as it is written where other versions read it: `to_dict` and the schema that it follows."""
    return {"schema": SCHEMA, **to_dict(record)}


def from_dict(cls: type[T], data: Any) -> T:
    """The inverse of `to_dict`, also for a record of another version: unknown keys are ignored, missing ones take their defaults.

    Bytes come back empty: `to_dict` left them out. Raises ValueError, naming the field, where one without a default is missing
    or a value is none of its type.
    """
    return cast(T, _reader(cast(Any, cls))(data))


def paired_from_dict(data: Mapping[str, Any]) -> Paired:
    """`from_dict` of pairs. Those of protocol version 1 had one process, and kept its samples in the record itself."""
    return from_dict(Paired, data if "sessions" in data else {**data, "sessions": [data]})


def outcome_from_dict(data: Mapping[str, Any], blob: bytes = b"") -> Outcome:
    """`from_dict` of an outcome; `blob` is the artifact's binary, where the caller has it."""
    outcome = from_dict(Outcome, data)
    if outcome.artifact is None or not blob:
        return outcome
    return dataclasses.replace(outcome, artifact=dataclasses.replace(outcome.artifact, blob=blob))


@cache
def _reader(kind: Any) -> Reader:
    """What reads a value of a type; made once for each type, since thousands of records are read."""
    origin, inside = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    if origin in (Union, UnionType):
        return _union_reader(inside)
    if origin is tuple:
        return _tuple_reader(inside)
    if origin is Literal:
        return _choice_reader(inside)
    if origin is collections.abc.Mapping:
        return _mapping_reader(_reader(inside[1]))
    if origin is collections.abc.Sequence:
        return _tuple_reader((inside[0], ...))
    if kind is Any:
        return lambda value: value
    return cast(Reader, kind) if issubclass(kind, Enum) else _plain_reader((kind,))


def _record_reader(kind: Any) -> Reader:
    hints = get_type_hints(kind)
    fields = [f for f in dataclasses.fields(kind) if hints[f.name] is not bytes]
    readers = [(f.name, _reader(hints[f.name])) for f in fields]
    bare = {f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING}
    empty = {f.name: b"" for f in dataclasses.fields(kind) if hints[f.name] is bytes}

    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise ValueError(f"{str(data)[:40]!r} is no {kind.__name__}")
        if missing := bare - data.keys():
            raise ValueError(f"{kind.__name__} lacks {', '.join(sorted(missing))}")
        found: dict[str, Any] = dict(empty)
        for name, reader in readers:
            if name in data:
                try:
                    found[name] = reader(data[name])
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        return kind(**found)

    return read


def _union_reader(kinds: tuple[Any, ...]) -> Reader:
    """Of plain values, or of one type and None."""
    if all(kind in (*PLAIN, NoneType) for kind in kinds):
        return _plain_reader(kinds)
    (one,) = (_reader(kind) for kind in kinds if kind is not NoneType)
    return lambda value: None if value is None else one(value)


def _tuple_reader(kinds: tuple[Any, ...]) -> Reader:
    """Of any length where it ends in an ellipsis, else with a reader for each place."""
    readers = [_reader(kind) for kind in kinds if kind is not ...]

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{str(value)[:40]!r} is no list")
        if kinds[-1] is ...:
            return tuple(map(readers[0], value))
        if len(value) != len(kinds):
            raise ValueError(f"{str(value)[:40]!r} has {len(value)} entries in place of {len(kinds)}")
        return tuple(reader(item) for reader, item in zip(readers, value))

    return read


def _mapping_reader(reader: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ValueError(f"{str(value)[:40]!r} is no mapping")
        return {k: reader(v) for k, v in value.items()}

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any) -> Any:
        if value not in choices:
            raise ValueError(f"{str(value)[:40]!r} is none of {', '.join(map(str, choices))}")
        return value

    return read


def _plain_reader(kinds: tuple[Any, ...]) -> Reader:
    """A number may be written as any other kind of number."""
    taken = {*kinds, *(NUMBERS if NUMBERS.intersection(kinds) else ())}
    names = " or ".join(kind.__name__ for kind in kinds)

    def read(value: Any) -> Any:
        if type(value) not in taken:
            raise ValueError(f"{str(value)[:40]!r} is no {names}")
        return value

    return read
