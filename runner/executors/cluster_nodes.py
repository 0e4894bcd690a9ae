"""The nodes of a Ray cluster: what they are called, and which of them measure what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from runner.errors import InfrastructureLost
from runner.executors import ray_workers
from runner.executors.ray_workers import first_line
from runner.records import Device, TargetKind

MARK = "sweep-"
"""A node with the resource `sweep-cpu` measures the target `cpu`; where any node says so, the others only build."""

LISTING = 120.0  # seconds in which the nodes must have told of their devices


@dataclass(frozen=True)
class Node:
    """`name` is its host's, with its address where another node's host has the same."""

    id: str
    name: str
    resources: Mapping[str, float]

    def measures(self, kind: TargetKind) -> bool:
        return bool(self.resources.get(MARK + kind))


class Nodes:
    """Those that live. A node that comes back, with another id, has its old name."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # address -> name
        self._living: dict[str, Node] = {}

    def look(self) -> None:
        """See who lives now."""
        found = sorted((n for n in ray.nodes() if n["Alive"]), key=lambda n: n["NodeManagerAddress"])
        self._living = {n["NodeID"]: self._node(n) for n in found}

    def measuring(self, kind: TargetKind) -> list[Node]:
        """Those that may measure a kind of target."""
        return [n for n in self.living() if n.measures(kind)] or self.living()

    def living(self) -> list[Node]:
        return list(self._living.values())

    def of(self, device: Device) -> Node | None:
        """Where a device is; None where its node is gone."""
        return next((n for n in self.living() if n.name == device.host), None)

    def lives(self, node: Node) -> bool:
        return node.id in self._living

    def _node(self, found: Mapping[str, Any]) -> Node:
        address, host = found["NodeManagerAddress"], found["NodeManagerHostname"]
        if address not in self._names:
            self._names[address] = f"{host} ({address})" if host in self._names.values() else host
        return Node(found["NodeID"], self._names[address], found["Resources"])


def listing(node: Node, kind: TargetKind) -> Any:
    """Ask a node for its devices, as its own vendor tool lists them: a reference to what `devices_of` takes."""
    return ray_workers.devices.options(scheduling_strategy=on(node)).remote(kind)


def devices_of(node: Node, listed: tuple[Device, ...]) -> tuple[Device, ...]:
    return tuple(replace(device, host=node.name) for device in listed)


def all_devices(nodes: list[Node], kind: TargetKind) -> tuple[Device, ...]:
    """Raises InfrastructureLost where a node does not tell."""
    try:
        listed = ray.get([listing(node, kind) for node in nodes], timeout=LISTING)
    except RayError as error:
        raise InfrastructureLost(f"Ray does not tell of its devices: {first_line(error)}") from error
    return tuple(device for node, found in zip(nodes, listed) for device in devices_of(node, found))


def on(node: Node) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node.id, soft=False)
