"""YAML that remembers where everything was written, so that a fault can name its line.

Two things differ from PyYAML's own loader. Bare words mean what YAML 1.2 says: `on`, `off`, `yes` and `no` are strings
(and `on:` is a key, not True), `1e-3` is a number. And a key written twice is a fault instead of a silent last-one-wins.
Anchors, aliases and `<<` merges work.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import yaml

from runner.errors import SpecError, nearest
from runner.names import is_shown
from runner.records import Value

_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Node:
    """A value and where it stands. `line` is that of its key in a mapping, its own in a list, None outside a file."""

    value: Value | tuple[Node, ...] | dict[str, Node]
    source: str  # the file, or the command-line option, that it was written in
    line: int | None = None

    def fault(self, message: str) -> SpecError:
        """The error to raise for this value; always one line, whatever was quoted in it."""
        message = " ".join(message.split())
        return SpecError(message, self.source, self.line)

    def __str__(self) -> str:
        """The value as YAML would write it, shortened: for error lines."""
        text = _shown(self, depth=3)
        return text if len(text) <= 60 else f"{text[:57]}..."

    def mapping(self, what: str, keys: Iterable[str] | None = None) -> dict[str, Node]:
        """The entries of a mapping whose keys must be among `keys`; nothing written is an empty one."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.fault(f"{what} takes `key: value` lines, not {self}")
        allowed = None if keys is None else list(keys)
        for key, child in self.value.items():
            if allowed is not None and key not in allowed:
                raise child.fault(f"unknown key {key!r} in {what}: {nearest(key, allowed)}")
        return self.value

    def sequence(self, what: str) -> tuple[Node, ...]:
        """The items of a list with at least one."""
        if not isinstance(self.value, tuple):
            raise self.fault(f"{what} takes a list, not {self}: write it in brackets, as [1, 2]")
        if not self.value:
            raise self.fault(f"{what} is an empty list: give it a value, or leave it out")
        return self.value

    def text(self, what: str) -> str:
        """A string that is not blank."""
        if not isinstance(self.value, str) or not self.value.strip():
            raise self.fault(f"{what} takes text, not {self}: put it in quotes")
        if not is_shown(self.value):
            raise self.fault(f"{what} holds a character that cannot be shown: remove it")
        return self.value.strip()

    def integer(self, what: str, minimum: int, maximum: int = 2**31 - 1) -> int:
        # bool is an int in Python, and `repeat: true` must not pass for 1.
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < minimum:
            raise self.fault(f"{what} takes an integer of at least {minimum}, not {self}")
        if self.value > maximum:
            raise self.fault(f"{what} takes an integer of at most {maximum}, not {self}")
        return self.value

    def number(self, what: str, minimum: float, above: bool = False) -> float:
        """An integer or float of at least `minimum`, or above it."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < minimum or (above and value == minimum):
            raise self.fault(f"{what} takes a number {'above' if above else 'of at least'} {minimum:g}, not {self}")
        return float(value)

    def choice(self, what: str, choices: Iterable[str]) -> str:
        allowed = list(choices)
        if self.value not in allowed:
            raise self.fault(f"{what} cannot be {self}: {nearest(str(self), allowed)}")
        return str(self.value)


def load(text: str, source: str, numbered: bool = True) -> Node:
    """The one document in `text`; nothing at all is null. Raises SpecError with the line of a syntax error.

    `numbered=False` is for text that is not a file's: its nodes and faults carry no line.
    """
    try:
        # A subclass of SafeLoader, used for its parser alone: no constructor runs.
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
        return Node(None, source) if root is None else _Conversion(source, numbered).node(root)
    except yaml.MarkedYAMLError as error:
        raise SpecError(_syntax_fault(error), source, _line(error.problem_mark or error.context_mark, numbered)) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1 if numbered else None
        raise SpecError(f"holds a character that YAML does not allow ({error.reason}): remove it", source, line) from None
    except RecursionError:
        raise SpecError("is nested too deeply to be a sweep: remove brackets", source) from None


def written(value: Any) -> str:
    """A plain value on one line, as YAML would write it; strings are quoted where YAML might read something else."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(written(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z_][\w./-]*", value):
        return repr(value)
    return str(value)


