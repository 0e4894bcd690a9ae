"""Records survive pickling and their one serialisation, and refuse to hold what their status rules out."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest

from runner.records import (
    TIMED,
    Acceptance,
    Accuracy,
    Allowance,
    Baseline,
    Check,
    Decision,
    Failure,
    Limits,
    Outcome,
    Proof,
    Protocol,
    RankedRow,
    Ruling,
    Status,
    SweepInfo,
    Target,
    Try,
    Variant,
    Verdict,
    Workload,
    from_dict,
    outcome_from_dict,
    paired_from_dict,
    to_dict,
)
from tests import outcomes

STATUSES = list(Status)


def every_record() -> list[Any]:
    """One of each, reached through the records that hold them."""
    measured = outcomes.outcome()
    return [
        outcomes.variant(),
        outcomes.WORKLOAD,
        outcomes.TARGET,
        outcomes.DEVICE,
        Limits(1024, 65_536, 64, ("float16",)),
        Protocol(),
        Acceptance(),
        outcomes.artifact(outcomes.variant()),
        outcomes.measurement(),
        Check(1, "as timed", 0.5),
        Accuracy(1e-4, 0.01, 64),
        Baseline(outcomes.DEVICE, "torch.mm", (1.0,), (1.1,)),
        outcomes.session(),
        outcomes.paired(measured),
        Proof((Check(7, "in a proof", 0.0, "integers"),), 1000, 1000, 7),
        Try("0123456789ab", "v2/w10/r50", "NVIDIA H200", "faster", "2026-01-02T03:04:05+00:00", (outcomes.session(),)),
        Verdict("mma", Ruling.NOT_APPLICABLE, "no such thing"),
        Failure("why", "what it printed"),
        outcomes.sweep(),
        RankedRow("run", measured, outcomes.paired(measured), reused=True),
        *(outcomes.outcome(status) for status in STATUSES),
    ]


@pytest.mark.parametrize("record", every_record(), ids=lambda r: type(r).__name__)
def test_every_record_pickles_and_cannot_be_changed(record: Any) -> None:
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(FrozenInstanceError):
        setattr(record, fields(record)[0].name, None)


@pytest.mark.parametrize("status", STATUSES)
def test_an_outcome_of_every_status_survives_json(status: Status) -> None:
    outcome = outcomes.outcome(status, is_base=True, attempt=2)
    text = json.dumps(to_dict(outcome), allow_nan=False)
    assert outcome_from_dict(json.loads(text), blob=outcomes.BLOB) == outcome


def test_deadlines_and_who_else_computed_survive_json() -> None:
    measured = replace(outcomes.measurement(), contended="other processes used 1.0 of 2 cores")
    outcome = outcomes.outcome(measurement=measured, deadlines={"build": 300.0, "measure": 75.5})
    assert outcome_from_dict(json.loads(json.dumps(to_dict(outcome))), blob=outcomes.BLOB) == outcome


def test_what_was_written_before_these_were_recorded_still_loads() -> None:
    data = json.loads(json.dumps(to_dict(outcomes.outcome())))
    del data["deadlines"], data["measurement"]["contended"]
    for device in (data["measurement"]["device"], data["baseline"]["device"]):
        del device["bound_tflops"]
    loaded = outcome_from_dict(data, blob=outcomes.BLOB)
    assert loaded == outcomes.outcome() and loaded.measurement
    assert loaded.measurement.contended is None, "nobody looked, which is not the same as nobody there"


def test_pairs_and_tries_survive_json() -> None:
    paired = outcomes.paired(outcomes.outcome())
    assert paired_from_dict(json.loads(json.dumps(to_dict(paired)))) == paired
    tried = Try("0123456789ab", "v2/w10/r50", "NVIDIA H200", "faster", "2026-01-02T03:04:05+00:00", paired.sessions)
    assert from_dict(Try, json.loads(json.dumps(to_dict(tried)))) == tried


def test_pairs_of_protocol_version_1_still_load() -> None:
    """They had one process, whose samples lay in the record itself."""
    old = {"candidate_id": "a", "reference_id": "b", "candidate_ms": [1.0, 1.1], "reference_ms": [2.0, 2.2], "speedup": 2.0}
    old |= {"low": 1.9, "high": 2.1, "confidence": 0.95, "checks": [{"seed": 1, "when": "as timed", "max_abs_error": 0.5}]}
    loaded = paired_from_dict({**old, "contended": "python3"})
    assert (loaded.candidate_ms, loaded.reference_ms, loaded.contended) == ((1.0, 1.1), (2.0, 2.2), "python3")
    assert (loaded.speedup, loaded.low, loaded.high, loaded.tau) == (2.0, 1.9, 2.1, None)
    assert loaded.checks == (Check(1, "as timed", 0.5),)


WRITTEN = Path(__file__).parent / "records"
"""As version 0.1.0 wrote them before records named a schema."""


def test_an_old_record_still_reads() -> None:
    """Of protocol version 1: it had no calls of the baseline among its own, and pairs of one process."""
    outcome, sweep, paired = (json.loads((WRITTEN / f"{name}.json").read_text()) for name in ("outcome", "sweep", "paired"))
    read = from_dict(Outcome, outcome)
    assert read.measurement is not None and read.baseline is not None and read.artifact is not None
    assert read.variant.protocol.startswith("v1/") and read.decision is Decision.CANDIDATE
    assert list(read.measurement.samples_ms) == outcome["measurement"]["samples_ms"]
    assert read.measurement.speedup_vs_baseline is None and read.measurement.accuracy is None
    assert list(read.baseline.before_ms) == outcome["baseline"]["before_ms"] and read.baseline.forms == {}
    assert from_dict(SweepInfo, sweep).id == sweep["id"]
    pairs = paired_from_dict(paired)
    assert list(pairs.candidate_ms) == paired["candidate_ms"] and (pairs.low, pairs.tau) == (paired["low"], None)


FREE_KEYS = frozenset({"shape", "config", "toolchain", "resources", "evidence", "state", "versions", "deadlines", "forms"}) | {
    "peak_tflops",
    "bound_tflops",
}
"""Fields that map keys of anybody's choice: what is added there is no field."""


