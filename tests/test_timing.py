"""The loop that takes samples, with a clock and a device of our own making: what it does around a call, and in what order."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml
import pytest

from runner.errors import FailureKind, JobFailed
from runner.jobs import timing
from runner.jobs.timing import BESIDE, MOST_IN_BATCH, MOST_PASSES, Loop, StateSampler
from runner.records import Device
from runner.targets import nvml


class Card:
    """A device on which a call takes `ms`, and launching so long that it is hidden only behind `needs` passes over the cache."""

    torch_device, settle_seconds, shortest_ms, state_period_s = "cuda", 0.0, 0.0, 0.001

    def __init__(self, ms: float = 1.0, needs: int = 1):
        self.ms, self.needs, self.passes = ms, needs, 0
        self.log: list[str] = []
        self.states: list[dict[str, float | str]] = []

    def cache_clearer(self) -> Callable[[], object]:
        def clear() -> None:
            self.passes += 1

        return clear

    def time(self, calls: Sequence[Callable[[], object]], clear: Callable[[], object]) -> tuple[float, bool]:
        self.passes = 0
        clear()
        for call in calls:
            call()
        return self.ms, self.passes >= self.needs

    def state(self, device: Device) -> dict[str, float | str]:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]


class Called:
    """A subject that tells what was done with it."""

    def __init__(self, name: str, log: list[str]):
        self.name, self.log, self.slots = name, log, [0]

    @property
    def calls(self) -> list[Callable[[], object]]:
        return [lambda: self.log.append(f"{self.name} called")] * len(self.slots)

    def widen(self, batch: int) -> None:
        self.slots = [0] * batch

    def prepare(self) -> None:
        self.log.append(f"{self.name} spoilt")

    def verify(self) -> None:
        self.log.append(f"{self.name} compared")


def loop_of(card: Card, *names: str) -> tuple[Loop, list[Any]]:
    subjects = [Called(name, card.log) for name in names]
    return Loop(card, subjects), subjects  # type: ignore[arg-type]


def test_every_sample_is_of_a_spoilt_output_that_is_compared_after() -> None:
    card = Card()
    loop, (kernel,) = loop_of(card, "kernel")
    assert loop.sample(kernel) == 1.0
    assert card.log == ["kernel spoilt", "kernel called", "kernel compared"]


def test_a_sample_whose_launch_shows_is_taken_again_behind_more_passes() -> None:
    card = Card(needs=5)
    loop, (kernel,) = loop_of(card, "kernel")
    loop.sample(kernel)
    assert (loop.exposed, loop.passes) == (3, 8)  # with 1, 2 and 4 it showed
    assert card.log == 4 * ["kernel spoilt", "kernel called", "kernel compared"]
    loop.sample(kernel)
    assert loop.exposed == 3, "it stays hidden"


def test_a_launch_that_nothing_hides_is_counted_and_does_not_last_for_ever() -> None:
    card = Card(needs=10 * MOST_PASSES)
    loop, (kernel,) = loop_of(card, "kernel")
    loop.sample(kernel)
    assert loop.passes == MOST_PASSES and loop.exposed == 6


@pytest.mark.parametrize("ms, batch", [(1.0, 1), (0.2, 1), (0.05, 4), (0.001, MOST_IN_BATCH)])
def test_short_calls_are_timed_several_at_once(ms: float, batch: int) -> None:
    card = Card(ms)
    card.shortest_ms = 0.2
    loop, (kernel, _) = loop_of(card, "kernel", "baseline")
    loop.warm_up(5)
    assert loop.batch == batch
    card.log.clear()
    loop.sample(kernel)
    assert card.log.count("kernel called") == batch


def test_calls_of_the_baseline_are_spread_evenly() -> None:
    card = Card()
    loop, (kernel, baseline) = loop_of(card, "k", "b")
    samples, reference = loop.beside(kernel, baseline, 50)
    assert (len(samples), len(reference)) == (50, BESIDE)
    called = [entry[0] for entry in card.log if entry.endswith("called")]
    places = [called[:n].count("k") for n, name in enumerate(called) if name == "b"]
    assert all(5 <= later - earlier <= 7 for earlier, later in itertools.pairwise(places)) and 3 <= places[0] <= 4


@pytest.mark.parametrize("repeat", [1, 5, 7, 200])
def test_there_are_as_many_whatever_the_number_of_samples(repeat: int) -> None:
    loop, (kernel, baseline) = loop_of(Card(), "k", "b")
    assert [len(found) for found in loop.beside(kernel, baseline, repeat)] == [repeat, BESIDE]


def test_neither_of_a_pair_always_follows_the_other() -> None:
    card = Card()
    loop, _ = loop_of(card, "a", "b")
    loop.pairs(4)
    assert "".join(entry[0] for entry in card.log if entry.endswith("called")) == "abbaabba"


def test_pairs_go_on_until_the_device_has_settled() -> None:
    card = Card(ms=10.0)
    card.settle_seconds = 0.5
    loop, _ = loop_of(card, "a", "b")
    first, second = loop.pairs(10)
    assert len(first) == len(second) == 25


def test_a_device_is_warmed_up_for_a_time_and_at_least_so_many_calls() -> None:
    card = Card()
    card.settle_seconds = 0.05
    loop, _ = loop_of(card, "kernel")
    started = time.perf_counter()
    loop.warm_up(3)
    assert time.perf_counter() - started >= 0.05 and card.log.count("kernel called") > 3
    card.settle_seconds = 0.0
    card.log.clear()
    loop.warm_up(3)
    assert card.log.count("kernel called") == 3


def test_a_kernel_that_uses_other_threads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(ms=60.0)
    card.torch_device = "cpu"
    monkeypatch.setattr(timing, "Kernel", Called)
    loop, (kernel,) = loop_of(card, "kernel")
    loop.sample(kernel)
    loop.demand_one_core()

    def spin() -> None:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    monkeypatch.setattr(card, "time", lambda calls, clear: (run_beside(spin), True))
    loop.sample(kernel)
    with pytest.raises(JobFailed, match=r"computes on 1\.4 cores, and its baseline on one") as raised:
        loop.demand_one_core()
    assert raised.value.kind is FailureKind.SIDE_EFFECT


def run_beside(work: Callable[[], None]) -> float:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return 60.0


def test_a_devices_state_is_read_through_the_timing_as_mean_and_least() -> None:
    card = Card()
    card.states = [
        {"clock_mhz": 1980.0, "power_w": 300.0, "throttle": "none"},
        {"clock_mhz": 1200.0, "power_w": 700.0, "throttle": "power cap"},
        {"clock_mhz": 1200.0, "power_w": 700.0, "throttle": "power cap, thermal (software)"},
    ]
    with StateSampler(card, Device("cuda", "X")) as sampler:  # type: ignore[arg-type]
        while len(sampler._seen) < 3:
            time.sleep(0.001)
    state = sampler.state
    assert state["clock_mhz_least"] == 1200.0 and 1200.0 < state["clock_mhz"] < 1980.0  # type: ignore[operator]
    assert state["power_w_least"] == 300.0
    assert state["throttle"] == "power cap, thermal (software)"
    assert state["state_samples"] >= 3  # type: ignore[operator]


def test_a_tool_that_fails_costs_the_state_alone() -> None:
    card = Card()
    card.states = [{}]
    card.state = None  # type: ignore[assignment, method-assign]
    with StateSampler(card, Device("cuda", "X")) as sampler:  # type: ignore[arg-type]
        pass
    assert sampler.state == {}


def test_what_holds_the_clocks_down_is_said_in_words() -> None:
    cap, thermal = pynvml.nvmlClocksEventReasonSwPowerCap, pynvml.nvmlClocksEventReasonSwThermalSlowdown
    assert nvml.reasons(pynvml, cap | thermal) == "power cap, thermal (software)"
    assert nvml.reasons(pynvml, pynvml.nvmlClocksEventReasonNone) == "none"
    named = [getattr(pynvml, f"nvmlClocksEventReason{name}", None) for name in nvml.REASONS]
    assert sum(value is not None for value in named) >= 8, "the library's own names"


@pytest.mark.skipif(bool(nvml.state("")), reason="this machine has an NVIDIA card")
def test_without_a_card_there_is_no_state() -> None:
    assert nvml.state("GPU-of-nobody") == {}
