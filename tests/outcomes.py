"""Real outcomes of every status, small enough to write hundreds of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runner.records import (
    TIMED,
    Acceptance,
    Accuracy,
    Artifact,
    Baseline,
    Check,
    Decision,
    Device,
    Failure,
    Measurement,
    Outcome,
    Paired,
    PairSession,
    Protocol,
    Ruling,
    Status,
    SweepInfo,
    Target,
    Value,
    Variant,
    Verdict,
    Workload,
)

WORKLOAD = Workload("gemm", {"M": 512, "N": 256, "K": 128}, "float16", origin="moe")
FLOPS = 2.0 * 512 * 256 * 128
TARGET = Target("cuda", "sm_90a")
DEVICE = Device("cuda", "NVIDIA H200", index=1, host="node-7", uuid="GPU-1234", peak_tflops={"float16": 989.0})
BLOB = b"\x7fELF a kernel \x00\xff" * 20


def variant(workload: Workload = WORKLOAD, **config: Value) -> Variant:
    """A variant whose config has an entry of each sort; keyword arguments change or add entries."""
    settings: dict[str, Value] = {
        "block_M": 128,
        "threads": 256,
        "swizzle": True,
        "split_k": None,
        "pass.tl.enable_fast_math": True,
    }
    settings |= {"env.TILELANG_MACA_GEMM_K_PACK": 2, "b_interleave": 4, **config}
    return Variant(
        workload, settings, TARGET, code="c0de", toolchain={"tilelang": "0.1.15", "nvcc": "12.8"}, protocol=Protocol().key
    )


def artifact(of: Variant, blob: bytes = BLOB, **changes: Any) -> Artifact:
    made = Artifact(
        variant_id=of.id,
        source='extern "C" __global__ void main_kernel() { tl::mma_sync<tl::DataType::kFloat16>(); }\n',
        source_hash="5eed",
        blob=blob,
        sha256=hashlib.sha256(blob).hexdigest(),
        compile_seconds=3.25,
        mma_count=1,
        mma_instruction="tl::mma_sync",
        resources={"registers": 168, "spill_bytes": 0, "shared_bytes": 49152},
        log="ptxas info: used 168 registers\n",
    )
    return replace(made, **changes)


def measurement(latency_ms: float = 1.0, device: Device = DEVICE, error: float = 0.0) -> Measurement:
    """Ten samples whose median is `latency_ms`, and calls of the baseline between them that took 1.5 ms."""
    samples = tuple(latency_ms * f for f in (0.98, 0.99, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01, 1.2))
    checks = tuple(Check(seed, when, error) for seed in (0, 1) for when in ("before timing", "after timing"))
    return Measurement(
        reference_ms=(1.5,) * 8,
        calls=60,
        equal=60,
        accuracy=Accuracy(2.1e-4, 0.001, 4096),
        baseline_accuracy=Accuracy(2.07e-4, 0.0, 4096),
        first_call_ms=40.0,
        settled_call_ms=1.1,
        device=device,
        protocol=Protocol().key,
        samples_ms=samples,
        checks=checks,
        prepack_ms=0.5,
        cache="cleared between calls",
        state={"clock_mhz": 1980.0, "throttle": "none"},
        versions={"driver": "570.1"},
        measured_at="2026-01-02T03:04:05+00:00",
    )


def outcome(
    status: Status = Status.MEASURED, latency_ms: float = 1.0, config: Mapping[str, Value] | None = None, **changes: Any
) -> Outcome:
    """An outcome of any status with all the fields that status has."""
    of = variant(**(config or {}))
    fields: dict[str, Any] = {
        "variant": of,
        "status": status,
        "decision": Decision.REJECTED,
        "reason": f"it ended as {status.value}",
    }
    if status in TIMED:
        fields |= {
            "decision": Decision.CANDIDATE,
            "reason": "every rule passed",
            "artifact": artifact(of),
            "measurement": measurement(latency_ms),
            "baseline": Baseline(DEVICE, "torch.mm", (1.5, 1.5, 1.6), form="plain", forms={"plain": 1.5, "cublaslt": "not here"}),
            "verdicts": (Verdict("correct", Ruling.PASS, "max_abs_error 0 ≤ 0"), Verdict("mma", Ruling.PASS, "1 × tl::mma_sync")),
        }
    elif status is not Status.PRUNED:
        fields["failure"] = Failure("ptxas: too much shared memory (98304 > 65536)", "line 1\nline 2\n")
    if status is Status.DUPLICATE:
        fields["duplicate_of"] = "0123456789ab"
    return Outcome(**{**fields, **changes})


def session(speedup: float = 1.05, contended: str | None = "") -> PairSession:
    """Six pairs of exactly that speedup."""
    samples = (1.0, 1.01, 0.99, 1.0, 1.0, 1.02)
    checks = (Check(0, "before timing", 0.0),)
    return PairSession(samples, tuple(s * speedup for s in samples), checks, contended, calls=6, equal=6)


def paired(candidate: Outcome, speedup: float = 1.05, **changes: Any) -> Paired:
    """Three sessions."""
    found = Paired(
        candidate_id=candidate.variant.id,
        reference_id="0123456789ab",
        speedup=speedup,
        low=speedup - 0.01,
        high=speedup + 0.01,
        confidence=0.95,
        tau=0.003,
        sessions=tuple(session(s) for s in (speedup - 0.004, speedup, speedup + 0.004)),
    )
    return replace(found, **changes)


def sweep(id: str = "ab12cd34", name: str = "interleave", **changes: Any) -> SweepInfo:
    info = SweepInfo(
        id=id,
        name=name,
        question="Which B pre-pack width feeds the MMA best?",
        file="sweeps/interleave.yaml",
        text="name: interleave\nsweep:\n  b_interleave: [1, 2, 4]\n",
        workload=WORKLOAD,
        target=TARGET,
        device=DEVICE,
        protocol=Protocol().key,
        acceptance=Acceptance(max_abs_error=0.001),
        swept=("b_interleave",),
        notes=("target: cuda, the best kind here",),
        commit="6e7faa6",
    )
    return replace(info, **changes)
