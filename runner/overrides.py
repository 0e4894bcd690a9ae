"""What is laid over a sweep file: the `on:` of the target it runs on, then `--set` from the command line.

Every layer is a tree like the file's own, whose nodes know where they were written; laying one over the other keeps
that, so a fault in the result still names the line, or the option, that it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from runner.errors import nearest
from runner.records import TargetKind
from runner.yaml_lines import Node, load, written

ON_TARGET = ("workload", "devices", "base", "sweep", "configs", "where", "measure", "accept")
"""Sections that a target may change."""

SETTABLE = ("name", "question", "strategy", *ON_TARGET)
"""What `--set` may change: a section's keys by path, these whole, or a knob of `base` by its bare name."""

NESTED = ("workload", "base", "sweep", "measure", "accept")


def layers_by_target(on: Node | None) -> dict[str, Node]:
    """The layers under `on:`, by kind of target."""
    layers = on.mapping("on", get_args(TargetKind)) if on else {}
    for kind, layer in layers.items():
        check_one_shape(layer.mapping(f"on: {kind}", ON_TARGET).get("workload"))
    return layers


def layer_of_setting(setting: str, knobs: Sequence[str]) -> Node:
    """The layer that one `--set PATH=VALUE` means. Raises SpecError with the nearest name that exists."""
    source = f"--set {' '.join(setting.split())}"
    nowhere = Node(None, source)
    path, equals, text = setting.partition("=")
    if not equals or not path:
        raise nowhere.fault(f"write it as PATH=VALUE, as in --set base.{knobs[0] if knobs else 'threads'}=1")
    section, _, rest = path.partition(".")
    if section in ("pass", "env") or (section not in SETTABLE and path in knobs):
        section, rest = "base", path
    if section not in SETTABLE:
        raise nowhere.fault(f"nothing is called {path!r}: {nearest(path, [*knobs, *SETTABLE])}")
    node = load(text, source, numbered=False)
    for key in reversed(_keys(section, rest)):
        node = Node({key: node}, source)
    return node


def _keys(section: str, rest: str) -> list[str]:
    """The path's keys. Below base and sweep the rest is one key, since pass configs have dots in their names."""
    if not rest:
        return [section]
    return [section, rest] if section in ("base", "sweep") else [section, *rest.split(".")]


def check_one_shape(workload: Node | None) -> None:
    """A single layer gives a shape once: as `moe`, or by its dimensions."""
    keys = workload.value if workload and isinstance(workload.value, dict) else {}
    dims = [key for key in keys if key not in ("moe", "dtype")]
    if "moe" in keys and dims:
        raise keys[dims[0]].fault(f"workload gives both moe and {dims[0]}: keep one of them")


def overlaid(tree: Node, layer: Node) -> Node:
    """`tree` with `layer` over it, key by key. Two keys do more than replace:

    a `moe` takes the place of every dimension given below it (a dimension given over a `moe` replaces that one alone),
    and null takes a knob out of the sweep.
    """
    below, above = _entries(tree), _entries(layer)
    if "moe" in _entries(above.get("workload")) and "workload" in below:
        kept = {key: node for key, node in _entries(below["workload"]).items() if key in ("moe", "dtype")}
        below = {**below, "workload": replace(below["workload"], value=kept)}
    result = dict(_entries(_merged(replace(tree, value=below), layer)))
    swept = _entries(below.get("sweep"))
    if swept and "sweep" in result:
        left = {k: node for k, node in _entries(result["sweep"]).items() if node.value is not None or k not in swept}
        result["sweep"] = replace(result["sweep"], value=left)
    return replace(tree, value=result)


def _merged(below: Node, above: Node) -> Node:
    if not isinstance(below.value, dict):
        return above
    if above.value is None:  # a section with nothing under it says nothing
        return below
    if not isinstance(above.value, dict):
        return above
    value = dict(below.value)
    for key, node in above.value.items():
        value[key] = _merged(value[key], node) if key in value else node
    return replace(below, value=value)


def _entries(node: Node | None) -> dict[str, Node]:
    return node.value if node and isinstance(node.value, dict) else {}


def differences(who: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """One line for each value that a layer changed: `on cpu: threads 512 -> null`."""
    for key in dict.fromkeys([*before, *after]):
        old, new = (written(side[key]) if key in side else "(not set)" for side in (before, after))
        if old != new:
            yield f"{who}: {key} {old} -> {new}"
