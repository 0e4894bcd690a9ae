"""A sweep whose builds and measurements do nothing, through everything else that a real one goes through."""

from __future__ import annotations

import hashlib
import platform
import time
from typing import Any

from runner.build import BuildJob
from runner.jobs.requests import BaselineJob, BenchJob, PairJob, ProveJob
from runner.records import (
    Acceptance,
    Artifact,
    Baseline,
    Check,
    Device,
    Measurement,
    PairSession,
    Proof,
    Protocol,
    SweepInfo,
    Target,
    Variant,
    Workload,
)
from runner.sweep import Sweep

PROTOCOL = Protocol(10, 50)
SOURCE = 'extern "C" void gemm_kernel() {}\n' * 60  # as long as a small kernel's
CHECK = Check(1, "before timing", 0.0)
BLOB = b"\x7fELF" * 10_000  # 40 kB, as a CPU kernel's


def noop_sweep(variants: int, busy_ms: int = 0, devices: int = 0) -> Sweep:
    """With `busy_ms` measuring takes that long. Then, or with so many `devices`, it goes on while results are recorded."""
    workload = Workload("gemm", {"M": 512, "N": 512, "K": 512}, "float32")
    knobs = {"block_N": 64, "block_K": 64, "num_stages": None, "threads": None, "b_interleave": 1, "busy_ms": busy_ms}
    target = Target("cuda", "sm_90a") if busy_ms or devices else Target("cpu", "x86_64")
    measured_on = tuple(Device(target.kind, "no-op", index, platform.node()) for index in range(devices or 1))
    made = tuple(
        Variant(workload, {"block_M": i, **knobs}, target, "noop", {"tilelang": "0"}, PROTOCOL.key) for i in range(variants)
    )
    info = SweepInfo(
        "0" * 8, "noop", "What does the runner cost?", "noop.yaml", "", workload, target, measured_on[0], PROTOCOL.key,
        Acceptance(max_abs_error=1.0, mma="none", max_spread=10.0, alone="none"), ("block_M",),
    )  # fmt: skip
    return Sweep(info, made, made[0], {}, {}, PROTOCOL, 3, 2.0 * 512**3, measured_on, "torch.mm", None, None, _no_artifact)


def _no_artifact(variant_id: str) -> Artifact:
    raise KeyError(variant_id)


def build(job: BuildJob) -> Artifact:
    source = f"// {job.variant.id}\n{SOURCE}"
    return Artifact(
        job.variant.id, source, hashlib.sha256(source.encode()).hexdigest(), BLOB, hashlib.sha256(BLOB).hexdigest(), 0.1
    )


def samples(seed: int) -> tuple[float, ...]:
    return tuple(1.0 + seed % 7 / 10 + i / 1000 for i in range(PROTOCOL.repeat))


def measure(job: BenchJob) -> Measurement:
    time.sleep(int(job.variant.config["busy_ms"] or 0) / 1e3)
    taken = samples(int(job.variant.config["block_M"] or 0))
    return Measurement(job.device, PROTOCOL.key, taken, (CHECK,), versions={"torch": "0"}, reference_ms=samples(0)[:8])


def measure_baseline(job: BaselineJob) -> Baseline:
    return Baseline(job.device, "torch.mm", samples(0))


def measure_pair(job: PairJob) -> PairSession:
    return PairSession(samples(0)[: job.pairs], samples(1)[: job.pairs], (CHECK,))


def prove(job: ProveJob) -> Proof:
    return Proof((CHECK,), job.launches, job.launches)


FUNCTIONS: dict[type, Any] = {
    BuildJob: build,
    BenchJob: measure,
    BaselineJob: measure_baseline,
    PairJob: measure_pair,
    ProveJob: prove,
}
