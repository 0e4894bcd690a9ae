"""What a family may have beside what it must (`family.Family`): workspace, a neighbouring shape, other calls of its baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.records import TargetKind, Value, Workload

if TYPE_CHECKING:
    from torch import Tensor

    from kernels.family import Family


@dataclass(frozen=True)
class Workspace:
    """Memory that a kernel works in, and that is neither input nor output. `dtype` is torch's word for it.

    What is in it before a call does not matter; the runner spoils it. One that `returns_to_zero` is zero before the first
    call, and must be zero again after every call.
    """

    shape: tuple[int, ...]
    dtype: str
    returns_to_zero: bool = False


@dataclass(frozen=True)
class Form:
    """One way to call a baseline: `pack` makes of the inputs what `call` takes, ahead of the timed part."""

    name: str
    pack: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]
    call: Callable[[tuple[Tensor, ...], Tensor], None]


def workspace_of(family: Family, workload: Workload, config: Mapping[str, Value]) -> tuple[Workspace, ...]:
    """By the family's method `workspace(workload, config)`. A program takes it between its packed inputs and its output."""
    found: Any = getattr(family, "workspace", None)
    return tuple(found(workload, config)) if found is not None else ()


def neighbour_of(family: Family, workload: Workload) -> Mapping[str, int] | None:
    """By the family's method `neighbour(workload)`: a shape near this one at which tiles hang over every edge."""
    found: Any = getattr(family, "neighbour", None)
    return found(workload) if found is not None else None


def forms_of(family: Family, kind: TargetKind) -> tuple[Form, ...]:
    """By the family's method `baseline_forms(kind)`: tried beside `baseline` itself, so that a kernel meets the fastest."""
    found: Any = getattr(family, "baseline_forms", None)
    return tuple(found(kind)) if found is not None else ()
