"""Kernels by key, in memory, as TileLang keeps them for each execution backend."""

from __future__ import annotations

from types import SimpleNamespace

_dispatch_map = {"tvm_ffi": SimpleNamespace(_memory_cache={})}
