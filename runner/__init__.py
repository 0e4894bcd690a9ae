"""Finds, proves and keeps the fastest kernel: sweeps of TileLang kernels, judged, recorded, and loaded back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.best import BestKernel as BestKernel
    from runner.best import load_best as load_best

__all__ = ["BestKernel", "load_best"]


def __getattr__(name: str) -> Any:
    """`runner.load_best` imports MLflow only when it is used: every child process imports this package."""
    if name in __all__:
        import runner.best

        return getattr(runner.best, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