def grown(value: Any) -> Any:
    """A record as a version might write it that has one field more in each."""
    if isinstance(value, list):
        return [grown(v) for v in value]
    if not isinstance(value, dict):
        return value
    return {**{k: v if k in FREE_KEYS else grown(v) for k, v in value.items()}, "added_later": [1, {}]}


@pytest.mark.parametrize("record", every_record(), ids=lambda r: type(r).__name__)
def test_every_record_survives_json_and_what_a_newer_version_adds_to_it(record: Any) -> None:
    plain = json.loads(json.dumps(to_dict(record)))
    assert to_dict(from_dict(type(record), plain)) == plain
    assert from_dict(type(record), grown(plain)) == from_dict(type(record), plain)


WRONG_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "a status that is not known": ({"status": "measured by ear"}, "status: 'measured by ear'"),
    "a decision that is not known": ({"decision": "retired"}, "decision: 'retired'"),
    "a kind of target": ({"variant": {**to_dict(outcomes.variant()), "target": {"kind": "abacus", "arch": ""}}}, "abacus"),
    "text for a number": ({"attempt": "first"}, "attempt: 'first' is no int"),
    "a mapping for a list": ({"verdicts": {}}, "verdicts: '{}' is no list"),
    "a list for a record": ({"measurement": [1]}, "measurement: .* is no Measurement"),
    "nothing for a record": ({"variant": None}, "variant: 'None' is no Variant"),
    "fields that do not go together": ({"failure": {"detail": "why"}}, "carries a failure exactly when it failed"),
}


