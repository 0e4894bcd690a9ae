"""A kernel that poisons its CUDA context is named, and the next variant starts on a clean device."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

from kernels.family import load_family
from runner.build import BuildJob, build
from runner.errors import FailureKind
from runner.executors.inline import InlineExecutor
from runner.jobs.requests import BenchJob
from runner.records import Device, Protocol, Target, Value, Variant, Workload
from runner.targets.base import backend

DEVICES = backend("cuda").devices()
PROTOCOL = Protocol(10, 50)
HEALTHY: dict[str, Value] = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256, "b_interleave": 1}


def variant(family: str, config: dict[str, Value], target: Target, size: int = 4096) -> Variant:
    found = load_family(family)
    dtype = "float16" if family == "gemm" else "float32"
    return Variant(Workload(family, dict.fromkeys(found.dims, size), dtype), config, target, "test", {}, PROTOCOL.key)


@pytest.mark.parametrize("after", [0, 40])
def test_the_stray_kernel_is_built_without_a_gpu(after: int) -> None:
    artifact = build(BuildJob(variant("tests.broken_cuda_families:STRAY", {"after": after}, Target("cuda", "sm_90a"), 256)))
    assert f"stray({after})" in artifact.source


@pytest.fixture
def executor() -> Iterator[InlineExecutor]:
    made = InlineExecutor()
    yield made
    made.close()


def run(executor: InlineExecutor, job: Any) -> Any:
    executor.submit(job, 300)
    return executor.next()


@pytest.mark.gpu
@pytest.mark.skipif(not DEVICES, reason="needs an NVIDIA GPU: none is listed by nvidia-smi")
@pytest.mark.parametrize("after", [0, 40])
def test_an_illegal_access_is_named_and_the_next_median_is_that_of_a_clean_device(executor: InlineExecutor, after: int) -> None:
    device: Device = DEVICES[0]
    target = backend("cuda").target()
    healthy, guilty = variant("gemm", HEALTHY, target), variant("tests.broken_cuda_families:STRAY", {"after": after}, target)
    artifacts = {v.id: run(executor, BuildJob(v)).value for v in (healthy, guilty)}

    def measured() -> float:
        done = run(executor, BenchJob(healthy, artifacts[healthy.id], device, PROTOCOL))
        assert done.failure is None, done.failure
        return median(done.value.samples_ms)

    clean = measured()
    fault = run(executor, BenchJob(guilty, artifacts[guilty.id], device, PROTOCOL)).failure
    assert fault is not None
    assert fault.kind is FailureKind.CRASH
    assert "illegal memory access" in fault.detail
    after_it = measured()
    print(f"\nafter {after} good calls: {fault}; median {clean:.4f} ms before it, {after_it:.4f} ms after it")
    assert after_it == pytest.approx(clean, rel=0.03)
