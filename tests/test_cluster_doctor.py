"""What the doctor makes of the reports of a cluster's nodes. The reports themselves are real in test_cluster.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.doctor.cluster import clock, devices, pins, strangers, versions
from runner.doctor.finding import Finding
from runner.executors.probing import NodeReport, Pinned
from runner.records import Device

VERSIONS = {"Python": "3.12.3", "ray": "2.60.0", "tilelang": "0.1.15", "torch": "2.13.0", "driver": "570.1", "nvcc": "13.0.48"}


def card(index: int) -> Device:
    return Device("cuda", "NVIDIA H200", index, "one", f"GPU-{index}aa")


ONE = NodeReport("one", VERSIONS, (card(0), card(1)), 2, (-0.01, 0.01), {})
HEAD = NodeReport("head", {k: v for k, v in VERSIONS.items() if k != "driver"}, (), 0, (-0.01, 0.01), {})


def only(found: list[Finding]) -> Finding:
    (finding,) = found
    return finding


def test_nodes_that_are_alike_are_one_line() -> None:
    found = only(list(versions([HEAD, ONE])))
    assert found.state == "ok" and "on 2 nodes alike: Python 3.12.3, ray 2.60.0" in found.text and "driver 570.1" in found.text


@pytest.mark.parametrize(
    "name, state", [("Python", "fault"), ("tilelang", "fault"), ("driver", "fault"), ("nvcc", "fault"), ("torch", "note")]
)
def test_a_version_that_differs_is_named_with_its_nodes(name: str, state: str) -> None:
    two = replace(ONE, name="two", versions={**VERSIONS, name: "0.0.1"})
    differs = next(f for f in versions([ONE, two]) if f.topic == name)
    assert differs.state == state and differs.text == f"differs: 0.0.1 on two; {VERSIONS[name]} on one" and differs.remedy


def test_cards_that_ray_does_not_count() -> None:
    assert only(list(devices(ONE))).text == "2 x NVIDIA H200"
    assert only(list(devices(HEAD))).text == "no accelerator: it builds"
    uncounted = only(list(devices(replace(ONE, promised=0))))
    assert (
        uncounted.state == "fault" and "lists 2 cards, and Ray counts 0" in uncounted.text and "--num-gpus=2" in uncounted.remedy
    )
    unlisted = only(list(devices(replace(ONE, promised=4))))
    assert unlisted.state == "fault" and "put nvidia-smi on its PATH" in unlisted.remedy


@pytest.mark.parametrize("ahead, said", [((5.0, 5.2), "5.0 s ahead of"), ((-9.0, -8.5), "8.5 s behind"), ((-0.5, 4.0), None)])
def test_a_clock_is_blamed_only_for_what_is_sure(ahead: tuple[float, float], said: str | None) -> None:
    found = list(clock(replace(ONE, ahead_s=ahead)))
    if said is None:
        assert not found
    else:
        assert said in only(found).text


def test_who_else_computes_is_named() -> None:
    found = only(list(strangers(replace(ONE, others={"NVIDIA H200 1": "train.py (pid 7) keeps it busy"}))))
    assert found.state == "note" and "on NVIDIA H200 1: train.py (pid 7)" in found.text


class TestPins:
    CARDS = (card(0), card(1))

    def test_each_on_its_own(self) -> None:
        seen = [Pinned(c, "NVIDIA H200", c.uuid.removeprefix("GPU-")) for c in self.CARDS]
        assert only(list(pins("one", self.CARDS, seen))).text == "2 of 2 cards pinned: each process ran on its own card"

    def test_one_that_ran_elsewhere(self) -> None:
        seen = [Pinned(card(0), "NVIDIA H200", "0aa"), Pinned(card(1), "NVIDIA H200", "0aa")]
        found = only(list(pins("one", self.CARDS, seen)))
        assert found.state == "fault" and "given card 1 (GPU-1aa) ran on 0aa" in found.text

    def test_two_on_one_card(self) -> None:
        seen = [Pinned(card(0), "NVIDIA H200", "0aa")] * 2
        assert "one card to two processes" in only(list(pins("one", self.CARDS, seen))).text

    def test_a_torch_that_does_not_tell_proves_nothing(self) -> None:
        found = only(list(pins("one", self.CARDS, [Pinned(c, "MetaX C500", "") for c in self.CARDS])))
        assert "torch does not tell" in found.text

    def test_cards_that_others_hold_are_not_called_pinned(self) -> None:
        ok, held = pins("one", self.CARDS, [Pinned(card(0), "NVIDIA H200", "0aa")])
        assert ok.text.startswith("1 of 2 cards pinned") and held.state == "note" and "1 cards are held" in held.text
