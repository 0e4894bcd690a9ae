"""Physical layouts of operands and tiles, as TileLang sees them and as torch packs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

VECTOR_BYTES = 16
"""What one thread moves at once, and so the unit that a swizzle moves."""


def interleave_k(b: Tensor, width: int) -> Tensor:
    """Pack B[K, N] as [K/width, N, width]: `width` consecutive k of a column become neighbours.

    Raises ValueError where K is not divisible by the width.
    """
    k, n = b.shape
    if k % width:
        raise ValueError(f"B of shape {tuple(b.shape)} cannot be interleaved by {width}: K={k} is not divisible by it")
    return b.reshape(k // width, width, n).permute(0, 2, 1).contiguous()


def swizzle(row: Any, column: Any, itemsize: int, swizzle_bytes: int) -> tuple[Any, Any]:
    """Where element (row, column) of a row-major tile lies: its vector's index within the row, exclusive-or the row's.

    The pattern repeats after `swizzle_bytes`, a power of two of at least `VECTOR_BYTES` that must divide the row. A
    column of the tile is thereby spread over `swizzle_bytes / 16` groups of banks. Ours, since TileLang's own function
    of this kind changed its module and its result between versions. Takes numbers and TVM expressions alike.
    """
    per_vector, vectors = VECTOR_BYTES // itemsize, swizzle_bytes // VECTOR_BYTES
    return row, ((column // per_vector) ^ (row % vectors)) * per_vector + column % per_vector
