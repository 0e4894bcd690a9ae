"""The loop that takes samples: spoil the output, clear the cache, time a call, look at what it wrote."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from runner.errors import FailureKind, JobFailed
from runner.jobs.subject import Kernel, Subject
from runner.records import Device
from runner.stats import median
from runner.targets.base import Backend

BESIDE = 8
"""Calls of the baseline among the timed calls of a variant."""

MOST_IN_BATCH = 16
MOST_PASSES = 64
MOST_PAIRS = 1_000
SETTLED = 3
"""Samples of the warm-up from which the length of a batch is taken."""

REST = 9
"""Times as long as a look at the device's state took, nobody looks again: a slow tool takes a tenth of a core."""

MOST_EXTRA_CORES = 0.3
LEAST_SEEN_MS = 20.0
"""Of a kernel's time, before anything is said of how many cores it used."""


class Loop:
    """Times the calls of some subjects in turn, each sample under the same conditions."""

    def __init__(self, target: Backend, subjects: Sequence[Subject]):
        self.target, self.subjects = target, subjects
        self.clear = target.cache_clearer()
        self.passes = 1  # over the cache-clearing buffer; more keep the device busy while slow launches are queued
        self.exposed = 0  # samples that were taken again, because the device waited for the host
        self.kernel_ms = self.beside_ms = 0.0  # of kernels, and what other threads of this process used meanwhile

    @property
    def batch(self) -> int:
        return min(len(subject.slots) for subject in self.subjects)

    def warm_up(self, calls: int) -> None:
        """Samples that nobody keeps: `calls` of each, and for as long as the device needs to settle."""
        started, seen = time.perf_counter(), dict[int, list[float]]()
        taken = 0
        while taken < max(calls, 1) or time.perf_counter() - started < self.target.settle_seconds:
            for number, subject in enumerate(self.subjects):
                seen.setdefault(number, []).append(self.sample(subject))
            taken += 1
            if taken == SETTLED:
                self._widen(min(median(samples) for samples in seen.values()))
        self.exposed, self.kernel_ms, self.beside_ms = 0, 0.0, 0.0

    def sample(self, subject: Subject) -> float:
        """Milliseconds of one call of a subject; of the calls of a batch, their mean."""
        while True:
            subject.prepare()
            everything, own = time.process_time(), time.thread_time()
            ms, hidden = self.target.time(subject.calls, self._clear)
            beside = (time.process_time() - everything) - (time.thread_time() - own)
            subject.verify()
            if hidden or self.passes >= MOST_PASSES:
                if isinstance(subject, Kernel):
                    self.kernel_ms += ms * len(subject.slots)
                    self.beside_ms += max(0.0, 1e3 * beside)
                return ms
            self.exposed += 1
            self.passes *= 2

    def beside(self, kernel: Subject, baseline: Subject, repeat: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`repeat` samples of a kernel, and `BESIDE` of the baseline spread evenly among them."""
        samples: list[float] = []
        reference: list[float] = []
        for number in range(repeat):
            samples.append(self.sample(kernel))
            while len(reference) < math.floor((number + 1) * BESIDE / repeat + 0.5):
                reference.append(self.sample(baseline))
        return tuple(samples), tuple(reference)

    def pairs(self, number: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """A B, then B A, so that neither always follows the other: `number` pairs, and until the device has settled."""
        first: list[float] = []
        second: list[float] = []
        one, other = self.subjects
        while len(first) < number or (sum(first) + sum(second) < 1e3 * self.target.settle_seconds and len(first) < MOST_PAIRS):
            order = ((one, first), (other, second))
            for subject, samples in order if len(first) % 2 == 0 else reversed(order):
                samples.append(self.sample(subject))
        return tuple(first), tuple(second)

    def demand_one_core(self) -> None:
        """Raises JobFailed(SIDE_EFFECT) where a kernel of the CPU target used more than one core."""
        if self.target.torch_device != "cpu" or self.kernel_ms < LEAST_SEEN_MS:
            return
        cores = 1 + self.beside_ms / self.kernel_ms
        if cores > 1 + MOST_EXTRA_CORES:
            raise JobFailed(FailureKind.SIDE_EFFECT, f"computes on {cores:.1f} cores, and its baseline on one")

    def _clear(self) -> None:
        for _ in range(self.passes):
            self.clear()

    def _widen(self, fastest_ms: float) -> None:
        """Time short calls several at once: device events tick too slowly for one."""
        batch = max(1, min(MOST_IN_BATCH, math.ceil(self.target.shortest_ms / max(fastest_ms, 1e-6))))
        for subject in self.subjects:
            subject.widen(batch)


class StateSampler:
    """Reads a device's state again and again while a block runs: `state` has the mean of each number, and its least of some."""

    LEAST_TOO = ("clock_mhz", "memory_clock_mhz", "power_w")

    def __init__(self, target: Backend, device: Device):
        self._target, self._device = target, device
        self._seen: list[dict[str, float | str]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        while True:
            started = time.monotonic()
            try:
                self._seen.append(self._target.state(self._device))
            except Exception:  # a tool that fails costs the state, not the measurement
                return
            took = time.monotonic() - started
            if self._ended.wait(max(self._target.state_period_s, REST * took)):
                return

    def __enter__(self) -> StateSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=30)

    @property
    def state(self) -> dict[str, float | str]:
        found: dict[str, float | str] = {}
        for key in dict.fromkeys(key for seen in self._seen for key in seen):
            values = [seen[key] for seen in self._seen if key in seen]
            numbers = [v for v in values if isinstance(v, float)]
            if not numbers:
                said = dict.fromkeys(part for v in values for part in str(v).split(", "))
                found[key] = ", ".join(part for part in said if part != "none" or len(said) == 1)
                continue
            found[key] = sum(numbers) / len(numbers)
            if key in self.LEAST_TOO and len(numbers) > 1:
                found[f"{key}_least"] = min(numbers)
        return found | ({"state_samples": float(len(self._seen))} if len(self._seen) > 1 else {})