def _shown(node: Node, depth: int) -> str:
    """`written` down to a depth: aliases of aliases can make a small file a huge value."""
    if isinstance(node.value, dict):
        inside = ", ".join(f"{key}: {_shown(child, depth - 1)}" for key, child in node.value.items()) if depth else "..."
        return "{" + inside + "}"
    if isinstance(node.value, tuple):
        return "[" + (", ".join(_shown(child, depth - 1) for child in node.value) if depth else "...") + "]"
    return written(node.value)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML's own name; none of YAML 1.1's are inherited)


# YAML 1.2, section 10.3.2 (core schema); the first pattern that matches wins, so int stands before float.
for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), _first)


class _Conversion:
    """PyYAML's nodes -> ours. An aliased node is converted once, so that aliases of aliases cannot blow up."""

    def __init__(self, source: str, numbered: bool):
        self.source, self.numbered = source, numbered
        self.done: dict[int, Node] = {}
        self.open: set[int] = set()

    def node(self, raw: yaml.Node) -> Node:
        key = id(raw)
        if key in self.open:
            raise self.fault(raw, "an alias stands inside what it refers to: remove it")
        if key not in self.done:
            self.open.add(key)
            self.done[key] = Node(self.value(raw), self.source, _line(raw.start_mark, self.numbered))
            self.open.remove(key)
        return self.done[key]

    def value(self, raw: yaml.Node) -> Value | tuple[Node, ...] | dict[str, Node]:
        if isinstance(raw, yaml.ScalarNode):
            return self.scalar(raw)
        if isinstance(raw, yaml.SequenceNode) and raw.tag == _TAG + "seq":
            return tuple(self.node(item) for item in raw.value)
        if isinstance(raw, yaml.MappingNode) and raw.tag == _TAG + "map":
            return self.mapping(raw)
        raise self.fault(raw, f"the tag {raw.tag!r} is not allowed: remove it")

    def mapping(self, raw: yaml.MappingNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, item in raw.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self.fault(key, "a key must be one word, not a list or a mapping")
            if key.tag == _TAG + "merge":
                merged = {**self.merge(item), **merged}
                continue
            name: str = key.value
            if name in own:
                raise self.fault(key, f"key {name!r} is written twice (first on line {own[name].line}): keep one of them")
            own[name] = replace(self.node(item), line=_line(key.start_mark, self.numbered))
        return {**merged, **own}

    def merge(self, raw: yaml.Node) -> dict[str, Node]:
        """What `<<:` brings in: a mapping, or several of which the first to name a key wins."""
        entries: dict[str, Node] = {}
        for part in raw.value if isinstance(raw, yaml.SequenceNode) else [raw]:
            value = self.node(part).value
            if not isinstance(value, dict):
                raise self.fault(part, "`<<` takes a mapping, or an alias of one")
            entries = {**value, **entries}
        return entries

    def scalar(self, raw: yaml.ScalarNode) -> Value:
        text: str = raw.value
        kind = raw.tag.removeprefix(_TAG)
        if kind in ("str", "merge"):
            return text
        if kind == "null":
            return None
        if kind == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            if kind == "int":
                return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
            if kind == "float" and math.isfinite(number := float(re.sub(r"\.(?=inf|nan)", "", text.lower()))):
                return number
        except ValueError:
            pass  # `!!int x`, or more digits than Python reads
        raise self.fault(raw, f"{text[:40]!r} is no value for a sweep: write a finite number, true, false, null or text")

    def fault(self, raw: yaml.Node, message: str) -> SpecError:
        return Node(None, self.source, _line(raw.start_mark, self.numbered)).fault(message)


def _line(mark: Any, numbered: bool) -> int | None:
    return mark.line + 1 if mark is not None and numbered else None


def _syntax_fault(error: yaml.MarkedYAMLError) -> str:
    problem = " ".join((error.problem or "cannot be read").split())
    if "'\\t'" in problem:
        return "a tab where YAML allows none: indent with spaces"
    begun = error.context_mark
    opened = f" {error.context} that begins on line {begun.line + 1}" if begun and error.context else ""
    return f"not valid YAML ({problem}{opened}): check indentation, colons, quotes and brackets"
