"""A kernel family: code with knobs for one operation. docs/own-family.md shows how to write one.

Importing a family costs neither torch nor TileLang: both are imported inside the methods that need them, so that
planning a sweep is quick and works on a machine without either.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from runner.errors import RequestError, nearest
from runner.paths import search_folders
from runner.records import Limits, Target, TargetKind, Value, Workload

if TYPE_CHECKING:
    from torch import Tensor

BUILT_IN = {"gemm": "kernels.gemm:GEMM"}
"""The families that ship with the runner, by the name a sweep file uses."""


@dataclass(frozen=True)
class Knob:
    """One way to change how a kernel computes, and never what.

    `choices` lists the values allowed, or None for any integer from `least` on. `kinds` are the targets on which the
    knob means something; on the others a sweep may not set it (None is always allowed and means "not used").
    """

    name: str
    default: Value
    doc: str
    choices: tuple[Value, ...] | None = None
    kinds: tuple[TargetKind, ...] = ("cpu", "cuda", "maca")
    least: int = 1

    def fault(self, value: Value, kind: TargetKind) -> str | None:
        """Why `value` cannot be given to this knob on this kind of target, or None."""
        if kind not in self.kinds:
            return None if value is None else f"means nothing on the {kind} target: leave it out, or set it to null there"
        if self.choices is not None:
            # bool is an int in Python: `threads: true` must not pass for 1.
            if any(value == c and type(value) is type(c) for c in self.choices):
                return None
            return f"takes one of {', '.join(_yaml(c) for c in self.choices)}, not {_yaml(value)}"
        if isinstance(value, bool) or not isinstance(value, int) or value < self.least:
            return f"takes {'a positive integer' if self.least == 1 else f'an integer from {self.least} on'}, not {_yaml(value)}"
        return None


@runtime_checkable
class Family(Protocol):
    """What the runner asks of a family. Shapes are those of the family's own operation."""

    name: str
    doc: str
    dims: tuple[str, ...]
    """Names of the shape's dimensions, in order: ("M", "N", "K")."""
    dtypes: tuple[str, ...]
    knobs: tuple[Knob, ...]
    baseline_name: str
    """What a person calls the baseline: "torch.mm"."""

    def unfit(self, workload: Workload, config: Mapping[str, Value], target: Target, limits: Limits) -> str | None:
        """Why this config can certainly not run, or None. When unsure, None: the compiler decides."""

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        """The TileLang `prim_func`; its parameters are the packed inputs, then the output."""

    def inputs(self, workload: Workload, seed: int, device: str) -> tuple[Tensor, ...]:
        """The operation's inputs on a torch device, the same for the same seed."""

    def output(self, workload: Workload, device: str) -> Tensor:
        """An output buffer; what is in it does not matter."""

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        """Inputs as the kernel wants them. Runs outside the timed region; its time is recorded."""

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        """The vendor path for the same math, written to `out`."""

    def flops(self, workload: Workload) -> float:
        """Floating-point operations of one call."""


def packing_of(family: Family, config: Mapping[str, Value]) -> str:
    """How a config's inputs are packed, in the family's words: "B packed as [K/4, N, 4]". Empty where nothing is.

    A family says so in a method `packing(config)`, which it need not have.
    """
    tell = getattr(family, "packing", None)
    return str(tell(config)) if tell is not None else ""


def load_family(name: str, search: Sequence[str] = ()) -> Family:
    """The family of a sweep file's `kernel:`, by built-in name or as `module:attribute`.

    A user's module is looked for in `search` and the current folder too. Raises RequestError with what to write instead.
    """
    path = BUILT_IN.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not colon:
        hint = nearest(name, BUILT_IN)
        raise RequestError(f"no kernel family {name!r}: {hint} (a family of your own is named module:attribute)")
    sys.path.extend(f for f in (*search, *search_folders()) if f not in sys.path)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything; it must cost one line, not a traceback
        why = str(error).splitlines()[0] if str(error) else "no message"
        raise RequestError(f"kernel family {name!r}: cannot import {module_name!r}: {type(error).__name__}: {why}") from error
    family = getattr(module, attribute, None)
    if family is None:
        raise RequestError(
            f"kernel family {name!r}: module {module_name!r} has no {attribute!r}: {nearest(attribute, vars(module))}"
        )
    if isinstance(family, type):
        raise RequestError(
            f"kernel family {name!r} is a class: name an instance of it, such as {attribute.upper()} = {attribute}()"
        )
    missing = [m for m in Family.__protocol_attrs__ if not hasattr(family, m)] if hasattr(Family, "__protocol_attrs__") else []
    if missing or not isinstance(family, Family):
        lacks = f", it lacks {', '.join(sorted(missing))}" if missing else ""
        raise RequestError(f"kernel family {name!r} is not a Family{lacks} (see docs/own-family.md)")
    return family


def code_hash(family: Family) -> str:
    """Hash of the source that a family's kernels come from: its module and what that imports from the same package.

    This module is left out: it says what a family is, not what any kernel does.
    """
    modules = sorted(_reachable(inspect.getmodule(type(family)) or sys.modules[__name__]), key=lambda m: m.__name__)
    text = "\0".join(inspect.getsource(m) for m in modules if m.__name__ != __name__)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _reachable(module: ModuleType) -> Iterator[ModuleType]:
    """A module and the modules of its own package (or folder) that it uses, each once."""
    seen: dict[str, ModuleType] = {}
    queue = [module]
    home = Path(module.__file__ or "").parent
    while queue:
        current = queue.pop()
        if current.__name__ in seen or Path(getattr(current, "__file__", None) or "/").parent != home:
            continue
        seen[current.__name__] = current
        used = (
            v if isinstance(v, ModuleType) else sys.modules.get(getattr(v, "__module__", None) or "")
            for v in vars(current).values()
        )
        queue.extend(m for m in used if m is not None)
    return iter(seen.values())


def defaults(knobs: Sequence[Knob], kind: TargetKind) -> dict[str, Value]:
    """Every knob's default on a kind of target; None where the knob means nothing there."""
    return {k.name: k.default if kind in k.kinds else None for k in knobs}


def _yaml(value: Value) -> str:
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if isinstance(value, (bool, type(None)))
        else str(value)
    )
