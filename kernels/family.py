"""A kernel family: code with knobs for one operation. docs/own-family.md shows how to write one.

Importing a family costs neither torch nor TileLang: both are imported inside the methods that need them, so that
planning a sweep is quick and works on a machine without either.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from kernels.finding import OURS, hidden, share_our_names
from runner.errors import RequestError, nearest
from runner.names import line_fault, name_fault
from runner.paths import search_folders
from runner.records import ENV_PREFIX, PASS_PREFIX, Limits, Target, TargetKind, Value, Workload

if TYPE_CHECKING:
    from torch import Tensor

BUILT_IN = {"gemm": "kernels.gemm:GEMM"}
"""The families that ship with the runner, by the name a sweep file uses."""

RESERVED = ("dtype", "moe")
"""Words of a sweep file's `workload:`, which no knob and no dimension may be called."""


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


def module_of(kernel: str) -> str:
    """The module that a sweep file's `kernel:` names."""
    return BUILT_IN.get(kernel, kernel).partition(":")[0]


def load_family(name: str, search: Sequence[str] = ()) -> Family:
    """The family of a sweep file's `kernel:`, by built-in name or as `module:attribute`.

    A user's module is looked for in `search` and the current folder too. Raises RequestError with what to write instead.
    """
    path = BUILT_IN.get(name, name)
    module_name, colon, attribute = path.partition(":")
    if not colon:
        hint = nearest(name, BUILT_IN)
        raise RequestError(f"no kernel family {name!r}: {hint} (a family of your own is named module:attribute)")
    if name_fault(module_name) or name_fault(attribute):
        raise RequestError(f"kernel family {name!r}: write it as module:attribute, such as my_kernels.scan:SCAN")
    folders = list(dict.fromkeys([*search, *search_folders()]))
    sys.path.extend(f for f in folders if f not in sys.path)
    share_our_names(folders)
    if name not in BUILT_IN and module_name.partition(".")[0] in OURS and (why := hidden(module_name, folders)):
        raise RequestError(f"kernel family {name!r}: {why}")
    family = getattr(_imported(module_name, name, folders), attribute, None)
    if family is None:
        why = hidden(module_name, folders) or nearest(attribute, vars(sys.modules[module_name]))
        raise RequestError(f"kernel family {name!r}: module {module_name!r} has no {attribute!r}: {why}")
    if why := _family_fault(family, attribute):
        raise RequestError(f"kernel family {name!r} {why}")
    return cast(Family, family)


def _imported(module_name: str, name: str, folders: Sequence[str]) -> ModuleType:
    """A user's module may do and raise anything: it costs one line. What it prints is no answer of ours, so no output."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        fix = "put what parses arguments, or runs, under `if __name__ == '__main__':`"
        raise RequestError(f"kernel family {name!r}: to import {module_name!r} ends the process: {fix}") from error
    except BaseException as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        if isinstance(error, ModuleNotFoundError) and (passed_over := hidden(module_name, folders)):
            why = passed_over
        raise RequestError(f"kernel family {name!r}: cannot import {module_name!r}: {type(error).__name__}: {why}") from error


def _family_fault(family: object, attribute: str) -> str | None:
    """What is wrong with what a `kernel:` names, or None."""
    if isinstance(family, type):
        return f"is a class: name an instance of it, such as {attribute.upper()} = {attribute}()"
    missing = [m for m in Family.__protocol_attrs__ if not hasattr(family, m)] if hasattr(Family, "__protocol_attrs__") else []
    if missing or not isinstance(family, Family):
        lacks = f", it lacks {', '.join(sorted(missing))}" if missing else ""
        return f"is not a Family{lacks} (see docs/own-family.md)"
    for what in ("dims", "dtypes", "knobs"):
        if not isinstance(getattr(family, what), (tuple, list)):
            return f"has {what} that are no tuple: write {what} = (...,)"
    if not all(isinstance(knob, Knob) for knob in family.knobs):
        return "has knobs that are no Knob: write knobs = (Knob(...),)"
    return recording_fault(family)


def recording_fault(family: Family) -> str | None:
    """Which of a family's names the record cannot hold, and what to write instead; None where it holds all.

    Knobs, dimensions and `dtype` are params of one MLflow run, so they share no name.
    """
    knobs, dims = [knob.name for knob in family.knobs], family.dims
    named: dict[str, Sequence[object]] = {"knob": knobs, "dimension": dims, "dtype": family.dtypes}
    for what, names in named.items():
        for name in names:
            if fault := name_fault(name):
                return f"has the {what} {name!r}, which {fault}"
    for what in ("name", "baseline_name"):
        if fault := line_fault(getattr(family, what)):
            return f"has a {what} that {fault}"
    if prefixed := next((name for name in knobs if name.startswith((PASS_PREFIX, ENV_PREFIX))), None):
        return f"has the knob {prefixed!r}: what begins so is a setting of TileLang's, so call it something else"
    uses = Counter([*knobs, *dims, *RESERVED])
    if twice := next((name for name, count in uses.items() if count > 1), None):
        return f"uses the name {twice!r} twice: knobs and dimensions share no name, and none is {' or '.join(RESERVED)}"
    return None


def defaults(knobs: Sequence[Knob], kind: TargetKind) -> dict[str, Value]:
    """Every knob's default on a kind of target; None where the knob means nothing there."""
    return {k.name: k.default if kind in k.kinds else None for k in knobs}


def _yaml(value: Value) -> str:
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if isinstance(value, (bool, type(None)))
        else str(value)
    )