@pytest.mark.parametrize("changes, why", WRONG_RECORDS.values(), ids=WRONG_RECORDS)
def test_a_record_that_cannot_be_read_says_where(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        from_dict(Outcome, {**to_dict(outcomes.outcome()), **changes})


def test_a_record_without_a_field_that_it_needs_says_which() -> None:
    data = to_dict(outcomes.outcome())
    del data["variant"]["workload"]["dtype"], data["variant"]["workload"]["family"]
    with pytest.raises(ValueError, match="variant: workload: Workload lacks dtype, family"):
        from_dict(Outcome, data)


def test_a_tuple_of_known_length_is_read_as_one() -> None:
    allowance = Allowance(deadline_s=(1.0, 2.0), memory_gb=None)
    assert from_dict(Allowance, json.loads(json.dumps(to_dict(allowance)))) == allowance
    with pytest.raises(ValueError, match="3 entries in place of 2"):
        from_dict(Allowance, {"deadline_s": [1.0, 2.0, 3.0]})


def test_a_failure_after_the_build_keeps_its_artifact_in_json() -> None:
    outcome = outcomes.outcome(Status.CRASH, artifact=outcomes.artifact(outcomes.variant()))
    assert outcome_from_dict(json.loads(json.dumps(to_dict(outcome))), blob=outcomes.BLOB) == outcome


def test_bytes_are_left_out_of_json() -> None:
    assert "blob" not in to_dict(outcomes.artifact(outcomes.variant()))


WRONG: dict[str, tuple[Status, dict[str, Any]]] = {
    "measured without a measurement": (Status.MEASURED, {"measurement": None}),
    "measured without an artifact": (Status.MEASURED, {"artifact": None}),
    "measured with a failure": (Status.MEASURED, {"failure": Failure("why")}),
    "measured and a duplicate": (Status.MEASURED, {"duplicate_of": "0123456789ab"}),
    "duplicate of nothing": (Status.DUPLICATE, {"duplicate_of": ""}),
    "duplicate without the twin's measurement": (Status.DUPLICATE, {"measurement": None}),
    "crashed with a latency": (Status.CRASH, {"measurement": outcomes.measurement()}),
    "crashed without saying why": (Status.CRASH, {"failure": None}),
    "crashed and yet a candidate": (Status.CRASH, {"decision": Decision.CANDIDATE}),
    "pruned with a failure": (Status.PRUNED, {"failure": Failure("why")}),
    "pruned and accepted": (Status.PRUNED, {"decision": Decision.ACCEPTED}),
    "no reason": (Status.MEASURED, {"reason": ""}),
}


@pytest.mark.parametrize("status, changes", WRONG.values(), ids=WRONG)
def test_an_outcome_refuses_fields_that_its_status_rules_out(status: Status, changes: dict[str, Any]) -> None:
    good = outcomes.outcome(status)
    with pytest.raises(ValueError, match=status.value):
        replace(good, **changes)


def test_only_timed_outcomes_have_a_latency() -> None:
    assert {status for status in STATUSES if outcomes.outcome(status).measurement is not None} == TIMED


def test_a_variants_id_is_stable_across_processes_and_key_order() -> None:
    variant = outcomes.variant()
    shuffled = replace(variant, config=dict(reversed(list(variant.config.items()))))
    again = from_dict(Variant, json.loads(json.dumps(to_dict(variant))))
    assert variant.id == shuffled.id == again.id
    assert len(variant.id) == 12 and int(variant.id, 16) >= 0
    # Written down: runs recorded by earlier versions are found by it.
    assert replace(variant, protocol="v1/w10/r50").id == "9e6b5eefc76d"


CHANGED: dict[str, dict[str, Any]] = {
    "shape": {"workload": replace(outcomes.WORKLOAD, shape={**outcomes.WORKLOAD.shape, "M": 513})},
    "dtype": {"workload": replace(outcomes.WORKLOAD, dtype="float32")},
    "family": {"workload": replace(outcomes.WORKLOAD, family="grouped_gemm")},
    "a knob": {"config": {**outcomes.variant().config, "b_interleave": 8}},
    "a knob's type": {"config": {**outcomes.variant().config, "swizzle": 1}},
    "a pass config": {"config": {**outcomes.variant().config, "pass.tl.enable_fast_math": False}},
    "architecture": {"target": Target("cuda", "sm_80")},
    "code": {"code": "other"},
    "toolchain": {"toolchain": {"tilelang": "0.1.16"}},
    "protocol": {"protocol": Protocol(repeat=51).key},
}


@pytest.mark.parametrize("changes", CHANGED.values(), ids=CHANGED)
def test_whatever_a_measurement_depends_on_is_in_the_id(changes: dict[str, Any]) -> None:
    assert replace(outcomes.variant(), **changes).id != outcomes.variant().id


def test_where_a_shape_came_from_is_not_in_the_id() -> None:
    by_hand = replace(outcomes.WORKLOAD, origin="")
    assert by_hand != outcomes.WORKLOAD
    assert outcomes.variant(by_hand).id == outcomes.variant().id


def test_a_config_falls_into_knobs_pass_configs_and_environment() -> None:
    variant = outcomes.variant()
    assert variant.pass_configs == {"tl.enable_fast_math": True}
    assert variant.env == {"TILELANG_MACA_GEMM_K_PACK": "2"}
    assert set(variant.knobs) == {"block_M", "threads", "swizzle", "split_k", "b_interleave"}
    assert variant.label(("b_interleave", "threads", "no_such_knob")) == "b_interleave=4 threads=256"


def test_names_that_people_search_by() -> None:
    assert Workload("gemm", {"M": 512, "N": 256, "K": 128}, "float16").name == "gemm 512x256x128 float16"
    assert str(Target("cuda", "sm_90a")) == "cuda sm_90a"
    assert str(Target("cpu", "native")) == "cpu"
    assert Protocol(2, 10).key == "v2/w2/r10"
