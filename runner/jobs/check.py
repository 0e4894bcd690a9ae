"""An output against what is expected of it: element by element with the baseline's, and by its error against float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from runner.errors import FailureKind, JobFailed
from runner.jobs.buffers import pattern
from runner.records import Accuracy, Check

if TYPE_CHECKING:
    from torch import Tensor

GROSSLY_WRONG = 0.01
"""An error above this share of the output's largest value is no rounding: the result is wrong, whatever the limit."""

BLOCK_ELEMENTS = 64 << 20
"""Compared at a time: their float32 differences stay small beside an output of gigabytes."""

LINES, TILES, TILE = 64, 64, 64
"""Of a large output the sample is so many whole rows and columns, and so many square tiles with sides of `TILE`."""

WHOLE = 1 << 22
"""Elements up to which the sample is everything."""


def compare(out: Tensor, expected: Tensor, seed: int, when: str, inputs: str = "normal", by_row: bool = False) -> Check:
    """max |out - expected|, and what is wrong beyond rounding. Raises JobFailed(WRONG_RESULT), saying where.

    `by_row` measures what is beyond rounding against the largest value of each row, not of the whole output. NaN is expected
    only where `expected` has it. Integers must be equal.
    """
    import torch

    got_rows, want_rows = rows_of(out), rows_of(expected)
    exactly = not out.dtype.is_floating_point
    wide = torch.float64 if exactly or out.dtype is torch.float64 else torch.float32
    limit: float | Tensor = 0.0 if exactly or by_row else GROSSLY_WRONG * largest_of(expected)
    worst, wrong, where = 0.0, 0.0, 0
    step = rows_at_a_time(got_rows)
    for start in range(0, got_rows.shape[0], step):
        got, want = got_rows[start : start + step].to(wide), want_rows[start : start + step].to(wide)
        equal = (got == want) | (got.isnan() & want.isnan())  # equal infinities are equal, and so are NaN that both have
        error = (got - want).abs_().masked_fill_(equal, 0.0).nan_to_num_(nan=math.inf)
        worst = max(worst, error.max().item())
        if by_row and not exactly:
            limit = GROSSLY_WRONG * finite(want).abs().amax(dim=1, keepdim=True)
        value, position = error.masked_fill_(error <= limit, 0.0).flatten().max(dim=0)
        if value.item() > wrong:
            wrong, where = value.item(), start * got_rows.shape[1] + int(position.item())
    if not wrong:
        return Check(seed, when, worst, inputs)
    raise JobFailed(FailureKind.WRONG_RESULT, f"{when}, {_of(seed, inputs)}: {_what(out, expected, where, wrong)}")


def _of(seed: int, inputs: str) -> str:
    return f"seed {seed}" if inputs == "normal" else f"{inputs}, seed {seed}"


def _what(out: Tensor, expected: Tensor, where: int, off_by: float) -> str:
    """What is wrong, and at which element it shows most."""
    import torch

    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(where), out.shape)) if out.dim() else ()
    values = f"at {list(index)}: got {out[index].item():.6g}, expected {expected[index].item():.6g}"
    floating = out.dtype.is_floating_point
    never = out.isnan() & ~expected.isnan() if floating else (out == pattern(out.dtype)) & (out != expected)
    unwritten = int(never.sum().item())
    if not unwritten or out.dtype is torch.bool:
        return f"off by {off_by:.6g} {values}"
    return f"{unwritten:,} of {out.numel():,} elements {'are NaN or ' if floating else ''}were never written, first seen {values}"


def rows_of(tensor: Tensor) -> Tensor:
    """Any tensor as rows of its last dimension; a scalar is one row of one."""
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)


def finite(tensor: Tensor) -> Tensor:
    """A tensor with zeros for what is not a finite number."""
    return tensor.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def rows_at_a_time(rows: Tensor) -> int:
    return max(1, BLOCK_ELEMENTS // max(1, int(rows.shape[1])))


def largest_of(tensor: Tensor) -> float:
    """The largest finite magnitude."""
    rows = rows_of(tensor)
    return max(
        (finite(part.float()).abs().max().item() for part in rows.split(rows_at_a_time(rows)) if part.numel()), default=0.0
    )


class Exact:
    """A sample of the result in float64: some whole rows and columns, and tiles all over."""

    def __init__(self, result: Tensor, seed: int):
        """`result` is the whole output in float64."""
        self.index = sample(result, seed)
        self.values = result.reshape(-1)[self.index]

    def accuracy(self, out: Tensor) -> Accuracy:
        """How far the same elements of an output are from it."""
        import torch

        info = torch.finfo(out.dtype)
        off = (out.reshape(-1)[self.index].double() - self.values).nan_to_num_(nan=math.inf)
        norm = self.values.norm().item()
        exponent = torch.frexp(self.values).exponent  # values are m * 2**e with m in [0.5, 1)
        ulp = torch.ldexp(torch.full_like(self.values, info.eps), exponent - 1).clamp_(min=info.tiny * info.eps)
        relative = off.norm().item() / norm if norm else (math.inf if off.any() else 0.0)
        return Accuracy(relative, (off.abs() > ulp).double().mean().item(), self.index.numel())


def sample(result: Tensor, seed: int) -> Tensor:
    """Flat indices of the elements that are looked at, the same for the same seed; of those that are finite numbers."""
    import torch

    flat = result.reshape(-1)
    if flat.numel() <= WHOLE:
        return flat.isfinite().nonzero().flatten()
    generator = torch.Generator().manual_seed(seed)
    height, width = rows_of(result).shape

    def some(of: int, number: int) -> Tensor:
        return torch.randint(of, (min(of, number),), generator=generator)

    across = some(height, LINES)[:, None] * width + torch.arange(width)
    down = torch.arange(height)[:, None] * width + some(width, LINES)
    corner = some(max(1, height - TILE), TILES)[:, None, None] * width + some(max(1, width - TILE), TILES)[:, None, None]
    tile = torch.arange(min(TILE, height))[:, None] * width + torch.arange(min(TILE, width))
    index = torch.cat([across.flatten(), down.flatten(), (corner + tile).flatten()]).to(flat.device)
    return index[flat[index].isfinite()]
