"""What each node of a cluster has, found out on the node itself."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any, cast

import ray
from ray.exceptions import RayError

from runner.errors import JobFailed
from runner.executors.base import measure_child
from runner.executors.cluster_nodes import Node, on
from runner.executors.connecting import is_accelerator
from runner.executors.ray_workers import first_line
from runner.records import Device, TargetKind
from runner.targets.base import BACKENDS, backend

PACKAGES = ("ray", "tilelang", "torch")
ASKED = 3  # times for the clock: the quickest answer tells most
ANSWER = 120.0  # seconds that a node may take: the first import of torch from a cold disk
FREE = 20.0  # seconds to wait for cards that sweeps may hold


@dataclass(frozen=True)
class NodeReport:
    """`ahead_s` is how far its clock is ahead of the driver's, at least and at most; `promised` how many GPUs Ray counts."""

    name: str
    versions: dict[str, str]
    devices: tuple[Device, ...]
    promised: int
    ahead_s: tuple[float, float]
    others: dict[str, str]  # by device, who computes on it


@dataclass(frozen=True)
class Pinned:
    """What a process saw that was given one card: the vendor tool's, and torch's own words for it."""

    device: Device
    torch_name: str
    torch_uuid: str  # empty where torch does not tell


@ray.remote(num_cpus=0, max_restarts=0)
class _Probe:
    """On one node."""

    def clock(self) -> float:
        return time.time()

    def versions(self) -> dict[str, str]:
        found = {"Python": platform.python_version()}
        for package in PACKAGES:
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                found[package] = "not installed"
        for kind in BACKENDS:
            found |= backend(kind).versions()
        return found

    def devices(self) -> tuple[Device, ...]:
        return tuple(d for kind in BACKENDS for d in backend(kind).devices() if is_accelerator(backend(kind).kind))

    def others(self, devices: tuple[Device, ...]) -> dict[str, str]:
        looks = [(device, backend(device.kind).others(device)) for device in devices]
        time.sleep(0.5)
        return {f"{device.model} {device.index}": who for device, look in looks if (who := look())}


@ray.remote(num_cpus=0, num_gpus=1, max_restarts=0)
class _Card:
    """Holds one card as a sweep would."""

    def __init__(self, kind: TargetKind):
        self._device = backend(kind).devices()[0]

    def ready(self) -> None:
        """It is held."""

    def seen(self) -> Pinned:
        child = measure_child(self._device)
        try:
            return Pinned(self._device, *child.run(_torch_sees, deadline=ANSWER))
        except JobFailed as failure:
            return Pinned(self._device, failure.detail, "")
        finally:
            child.close()


def _torch_sees() -> tuple[str, str]:
    import torch

    found = torch.cuda.get_device_properties(0)
    torch.zeros(1, device="cuda")  # a card that cannot be used says so here
    return found.name, str(getattr(found, "uuid", ""))


def report(node: Node) -> NodeReport | str:
    """What a node has; a line where it does not tell."""
    probe = cast(Any, _Probe).options(scheduling_strategy=on(node)).remote()
    try:
        versions = ray.get(probe.versions.remote(), timeout=ANSWER)
        devices = ray.get(probe.devices.remote(), timeout=ANSWER)
        others = ray.get(probe.others.remote(devices), timeout=ANSWER)
        ahead = _ahead(probe)
    except RayError as error:
        return first_line(error)
    finally:
        ray.kill(probe)
    named = tuple(replace(device, host=node.name) for device in devices)
    return NodeReport(node.name, versions, named, int(node.resources.get("GPU", 0)), ahead, others)


def _ahead(probe: Any) -> tuple[float, float]:
    """Between the moment of asking and that of the answer the node read its clock: the narrowest of a few."""
    found = []
    for _ in range(ASKED):
        asked = time.time()
        read = ray.get(probe.clock.remote(), timeout=ANSWER)
        found.append((read - time.time(), read - asked))
    return min(found, key=lambda bounds: bounds[1] - bounds[0])


def pinned(node: Node, kind: TargetKind, count: int) -> list[Pinned]:
    """What processes see that hold so many cards of a node at once; less of them where somebody else holds some."""
    cards = [cast(Any, _Card).options(scheduling_strategy=on(node)).remote(kind) for _ in range(count)]
    here = {card.ready.remote(): card for card in cards}
    try:
        free, _ = ray.wait(list(here), num_returns=count, timeout=FREE)
        found: list[Pinned] = ray.get([here[reference].seen.remote() for reference in free], timeout=ANSWER)
        return found
    finally:
        for card in cards:
            ray.kill(card)
