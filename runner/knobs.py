"""The knobs of a sweep file, under `base`, `sweep` and `configs`: does each exist, and may it have that value?"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from runner.errors import nearest
from runner.names import LONGEST, is_shown
from runner.records import ENV_PREFIX, PASS_PREFIX, TargetKind, Value
from runner.yaml_lines import Node

if TYPE_CHECKING:
    from kernels.family import Family

Config = dict[str, Value]


class KnobReader:
    """Reads the knobs of a family for one kind of target. Faults are `SpecError`s of the line they stand on.

    Where `final` is false what is read is only a layer of what will run, and may set a knob that means nothing there.
    """

    def __init__(self, family: Family, kind: TargetKind, final: bool):
        self.family, self.kind, self.final = family, kind, final
        self.knobs = {knob.name: knob for knob in family.knobs}

    def base(self, node: Node) -> Config:
        defaults: Config = {k.name: k.default if self.kind in k.kinds else None for k in self.family.knobs}
        return {**defaults, **{name: self.setting(name, child, "base") for name, child in node.mapping("base").items()}}

    def configs(self, node: Node | None) -> tuple[Config, ...]:
        if node is None:
            return ()
        configs: list[Config] = []
        for entry in node.sequence("configs"):
            config = {name: self.setting(name, child, "configs") for name, child in entry.mapping("a config").items()}
            if any(_same(config, earlier) for earlier in configs):
                raise entry.fault(f"the config {entry} stands twice: remove one of them")
            configs.append(config)
        return tuple(configs)

    def sweep(self, node: Node) -> dict[str, tuple[Value, ...]]:
        sweep: dict[str, tuple[Value, ...]] = {}
        for name, child in node.mapping("sweep").items():
            self.setting(name, replace(child, value=None), "sweep", named_only=True)
            values: list[Value] = []
            for item in child.sequence(name):
                value = self.setting(name, item, "sweep")
                if any(_same(value, earlier) for earlier in values):
                    raise item.fault(f"{name} lists {item} twice: remove one of them")
                values.append(value)
            sweep[name] = tuple(values)
        return sweep

    def setting(self, name: str, node: Node, section: str, named_only: bool = False) -> Value:
        """One knob's value, checked; or with `named_only` the knob's name alone."""
        outside = name.startswith((PASS_PREFIX, ENV_PREFIX))
        if not outside and name not in self.knobs:
            raise node.fault(f"{self.family.name} has no knob {name!r}: {nearest(name, self.knobs)}")
        if isinstance(node.value, (tuple, dict)):
            hint = f"several values belong under 'sweep: {name}:'" if section == "base" else "write each value on its own"
            raise node.fault(f"{name} takes one value, not {node}: {hint}")
        fault = _outside_fault(name, node.value) if outside else None if named_only else self.knob_fault(name, node, section)
        if fault:
            raise node.fault(f"{name} {fault}")
        return node.value

    def knob_fault(self, name: str, node: Node, section: str) -> str | None:
        knob, value = self.knobs[name], cast(Value, node.value)
        if self.kind in knob.kinds:
            return knob.fault(value, self.kind)
        if value is None:
            return None
        if self.final:
            in_section = node.line and section != "configs"
            cure = f"write '{name}: null' under 'on: {self.kind}: {section}:'" if in_section else "leave it out"
            return f"means nothing on the {self.kind} target: {cure}"
        return knob.fault(value, knob.kinds[0])


def _outside_fault(name: str, value: Value) -> str | None:
    """What is wrong with a pass config's or an environment variable's name and value."""
    if len(name) > LONGEST:
        return f"is no setting of TileLang's: the record holds names of {LONGEST} characters"
    if isinstance(value, str) and not is_shown(value):
        return "has a value with a character that cannot be shown: remove it"
    if name.startswith(PASS_PREFIX):
        known = re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name[len(PASS_PREFIX) :])
        return None if known else "is no pass config: write it as pass.tl.enable_fast_math"
    if not re.fullmatch(r"(TILELANG|MACA)_[A-Z0-9_]+", name[len(ENV_PREFIX) :]):
        return "cannot be set by a sweep: only env.TILELANG_* and env.MACA_* can, in capitals"
    if isinstance(value, bool):
        return "is text to the program that reads it: write 1 or 0"
    return None


def _same(one: Any, other: Any) -> bool:
    """Equal in value and type: 1, 1.0 and true are three values."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)
