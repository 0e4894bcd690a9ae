"""Tensors between guard bands, and what is put into an output before a kernel may write to it."""

from __future__ import annotations

import functools
import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LEAST_BAND, MOST_BAND = 64 << 10, 8 << 20
"""Bytes on either side of a tensor."""

TALLEST_TILE = 256
"""Rows: a tile that hangs over the edge writes no further than this many."""

PAGE = 4096
"""Bytes. Bands are whole pages, so a tensor is as aligned as its allocation."""


class Guarded:
    """A tensor of its own with a band before and after it, which a kernel that keeps to its bounds leaves as it is.

    The bands of floating-point tensors are NaN, so that what is read beyond the edge shows in the result.
    """

    def __init__(self, like: Tensor):
        """`like` gives shape, strides, dtype and device; its content is copied."""
        import torch

        span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride())) if like.numel() else 0
        row = like.shape[-1] if like.dim() else 1
        wanted = min(max(LEAST_BAND, TALLEST_TILE * row * like.element_size()), MOST_BAND)
        band = math.ceil(wanted / PAGE) * PAGE // like.element_size()
        whole = torch.empty(band + span + band, dtype=like.dtype, device=like.device)
        self.bands = (whole[:band], whole[band + span :])
        for one in self.bands:
            one.fill_(pattern(like.dtype))
        self._untouched = tuple(bits(one).clone() for one in self.bands)
        self.tensor = whole[band : band + span].as_strided(like.shape, like.stride(), band)
        self.tensor.copy_(like)

    def intact(self) -> bool:
        """Whether both bands are as they were made."""
        return all(same(bits(one), untouched) for one, untouched in zip(self.bands, self._untouched))


def pattern(dtype: object) -> float | int | bool:
    """What a band holds, and an output that was never written: a value that no computation leaves by chance."""
    import torch

    assert isinstance(dtype, torch.dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).min


class Poison:
    """Spoils a buffer before each call, in a way that changes, so that no kernel can tell a check from a timed call."""

    def __init__(self) -> None:
        self._random = random.Random()  # by the operating system's entropy

    def never_written(self, buffer: Tensor) -> None:
        """As `pattern`, which the comparison reports as never written."""
        buffer.fill_(pattern(buffer.dtype))

    def spoil(self, buffer: Tensor, right: Tensor | None = None) -> None:
        """One of three at random: the pattern, one number everywhere, or what is `right` turned to something wrong."""
        import torch

        way = self._random.randrange(3 if right is not None else 2)
        if way == 0 and buffer.dtype is not torch.bool:
            self.never_written(buffer)
        elif way == 1 and buffer.dtype is not torch.bool:
            buffer.fill_(self._random.uniform(-4, 4) if buffer.dtype.is_floating_point else self._random.randrange(1, 100))
        elif right is not None:
            spoilt = buffer.copy_(right)
            bits(spoilt).bitwise_not_() if not spoilt.dtype.is_floating_point else spoilt.neg_()
        else:
            buffer.fill_(pattern(buffer.dtype))


def bits(tensor: Tensor) -> Tensor:
    """A contiguous tensor's bits as integers, so that NaN equals itself and -0.0 is not 0.0."""
    import torch

    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    flat = tensor.reshape(-1)
    if flat.dtype is torch.bool:
        return flat.view(torch.uint8)
    if flat.numel() * flat.element_size() % 8 == 0 and flat.data_ptr() % 8 == 0:
        return flat.view(torch.uint8).view(torch.int64)  # wide words: an eighth of the comparisons
    return flat.view(torch.uint8)


def same(one: Tensor, other: Tensor) -> bool:
    import torch

    return bool(torch.equal(one, other))


def fingerprint(tensor: Tensor) -> int:
    """A sum over the bits of a tensor in which every word counts by its place: equal for equal tensors, else hardly ever."""
    words = bits(tensor)
    weights = _weights(str(words.device))
    total = 0
    for number, part in enumerate(words.split(len(weights)), 1):  # a few megabytes at a time: inputs fill most of a card
        total += (2 * number + 1) * int((part * weights[: part.numel()]).sum().item())
    return total % (1 << 64)


@functools.cache
def _weights(device: str) -> Tensor:
    """Odd numbers at random."""
    import torch

    generator = torch.Generator().manual_seed(1)
    return torch.randint(1 << 62, (1 << 20,), generator=generator).bitwise_or_(1).to(device)
