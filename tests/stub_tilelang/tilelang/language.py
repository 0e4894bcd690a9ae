"""A `tilelang.language` that writes a program down: its functions are called once, with symbols, and each step is a line."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

STEPS = ("copy", "clear", "gemm", "use_swizzle", "annotate_layout")
TYPES = ("int32",)
GemmWarpPolicy = SimpleNamespace(Square="Square", FullRow="FullRow", FullCol="FullCol")

_calls: list[str] = []


class Symbol:
    """A value that is known by its text alone."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def __getitem__(self, index: Any) -> Symbol:
        return Symbol(f"{self}[{_index(index)}]")

    def __setitem__(self, index: Any, value: Any) -> None:
        _calls.append(f"{self}[{_index(index)}] = {value}")


def _operator(sign: str, swapped: bool) -> Callable[[Any, Any], Symbol]:
    return lambda a, b: Symbol(f"({b} {sign} {a})" if swapped else f"({a} {sign} {b})")


for _name, _sign in {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "xor": "^"}.items():
    setattr(Symbol, f"__{_name}__", _operator(_sign, False))
    setattr(Symbol, f"__r{_name}__", _operator(_sign, True))


def _index(index: Any) -> str:
    parts = index if isinstance(index, tuple) else (index,)
    return ", ".join(f"{p.start}:{p.stop}" if isinstance(p, slice) else str(p) for p in parts)


def _written(name: str, arguments: tuple[Any, ...], settings: dict[str, Any]) -> str:
    return f"{name}({', '.join([*map(str, arguments), *(f'{k}={v}' for k, v in settings.items())])})"


def __getattr__(name: str) -> Any:
    if name in STEPS:
        return lambda *arguments, **settings: _calls.append(_written(name, arguments, settings))
    if name in TYPES:
        return Symbol(name)
    raise AttributeError(f"this stub has no T.{name}")


def macro(function: Callable[..., None]) -> Callable[..., None]:
    return function


def prim_func(function: Callable[..., None]) -> SimpleNamespace:
    parameters = inspect.signature(function).parameters
    _calls[:] = [_written(function.__name__, (), {name: p.annotation for name, p in parameters.items()})]
    function(*map(Symbol, parameters))
    return SimpleNamespace(calls=list(_calls))


def Tensor(shape: tuple[int, ...], dtype: str) -> Symbol:
    return Symbol(f"{dtype}{list(shape)}")


def Layout(shape: tuple[int, ...], place: Callable[..., Any]) -> Symbol:
    """Written as where an element lies."""
    names = list(inspect.signature(place).parameters)
    return Symbol(f"Layout({list(shape)}, ({', '.join(names)}) -> {place(*map(Symbol, names))})")


def _allocation(kind: str) -> Callable[[tuple[int, ...], str], Symbol]:
    def allocate(shape: tuple[int, ...], dtype: str) -> Symbol:
        name = f"{kind}{sum(bool(re.match(rf'{kind}[0-9]+ =', call)) for call in _calls)}"
        _calls.append(f"{name} = {Tensor(shape, dtype)}")
        return Symbol(name)

    return allocate


alloc_shared, alloc_fragment = _allocation("shared"), _allocation("fragment")


@contextlib.contextmanager
def Kernel(*blocks: int, threads: int) -> Iterator[Any]:
    _calls.append(_written("Kernel", blocks, {"threads": threads}))
    names = [Symbol(name) for name in ("bx", "by", "bz")[: len(blocks)]]
    yield names[0] if len(names) == 1 else names


def _loop(kind: str) -> Callable[..., Iterator[Any]]:
    """Its body is written down once."""

    def loop(*extents: Any, **settings: Any) -> Iterator[Any]:
        _calls.append(_written(kind, extents, settings))
        names = [Symbol(name) for name in ({1: "k", 2: "ij"}[len(extents)] if kind != "vectorized" else "v")]
        yield names[0] if len(names) == 1 else names

    return loop


Pipelined, Parallel, vectorized, unroll = map(_loop, ("Pipelined", "Parallel", "vectorized", "unroll"))
