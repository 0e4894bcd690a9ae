"""The nodes of a cluster against each other: the same versions everywhere, the cards that were promised, clocks that agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runner.doctor.devices import TOOLS
from runner.doctor.finding import Finding
from runner.records import Device

if TYPE_CHECKING:
    from runner.executors.probing import NodeReport, Pinned

MUST_AGREE = ("Python", "ray", "tilelang", "driver", "maca", "nvcc", "compiler", "mxcc")
"""What has to be the same on every node that has it: a kernel that one builds is loaded by another, and known by the compiler of
the node that measures it."""

AHEAD = 1.0  # seconds by which a node's clock may differ: records are ordered by it


def examine_nodes(address: str) -> Iterator[Finding]:
    """Every node of the Ray cluster at `host:port` ("auto": the one that this machine is part of)."""
    from runner.executors.on_ray import RayExecutor
    from runner.executors.probing import NodeReport, pinned, report

    executor = RayExecutor(address)
    try:
        nodes = executor.nodes()
        reports = []
        for node in nodes:
            found = report(node)
            if isinstance(found, NodeReport):
                reports.append(found)
            else:
                yield Finding(node.name, "fault", f"does not answer: {found}", "see /tmp/ray/session_latest/logs there")
        yield from versions(reports)
        for found in reports:
            yield from devices(found)
            yield from clock(found)
            yield from strangers(found)
        for node in nodes:
            cards = [d for found in reports if found.name == node.name for d in found.devices]
            if cards and node.resources.get("GPU"):
                yield from pins(node.name, cards, pinned(node, cards[0].kind, len(cards)))
    finally:
        executor.close()


def versions(reports: Sequence[NodeReport]) -> Iterator[Finding]:
    """Whether all nodes that have something have the same of it."""
    same = []
    for name in dict.fromkeys(name for found in reports for name in found.versions):
        nodes = defaultdict(list)
        for found in reports:
            if name in found.versions:
                nodes[found.versions[name]].append(found.name)
        if len(nodes) == 1:
            same += [f"{name} {next(iter(nodes))}"]
        else:
            text = "; ".join(f"{version} on {', '.join(names)}" for version, names in sorted(nodes.items()))
            yield Finding(name, "fault" if name in MUST_AGREE else "note", f"differs: {text}", "install the same on every node")
    if same:
        yield Finding("versions", "ok", f"on {len(reports)} nodes alike: {', '.join(same)}")


def devices(found: NodeReport) -> Iterator[Finding]:
    """The cards that the vendor's tool lists against those that Ray counts."""
    listed = len(found.devices)
    if listed == found.promised:
        models = sorted({d.model for d in found.devices})
        what = ", ".join(f"{sum(d.model == m for d in found.devices)} x {m}" for m in models) or "no accelerator: it builds"
        yield Finding(found.name, "ok", what)
        return
    tool = TOOLS[found.devices[0].kind] if found.devices else " or ".join(TOOLS.values())
    remedy = f"start its Ray with `ray start --num-gpus={listed}`"
    if listed < found.promised:
        remedy = f"put {tool} on its PATH, and see that it lists all cards; {remedy}"
    yield Finding(found.name, "fault", f"{tool} lists {listed} cards, and Ray counts {found.promised}", remedy)


def clock(found: NodeReport) -> Iterator[Finding]:
    """Whether a node's clock is off for sure: the answer's own way takes time too."""
    least, most = found.ahead_s
    if least > AHEAD or most < -AHEAD:
        off = f"{least:.1f} s ahead of" if least > 0 else f"{-most:.1f} s behind"
        yield Finding(
            found.name, "note", f"its clock is {off} the driver's: records are ordered by it", "run chrony or systemd-timesyncd"
        )


def strangers(found: NodeReport) -> Iterator[Finding]:
    """Who else computes on the cards."""
    for device, who in found.others.items():
        yield Finding(
            found.name, "note", f"on {device}: {who}", "what is timed there meanwhile is rejected: end it, or keep sweeps off"
        )


def pins(node: str, cards: Sequence[Device], seen: Sequence[Pinned]) -> Iterator[Finding]:
    """Whether each process that was given a card ran on that card and no other."""
    wrong = [p for p in seen if p.torch_uuid and not p.device.uuid.endswith(p.torch_uuid.removeprefix("GPU-"))]
    for found in wrong:
        text = f"a process that was given card {found.device.index} ({found.device.uuid}) ran on {found.torch_uuid}"
        yield Finding(node, "fault", text, "unset CUDA_VISIBLE_DEVICES and MACA_VISIBLE_DEVICES where its Ray is started")
    if len({p.device.uuid for p in seen}) < len(seen):
        text = "Ray gave one card to two processes at once"
        yield Finding(node, "fault", text, "start its Ray with as many GPUs as there are")
    elif seen and not wrong:
        proof = (
            "each process ran on its own card" if all(p.torch_uuid for p in seen) else "torch does not tell which card it uses"
        )
        yield Finding(node, "ok", f"{len(seen)} of {len(cards)} cards pinned: {proof}")
    if len(seen) < len(cards):
        yield Finding(
            node, "note", f"{len(cards) - len(seen)} cards are held by others: not probed", "ask again when they are free"
        )
