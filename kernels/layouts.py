"""Physical layouts of operands, as TileLang sees them and as torch packs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def interleave_k(b: Tensor, width: int) -> Tensor:
    """Pack B[K, N] as [K/width, N, width]: `width` consecutive k of a column become neighbours.

    Raises ValueError where K is not divisible by the width.
    """
    k, n = b.shape
    if k % width:
        raise ValueError(f"B of shape {tuple(b.shape)} cannot be interleaved by {width}: K={k} is not divisible by it")
    return b.reshape(k // width, width, n).permute(0, 2, 1).contiguous()
