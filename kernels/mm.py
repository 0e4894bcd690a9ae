"""The ways to call `torch.mm` that a kernel is fairly compared with: one call of one library is one heuristic among several."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kernels.optional import Form

if TYPE_CHECKING:
    from torch import Tensor


def mm_forms() -> tuple[Form, ...]:
    """B as it is or transposed ahead, by torch's own library or cuBLASLt, with sums of parts in half precision or not."""
    return tuple(_form(*way) for way in itertools.product((False, True), (False, True), (False, True)) if any(way))


def _form(transposed: bool, lt: bool, full: bool) -> Form:
    words = ["transposed B"] * transposed + ["cublaslt"] * lt + ["no reduced-precision sums"] * full

    def pack(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        a, b = inputs
        return a, b.t().contiguous().t() if transposed else b  # [N, K] in memory, as the weights of a linear layer are

    def call(inputs: tuple[Tensor, ...], out: Tensor) -> None:
        import torch

        with _by_library("cublaslt" if lt else None), _in_full_precision(full):
            torch.mm(*inputs, out=out)

    return Form(", ".join(words), pack, call)


@contextmanager
def _by_library(name: str | None) -> Iterator[None]:
    import torch

    choose: Any = torch.backends.cuda.preferred_blas_library
    before = choose() if name else None
    if name:
        choose(name)
    try:
        yield
    finally:
        if name:
            choose(before)


@contextmanager
def _in_full_precision(asked: bool) -> Iterator[None]:
    import torch

    matmul: Any = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction
    matmul.allow_fp16_reduced_precision_reduction = before and not asked
    try:
        yield
    finally:
        matmul.allow_fp16_reduced_precision_reduction = before
