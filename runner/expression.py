"""The conditions of a sweep file's `where:`, which can compare and calculate and nothing else.

The grammar is a small part of Python's: names, numbers, strings, True/False/None (or true/false/null), arithmetic,
comparisons, `in (…)`, and/or/not, min, max and abs. The tree is walked here and never compiled or evaluated by Python,
so no text can run code, and length, powers and products are bounded, so none can run long.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.errors import RequestError, nearest
from runner.records import Value

MAX_LENGTH = 500
MAX_EXPONENT = 64
MAX_BITS = 1024  # far above any shape, far below what takes time to multiply

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITY: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_WORDS: dict[str, Value] = {"true": True, "false": False, "null": None}
_ALLOWED = "use + - * / // % **, comparisons, `in (…)`, and, or, not, min, max and abs"


@dataclass(frozen=True)
class Expression:
    """A condition that was checked by `parse`."""

    text: str
    tree: ast.expr = field(repr=False, compare=False)

    def evaluate(self, values: Mapping[str, Value]) -> Value:
        """Its value. Raises TypeError (null or text in arithmetic) or ArithmeticError (division by zero, too large)."""
        value: Value = _evaluate(self.tree, values)
        return value

    def unmet(self, values: Mapping[str, Value]) -> str | None:
        """Why a config is dropped, or None where the condition holds.

        What cannot be decided is dropped too, and says so: a condition on a knob that is null on some target
        belongs under that target's `on:`.
        """
        try:
            return None if self.evaluate(values) else f"where: {self.text} is false"
        except (TypeError, ArithmeticError) as error:
            return f"where: {self.text} cannot be decided: {error}"


def parse(text: str, names: Collection[str]) -> Expression:
    """A condition over `names`. Raises RequestError with what to write instead."""
    if len(text) > MAX_LENGTH:
        raise RequestError(f"the condition is {len(text)} characters long: use at most {MAX_LENGTH}")
    try:
        with warnings.catch_warnings():  # "invalid decimal literal" and the like: not the user's terminal's business
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, names)
    except SyntaxError as error:
        raise RequestError(f"{text!r} is not a condition ({error.msg}): {_ALLOWED}") from None
    except (RecursionError, MemoryError, ValueError):
        raise RequestError(f"{text[:60]!r} cannot be read: {_ALLOWED}") from None
    if not _is_condition(tree):
        raise RequestError(f"{text!r} is a value and not a condition: compare it, as in '{text.strip()} == 0'")
    return Expression(text.strip(), tree)


def _check(node: ast.expr, names: Collection[str]) -> None:
    """Refuses all that the grammar does not name, the ways into Python among it: attributes, subscripts, other calls."""
    if isinstance(node, ast.Name):
        if node.id not in names and node.id not in _WORDS:
            raise RequestError(f"unknown name {node.id!r}: {nearest(node.id, names)}")
        return
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, (int, float, str, type(None))) or _bits(node.value) > MAX_BITS:
            raise RequestError(f"{ast.unparse(node)[:40]} is not allowed in a condition: use a number, text, true, false or null")
        return
    for part in _parts(node):
        _check(part, names)


def _parts(node: ast.expr) -> list[ast.expr]:
    """The operands of a compound node that the grammar allows."""
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return [node.operand]
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return [node.left, node.right]
    if isinstance(node, ast.Compare):
        return [node.left, *(part for op, right in zip(node.ops, node.comparators) for part in _compared(op, right))]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords:
        if (len(node.args) == 1) != (node.func.id == "abs") or not node.args:
            raise RequestError(f"{ast.unparse(node)}: abs takes one value, min and max two or more")
        return node.args
    raise RequestError(f"{ast.unparse(node)[:60]!r} is not allowed in a condition: {_ALLOWED}")


def _compared(op: ast.cmpop, right: ast.expr) -> list[ast.expr]:
    """The right-hand side of one comparison: a literal list after `in`, one operand after all others."""
    if isinstance(op, (ast.In, ast.NotIn)):
        if isinstance(right, (ast.Tuple, ast.List)):
            return right.elts
        raise RequestError(f"`in` takes a list of values, as in 'in (1, 2)', not {ast.unparse(right)[:40]!r}")
    if type(op) in _ORDER or type(op) in _EQUALITY:
        return [right]
    raise RequestError("`is` is not allowed in a condition: use == or !=")


def _is_condition(node: ast.expr) -> bool:
    """Whether a node answers yes or no. `block_K % 16` does not: its author forgot `== 0`."""
    if isinstance(node, ast.BoolOp):
        return all(map(_is_condition, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is_condition(node.operand)
    return isinstance(node, (ast.Compare, ast.Name)) or (isinstance(node, ast.Constant) and isinstance(node.value, bool))


def _evaluate(node: ast.expr, values: Mapping[str, Value]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id] if node.id in values else _WORDS[node.id]
    if isinstance(node, ast.BoolOp):
        return _logic(node, values)
    if isinstance(node, ast.Compare):
        return _comparison(node, values)
    if isinstance(node, ast.UnaryOp):
        operand = _evaluate(node.operand, values)
        return _SIGNS[type(node.op)](operand if isinstance(node.op, ast.Not) else _number(node.operand, operand))
    if isinstance(node, ast.BinOp):
        left, right = (_number(part, _evaluate(part, values)) for part in (node.left, node.right))
        return _calculate(node.op, left, right)
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)  # `_check` let nothing else through
    return _FUNCTIONS[node.func.id](*(_number(part, _evaluate(part, values)) for part in node.args))


def _logic(node: ast.BoolOp, values: Mapping[str, Value]) -> Any:
    """and/or as Python has them: the operand that settles it, and those after it not looked at."""
    result: Any = None
    for part in node.values:
        result = _evaluate(part, values)
        if bool(result) == isinstance(node.op, ast.Or):
            break
    return result


def _comparison(node: ast.Compare, values: Mapping[str, Value]) -> bool:
    left = _evaluate(node.left, values)
    for op, side in zip(node.ops, node.comparators):
        if isinstance(op, (ast.In, ast.NotIn)):
            assert isinstance(side, (ast.Tuple, ast.List))
            right: Any = [_evaluate(item, values) for item in side.elts]
            holds = (left in right) == isinstance(op, ast.In)
        else:
            right = _evaluate(side, values)
            if type(op) in _ORDER and not (isinstance(left, str) and isinstance(right, str)):
                _number(node.left, left)
                _number(side, right)
            holds = (_ORDER.get(type(op)) or _EQUALITY[type(op)])(left, right)
        if not holds:
            return False
        left = right
    return True


def _calculate(op: ast.operator, left: int | float, right: int | float) -> int | float:
    if isinstance(op, ast.Pow):
        if not isinstance(right, int) or abs(right) > MAX_EXPONENT:
            raise ArithmeticError(f"a power of {right} (use a whole number up to {MAX_EXPONENT})")
        if _bits(left) * abs(right) > MAX_BITS:
            raise ArithmeticError("a power that is too large")
    result: int | float = _ARITHMETIC[type(op)](left, right)
    if _bits(result) > MAX_BITS:
        raise ArithmeticError("a number that is too large")
    return result


def _number(node: ast.expr, value: Any) -> Any:
    if not isinstance(value, (int, float)):
        shown = "null" if value is None else repr(value)
        raise TypeError(f"{ast.unparse(node)} is {shown}, not a number")
    return value


def _bits(value: Any) -> int:
    return value.bit_length() if isinstance(value, int) else 0
