"""The devices that a sweep holds on a cluster, an actor each, and those that it waits for.

Ray gives a device to who asked for it first. So that nobody waits for the end of a long sweep, one gives a device back after
its turn when others wait, and asks for it again: then it is behind them.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from runner.errors import InfrastructureLost
from runner.executors.base import Arrived, Left
from runner.executors.cluster_nodes import Node, Nodes, devices_of, listing
from runner.executors.ray_workers import first_line
from runner.records import Device

TURN = float(os.environ.get("SWEEP_RUNNER_TURN_S", "60"))
"""Seconds that a sweep keeps a device while others wait for it; the environment of its driver may say otherwise."""

LOOK = 5.0  # seconds between two looks at whether others wait
FAILED_STARTS = 3  # measurers in a row that could not be started

Start = Callable[[Device, Node], Any]
"""Asks Ray for an actor that holds a device like this one on this node."""


@dataclass
class _Held:
    device: Device
    actor: Any
    node: Node
    since: float


class Measurers:
    """`start` makes one. With `alone` nobody else can want the devices."""

    def __init__(self, nodes: Nodes, start: Start, alone: bool):
        self._nodes, self._start, self._alone = nodes, start, alone
        self._held: dict[tuple[str, int], _Held] = {}
        self._asked: dict[Any, tuple[Device, Any, Node]] = {}  # by the reference that brings the device
        self._listing: dict[Any, Node] = {}  # nodes that joined, by the reference that brings their devices
        self._known_nodes: set[str] = set()
        self._dismissed: set[tuple[str, int]] = set()
        self._sought: tuple[Device, ...] = ()
        self._wanted: Device | None = None  # one like this, of every node
        self._failed_starts = 0
        self._looked = 0.0
        self.events: deque[Arrived | Left] = deque()

    @property
    def waiting(self) -> list[Any]:
        """The references that `handle` is for, once they are there."""
        return [*self._asked, *self._listing]

    def seek(self, devices: Sequence[Device]) -> None:
        """What an earlier sweep of this process sought is given back, unless it is the same."""
        if tuple(devices) == self._sought:
            self._dismissed.clear()
            self.events = deque(Arrived(held.device) for held in self._held.values())
            return
        self._sought = tuple(devices)
        for actor in [*(held.actor for held in self._held.values()), *(actor for _, actor, _ in self._asked.values())]:
            ray.kill(actor)
        for gone in (self._held, self._asked, self._listing, self._dismissed, self.events):
            gone.clear()  # type: ignore[attr-defined]
        self._wanted = devices[0]
        self._known_nodes = {node.id for node in self._nodes.living()}
        for device in devices:
            node = self._nodes.of(device)
            if node is not None:
                self._ask(device, node)

    def actor(self, device: Device) -> Any:
        """The actor that holds a device; one that was not sought is asked for, and its calls wait until there it is."""
        if device.key not in self._held:
            node = self._nodes.of(device)
            if node is None:
                raise InfrastructureLost(f"{device}: its node is not there any more")
            self._held[device.key] = _Held(device, self._start(device, node), node, time.monotonic())
        return self._held[device.key].actor

    def dismiss(self, device: Device) -> bool:
        """It stays held, or Ray might give it to us again. Whether there are others, or others were asked for."""
        self._dismissed.add(device.key)
        return bool(self.waiting) or any(key not in self._dismissed for key in self._held)

    def handle(self, reference: Any) -> None:
        """What was waited for is there."""
        if reference in self._listing:
            self._joined(self._listing.pop(reference), reference)
            return
        asked, actor, node = self._asked.pop(reference)
        try:
            device: Device = ray.get(reference)
        except RayError as error:
            self._not_started(asked, node, first_line(error))
            return
        self._failed_starts = 0
        self._held[device.key] = _Held(device, actor, node, time.monotonic())
        if device.key not in self._dismissed:
            self.events.append(Arrived(device))

    def lost(self, device: Device) -> None:
        """A device's actor has died."""
        self._let_go(device)

    def job_done(self, device: Device) -> None:
        """Give a device back that was held for a turn while others wait."""
        if self._alone or self._wanted is None or time.monotonic() - self._held[device.key].since < TURN:
            return
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            if others_wait():
                self._let_go(device)

    def look_around(self) -> None:
        """Ask nodes that joined for their devices."""
        self._nodes.look()
        if self._wanted is None:
            return
        for node in self._nodes.measuring(self._wanted.kind):
            if node.id not in self._known_nodes:
                self._known_nodes.add(node.id)
                self._listing[listing(node, self._wanted.kind)] = node

    def _ask(self, device: Device, node: Node) -> None:
        actor = self._start(device, node)
        self._asked[actor.device.remote()] = (device, actor, node)
        actor.warm.remote()  # whatever the driver does until then

    def _let_go(self, device: Device) -> None:
        held = self._held.pop(device.key, None)
        if held is None:
            return
        ray.kill(held.actor)
        if self._wanted is not None:
            self.events.append(Left(device))
            if self._nodes.lives(held.node):
                self._ask(device, held.node)

    def _not_started(self, device: Device, node: Node, reason: str) -> None:
        self._nodes.look()
        if not self._nodes.lives(node):
            return  # whatever joins in its place is asked
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            raise InfrastructureLost(f"nothing can measure on {device}: {reason}")
        self._ask(device, node)

    def _joined(self, node: Node, reference: Any) -> None:
        try:
            found = devices_of(node, ray.get(reference))
        except RayError:
            return  # it went again
        assert self._wanted is not None
        for device in found:
            if device.model == self._wanted.model and device.key not in self._dismissed:
                self._ask(device, node)


def others_wait() -> bool:
    """Whether a measurer of another sweep waits for a device."""
    from ray.util.state import list_actors  # of no use where nobody shares, and not quick to import

    own = ray.get_runtime_context().get_job_id()
    wait: list[Any] = [("class_name", "=", "Measurer"), ("state", "=", "PENDING_CREATION")]
    waiting = list_actors(filters=wait, raise_on_missing_output=False)
    return any(actor.job_id != own for actor in waiting)
