"""Artifact -> measurement. Runs in a child process that sees one device. Never compiles.

How time is taken and results are checked is protocol version 1 (docs/protocol.md). Any change here that could move
a number raises `records.PROTOCOL_VERSION`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from importlib import metadata
from typing import TYPE_CHECKING

from kernels.family import load_family, packing_of
from runner import stats
from runner.artifacts import load_kernel
from runner.errors import FailureKind, JobFailed
from runner.jobs.requests import BASELINE, BaselineJob, BenchJob, PairJob
from runner.records import Artifact, Check, Device, Measurement, Paired, TargetKind, Variant, Workload
from runner.targets.base import backend

if TYPE_CHECKING:
    from torch import Tensor

SEEDS = (20_240, 20_241)
"""The first seed's inputs are timed; the second proves that the result follows the inputs."""

GROSSLY_WRONG = 0.01
"""An error above this share of the output's largest value is no rounding: the result is wrong, whatever the limit."""


def measure(job: BenchJob) -> Measurement:
    """Check, time and check again one variant. Raises JobFailed(WRONG_RESULT | LAUNCH_ERROR | CRASH)."""
    target = backend(job.device.kind)
    target.prepare()
    with _device_errors(job.device.kind):
        kernel = _Loaded(job.variant, job.artifact, job.search)
        before = kernel.checks_before()
        clear = target.cache_clearer()
        for _ in range(job.protocol.warmup):
            kernel()
        target.synchronize()
        with _StateSampler(job.device) as sampler:
            others = target.others(job.device)
            samples = target.time(kernel, job.protocol.repeat, clear)
            contended = others()
        after = kernel.checks_after()
    return Measurement(
        device=job.device,
        protocol=job.protocol.key,
        samples_ms=samples,
        checks=(*before, *after),
        prepack_ms=kernel.prepack_ms,
        cache="cleared between calls",
        state=sampler.state,
        versions=versions(job.device.kind),
        measured_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        contended=contended,
    )


def measure_baseline(job: BaselineJob) -> tuple[float, ...]:
    """Milliseconds of each call of the family's baseline on the timed inputs. Timed once more where others disturbed it."""
    target = backend(job.device.kind)
    target.prepare()
    with _device_errors(job.device.kind):
        baseline = _Baseline(job.workload, job.device.kind, job.search)
        for _ in range(job.protocol.warmup):
            baseline()
        target.synchronize()
        clear = target.cache_clearer()
        for _ in range(2):
            others = target.others(job.device)
            samples = target.time(baseline, job.protocol.repeat, clear)
            if not others():
                break
        return samples


def measure_pair(job: PairJob) -> Paired:
    """Two ways to compute one workload, alternated call by call: A B, then B A, so that neither always follows the other."""
    target = backend(job.device.kind)
    target.prepare()
    with _device_errors(job.device.kind):
        pair = (_Loaded(job.candidate, job.candidate_artifact, job.search), _reference(job))
        before = [kernel.checks_before() for kernel in pair]
        clear = target.cache_clearer()
        for _ in range(job.protocol.warmup):
            for kernel in pair:
                kernel()
        target.synchronize()
        samples: tuple[list[float], list[float]] = ([], [])
        others = target.others(job.device)
        for turn in range(job.protocol.repeat):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                samples[which].extend(target.time(pair[which], 1, clear))
        contended = others()
        after = [kernel.checks_after() for kernel in pair]
    speedup, low, high = stats.paired_speedup(*samples)
    own = (*before[0], *after[0])
    first, second = map(tuple, samples)
    reference = job.reference.id if job.reference else BASELINE
    return Paired(job.candidate.id, reference, first, second, speedup, low, high, stats.CONFIDENCE, own, contended)


def _reference(job: PairJob) -> _Loaded | _Baseline:
    if job.reference is None:
        return _Baseline(job.candidate.workload, job.device.kind, job.search)
    assert job.reference_artifact is not None
    return _Loaded(job.reference, job.reference_artifact, job.search)


class _Baseline:
    """The family's baseline on the timed inputs. It is what results are checked against, and is not itself checked."""

    def __init__(self, workload: Workload, kind: TargetKind, search: tuple[str, ...]):
        device = backend(kind).torch_device
        self.family = load_family(workload.family, search)
        self.inputs, _ = _problem(workload, SEEDS[0], device, search)
        self.out = self.family.output(workload, device)

    def __call__(self) -> None:
        self.family.baseline(self.inputs, self.out)

    def checks_before(self) -> list[Check]:
        return []

    def checks_after(self) -> list[Check]:
        return []


