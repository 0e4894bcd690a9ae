"""Inputs of other kinds than those that are timed: what is wrong with a kernel may show on some of them alone."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.jobs.check import largest_of, rows_of
from runner.jobs.problem import TIMED, Problem

if TYPE_CHECKING:
    from torch import Tensor

    Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """Inputs of one kind, what is expected of them, and how it is compared."""

    name: str
    seed: int
    inputs: Inputs
    expected: Tensor
    exactly: bool = False  # every order of summation gives the same bits
    by_row: bool = False  # rows differ in scale


def cases(problem: Problem) -> Iterator[Case]:
    """Inputs of every kind that applies, one after the other, from a seed that nobody has seen before."""
    seed = secrets.randbits(31)
    drawn = problem.family.inputs(problem.workload, seed, problem.torch_device)
    yield Case("fresh seed", seed, drawn, problem.result_of(drawn))
    if not any(t.dtype.is_floating_point for t in drawn) or not problem.expected[TIMED].dtype.is_floating_point:
        return
    for name, change in KINDS.items():
        case = change(problem, name, seed, drawn)
        if case is not None:
            yield case


def _replaced(inputs: Inputs, change: Callable[[Tensor], Tensor], every: bool = False) -> Inputs:
    """The first floating-point input changed, or every one."""
    first = next(n for n, t in enumerate(inputs) if t.dtype.is_floating_point)
    return tuple(change(t) if t.dtype.is_floating_point and (every or n == first) else t for n, t in enumerate(inputs))


def _integers(problem: Problem, name: str, seed: int, drawn: Inputs) -> Case | None:
    """Whole numbers from -3 to 3: their sums are exact in float32, so no order of summation changes a bit."""
    return _without_rounding(problem, name, seed, _replaced(drawn, lambda t: (t * 1.5).round_().clamp_(-3, 3), every=True))


def _one_hot(problem: Problem, name: str, seed: int, drawn: Inputs) -> Case | None:
    """A single 1 in each row of the first input: every element of the result is one element of another, by its index."""
    import torch

    def one_hot(tensor: Tensor) -> Tensor:
        generator = torch.Generator(tensor.device).manual_seed(seed)
        columns = torch.randint(tensor.shape[-1], (*tensor.shape[:-1], 1), generator=generator, device=tensor.device)
        return torch.zeros_like(tensor).scatter_(-1, columns, 1.0)

    return _without_rounding(problem, name, seed, _replaced(drawn, one_hot)) if drawn[0].dim() else None


def _without_rounding(problem: Problem, name: str, seed: int, inputs: Inputs) -> Case:
    """Must be met bit by bit where the baseline's result is the float64 result, rounded once."""
    import torch

    expected = problem.result_of(inputs)
    exactly = problem.exact is not None and torch.equal(problem.in_float64(inputs).to(expected.dtype), expected)
    return Case(name, seed, inputs, expected, exactly)


def _scaled_rows(problem: Problem, name: str, seed: int, drawn: Inputs) -> Case | None:
    """Rows of the first input scaled by 2^-8 … 2^8: an error in a small row is not hidden behind a large one."""
    import torch

    if problem.expected[TIMED].dim() < 2 or problem.expected[TIMED].shape[-1] < SHORTEST_ROW:
        return None
    room = torch.finfo(problem.expected[TIMED].dtype).max / 4
    shift = 0
    while largest_of(problem.expected[TIMED]) * 2.0 ** (8 - shift) > room:
        shift += 1

    def scaled(tensor: Tensor) -> Tensor:
        rows = rows_of(tensor)
        exponents = (torch.arange(rows.shape[0], device=tensor.device) * 7) % 17 - 8 - shift
        return (rows * torch.ldexp(torch.ones_like(rows[:, :1]), exponents[:, None])).reshape(tensor.shape).to(tensor.dtype)

    inputs = _replaced(drawn, scaled)
    return Case(name, seed, inputs, problem.result_of(inputs), by_row=True)


def _no_numbers(problem: Problem, name: str, seed: int, drawn: Inputs) -> Case | None:
    """A NaN in one row of the first input and an infinity in another: they must spread as far as in the baseline."""
    first = next(t for t in drawn if t.dtype.is_floating_point)
    if first.dim() < 2 or rows_of(first).shape[0] < 4:
        return None

    def spoilt(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        rows = rows_of(changed)
        rows[1, rows.shape[1] // 2], rows[rows.shape[0] // 2 + 1, 0] = float("nan"), float("inf")
        return changed

    inputs = _replaced(drawn, spoilt)
    return Case(name, seed, inputs, problem.result_of(inputs))


SHORTEST_ROW = 32
"""Elements of a row from which its largest one says how large its errors may be."""

KINDS: Mapping[str, Callable[[Problem, str, int, Inputs], Case | None]] = {
    "integers": _integers,
    "one-hot rows": _one_hot,
    "scaled rows": _scaled_rows,
    "NaN and infinity": _no_numbers,
}
"""By what a reason calls them."""
