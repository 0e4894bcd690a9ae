"""Which devices the vendor's tool lists, which torch sees and which Ray counts: sweeps need all three to agree."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

from runner.doctor.finding import PATIENCE, Finding, said
from runner.errors import InfrastructureLost, JobFailed
from runner.process.child import Child
from runner.process.worker import first_line
from runner.records import Device
from runner.targets.base import Backend, backend

HEAD_NODE = "give host:port of a head node that `ray start --head` started (port 6379 by default) with this Ray and Python"

TOOLS = {"cuda": "nvidia-smi", "maca": "mx-smi"}


def vendor_tool(target: Backend, cards: list[Device]) -> Iterator[Finding]:
    """The cards that a vendor's tool lists; they are added to `cards`."""
    found = target.devices()
    cards.extend(found)
    for model in sorted({card.model for card in found}):
        yield Finding(TOOLS[target.kind], "ok", f"lists {sum(c.model == model for c in found)} x {model}")


def torch_devices(cards: list[Device]) -> Iterator[Finding]:
    """What torch sees, against what the vendor's tool lists. Asked in a child: no device is touched in this process."""
    child = Child()
    try:
        count, built_for, error = child.run(_ask_torch, deadline=PATIENCE)
    except JobFailed as failure:
        yield Finding("torch devices", "fault", f"torch cannot be imported: {said(failure)}", "install it again")
        return
    finally:
        child.close()
    if not cards and not count:
        remedy = f"if it has one, see that {' or '.join(TOOLS.values())} lists it"
        yield Finding("devices", "note", "no accelerator here: sweeps run on the cpu target", remedy)
    elif count == len(cards) and built_for.startswith(cards[0].kind.upper()):
        yield Finding("torch devices", "ok", f"{count}, built for {built_for}")
    else:
        yield torch_disagrees(cards, count, built_for, error)


def torch_disagrees(cards: list[Device], count: int, built_for: str, error: str) -> Finding:
    """What the difference between the vendor's list and torch's count means, and what to do."""
    kind = cards[0].kind if cards else "maca" if built_for.startswith("MACA") else "cuda"
    text = f"{TOOLS[kind]} lists {len(cards)}, torch (built for {built_for}) sees {count}" + (f": {error}" if error else "")
    if count < len(cards) and _hiding():
        return Finding("torch devices", "note", text, f"unset {' and '.join(_hiding())} to use all of them")
    if not built_for.startswith(kind.upper()):
        vendor = "MetaX's own build of torch" if kind == "maca" else "a torch built for CUDA"
        return Finding("torch devices", "fault", text, f"install {vendor}")
    if count > len(cards):
        return Finding("torch devices", "fault", text, f"put {TOOLS[kind]} on PATH: it is what sweeps find devices by")
    return Finding("torch devices", "fault", text, "match the driver to torch, and give this user or container all devices")


def _hiding() -> list[str]:
    """The variables set here that show a process some of the cards only; the vendor's tool heeds none of them."""
    return [name for name in ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES") if name in os.environ]


def _ask_torch() -> tuple[int, str, str]:
    """How many devices, what torch was built for, and why none.

    MetaX's torch has a CUDA version, a device "cuda" and an NVIDIA card's capability; `torch.version.maca` is its own.
    """
    import torch

    maca, cuda = getattr(torch.version, "maca", None), torch.version.cuda
    error, count = "", torch.cuda.device_count()
    if count == 0:
        try:
            torch.cuda.init()
        except Exception as reason:
            error = first_line(reason)
    return count, f"MACA {maca}" if maca else f"CUDA {cuda}" if cuda else "the CPU alone", error


def cluster(address: str | None, cards: list[Device]) -> Iterator[Finding]:
    """Ray, started here or found at `address`, and whether it counts the cards that its nodes' vendor tools list."""
    if address and not _answers(address):
        yield Finding("Ray", "fault", f"nothing answers at {address}", HEAD_NODE)
        return
    from runner.executors.on_ray import RayExecutor

    started = time.monotonic()
    try:
        executor = RayExecutor(address)
    except (InfrastructureLost, SystemExit) as error:  # Ray ends the process where it gives up on a cluster
        reason = str(error) if isinstance(error, InfrastructureLost) else f"what answers at {address} is no Ray"
        yield Finding("Ray", "fault", reason, _ray_remedy(address))
        return
    try:
        seconds, resources = time.monotonic() - started, executor.resources()
        did = f"connected to {address}" if address else "started one of our own"
        text = f"{did} in {seconds:.1f} s: {resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
        yield Finding("Ray", "ok", text)
        if address:
            cards = [d for kind in TOOLS for d in executor.devices(backend(kind).kind)]
        yield from ray_devices(cards, int(resources.get("GPU", 0)))
    finally:
        executor.close()


def _ray_remedy(address: str | None) -> str:
    if address is None:
        unset = f"unset {' and '.join(_hiding())}, or " if _hiding() else ""
        return f"{unset}see the logs in /tmp/ray/session_latest/logs"
    if "RAY_AUTH_MODE" in os.environ:
        return HEAD_NODE
    return f"{HEAD_NODE}; if it wants a token, copy its ~/.ray/auth_token here and set RAY_AUTH_MODE=token"


def ray_devices(cards: list[Device], gpus: int) -> Iterator[Finding]:
    """Ray's count of GPUs against the vendor tools'. Nothing to say where there are none."""
    if len(cards) == gpus:
        return
    kind = cards[0].kind if cards else "cuda"
    text = f"{TOOLS[kind]} lists {len(cards)} on the nodes of Ray, which counts {gpus} GPUs"
    if len(cards) < gpus:
        remedy = f"put {TOOLS[kind]} on the PATH of every node, and start Ray with no more GPUs than there are"
    else:
        per_node = max(sum(c.host == card.host for c in cards) for card in cards)
        wheel = "install the pymxsml wheel (/opt/maca/share/mxsml) on every node, or " if kind == "maca" else ""
        remedy = f"{wheel}start Ray with `ray start --num-gpus={per_node}`"
    yield Finding("Ray devices", "fault", text, remedy)


def _answers(address: str) -> bool:
    """Whether something listens there. Ray itself waits five minutes, and then ends the process."""
    host, colon, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if not colon or not port.isdigit():
        return True  # "auto", or what Ray alone can judge
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return True
    except OSError:
        return False