class _Loaded:
    """A kernel loaded from its artifact, with the timed inputs packed and an output of its own."""

    def __init__(self, variant: Variant, artifact: Artifact, search: tuple[str, ...]):
        self.variant, self.search = variant, search
        self.family = load_family(variant.workload.family, search)
        self.target = backend(variant.target.kind)
        self.kernel = load_kernel(variant, artifact, search)
        self.out = self.family.output(variant.workload, self.target.torch_device)
        self.packed, self.prepack_ms = self._pack(SEEDS[0])

    def __call__(self) -> None:
        self.kernel(*self.packed, self.out)

    def checks_before(self) -> list[Check]:
        """The timed seed last, so that its output is of the call that ran last."""
        return [self._check(seed, "before timing") for seed in reversed(SEEDS)]

    def checks_after(self) -> list[Check]:
        """What the last timed call left, then both seeds anew: a kernel may skip its work by now, or repeat an answer."""
        return [self._compare(SEEDS[0], "as timed"), *(self._check(seed, "after timing") for seed in SEEDS)]

    def _check(self, seed: int, when: str) -> Check:
        """Run once on a poisoned output and compare it with the baseline's."""
        self.out.fill_(float("nan"))
        packed = self.packed if seed == SEEDS[0] else self._pack(seed)[0]
        self.kernel(*packed, self.out)
        self.target.synchronize()
        return self._compare(seed, when)

    def _compare(self, seed: int, when: str) -> Check:
        expected = _problem(self.variant.workload, seed, self.target.torch_device, self.search)[1]
        try:
            return compare(self.out, expected, seed, when)
        except JobFailed as failure:
            # What the inputs were packed for is half of what an engineer asks first about a wrong result.
            if packing := packing_of(self.family, self.variant.config):
                failure = JobFailed(failure.kind, f"{failure.detail} ({packing})", failure.output, failure.sticky)
            raise failure from None

    def _pack(self, seed: int) -> tuple[tuple[Tensor, ...], float]:
        inputs, _ = _problem(self.variant.workload, seed, self.target.torch_device, self.search)
        started = time.perf_counter()
        packed = self.family.pack(inputs, self.variant.config)
        self.target.synchronize()
        return packed, (time.perf_counter() - started) * 1e3


def compare(out: Tensor, expected: Tensor, seed: int, when: str) -> Check:
    """max |out - expected|, and what is wrong beyond rounding. Raises JobFailed(WRONG_RESULT), saying where."""
    import torch

    # Row blocks keep the float32 differences small beside a multi-gigabyte output.
    rows = max(1, (64 << 20) // max(1, out[0].numel()))
    worst, where, largest = 0.0, 0, 0.0
    for start in range(0, out.shape[0], rows):
        got, want = out[start : start + rows].float(), expected[start : start + rows].float()
        error = (got - want).abs_().masked_fill_(got == want, 0.0).nan_to_num_(nan=torch.inf)  # equal infinities are equal
        value, position = error.flatten().max(dim=0)
        largest = max(largest, want.abs().nan_to_num_(nan=0.0, posinf=0.0).max().item())
        if value.item() > worst:
            worst, where = value.item(), start * out[0].numel() + int(position.item())
    if worst <= GROSSLY_WRONG * largest:
        return Check(seed, when, worst)
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), out.shape))
    got_value = out[index].item()
    unwritten = int(torch.isnan(out).sum().item())
    what = (
        f"{unwritten:,} of {out.numel():,} elements are NaN or were never written, first seen"
        if unwritten
        else f"off by {worst:.6g}"
    )
    detail = f"{when}, seed {seed}: {what} at {list(index)}: got {got_value:.6g}, expected {expected[index].item():.6g}"
    raise JobFailed(FailureKind.WRONG_RESULT, detail)


def _problem(workload: Workload, seed: int, device: str, search: tuple[str, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs and the baseline's output, made once per device and workload."""
    return _make_problem(workload.family, tuple(workload.shape.items()), workload.dtype, seed, device, search)


@functools.lru_cache(maxsize=len(SEEDS))
def _make_problem(
    family_name: str, shape: tuple[tuple[str, int], ...], dtype: str, seed: int, device: str, search: tuple[str, ...]
) -> tuple[tuple[Tensor, ...], Tensor]:
    family, workload = load_family(family_name, search), Workload(family_name, dict(shape), dtype)
    inputs = family.inputs(workload, seed, device)
    expected = family.output(workload, device)
    family.baseline(inputs, expected)
    return inputs, expected.clone()  # of our own: a family may hand out the same buffer twice


@functools.cache
def versions(kind: TargetKind) -> Mapping[str, str]:
    """What a number depends on beside the variant: Python packages, driver, compiler."""
    packages = {name: metadata.version(name) for name in ("torch", "tilelang")}
    return {**packages, **backend(kind).versions()}


class _StateSampler:
    """Reads the device's state once while a block runs, beside it."""

    def __init__(self, device: Device):
        self.state: Mapping[str, float | str] = {}
        self._thread = threading.Thread(target=self._read, args=(device,), daemon=True)

    def _read(self, device: Device) -> None:
        with contextlib.suppress(Exception):  # a tool that fails costs the state, not the measurement
            self.state = backend(device.kind).state(device)

    def __enter__(self) -> _StateSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(timeout=30)


class _device_errors:
    """Turns what a device or its runtime raises into JobFailed, in the words of the target."""

    def __init__(self, kind: TargetKind):
        self._classify: Callable[[str], tuple[FailureKind, bool]] = backend(kind).classify

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            _make_problem.cache_clear()  # what went wrong may have written to the inputs, which others use after it
        if isinstance(error, Exception) and not isinstance(error, JobFailed):
            kind, sticky = self._classify(str(error))
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            raise JobFailed(
                kind, f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:500], sticky=sticky
            ) from error
