"""What this machine has, and what to do about what it lacks. Each check is real: it builds, runs, starts or writes something.

Nothing heavy, and none of our own packages that another distribution could hide, is imported before it is checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.doctor import cluster, devices, installed, machine, trials
from runner.doctor.finding import Finding, guarded
from runner.records import Device
from runner.targets.base import backend

__all__ = ["Finding", "examine", "examine_cluster"]


def examine(store_uri: str | None = None, address: str | None = None) -> Iterator[Finding]:
    """Everything a sweep needs, as it is found, cheap checks first; a minute in all.

    `address` is a Ray cluster to look at instead of a Ray of our own; `store_uri` a store instead of the usual one.
    """
    yield installed.python()
    yield from guarded("packages", installed.packages())
    yield from guarded("names", installed.names())
    yield from guarded("proxy", machine.proxies())
    yield from guarded("shared memory", machine.shared_memory())
    cards: list[Device] = []
    for kind, tool in devices.TOOLS.items():
        yield from guarded(tool, devices.vendor_tool(backend(kind), cards))
    yield from guarded("torch devices", devices.torch_devices(cards))
    yield from guarded("kernels", trials.kernels(cards))
    yield from guarded("Ray", devices.cluster(address, cards))
    yield from guarded("store", trials.store(store_uri))


def examine_cluster(address: str) -> Iterator[Finding]:
    """Every node of the Ray cluster at `host:port` or "auto" against the others, and the store as its drivers reach it."""
    yield from guarded("nodes", cluster.examine_nodes(address))
    yield from guarded("store", trials.store(None))
