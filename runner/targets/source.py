"""What generated source says of itself, read with comments and strings stripped."""

from __future__ import annotations

import re
from collections import Counter

_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)
_BOUNDS = re.compile(r"__launch_bounds__\(([^)]*)\)\s*\w+\(([^)]*)\)\s*\{")
_PARAMETER = re.compile(r"(?:\*\s*(?:__restrict__\s*)?|CUtensorMap\s+)(\w+)\s*(?:,|$)")
_ASYNC = re.compile(r"\btl::(cp_async_gs\w*<\d+|tma_load\w*)")
_LOAD_GLOBAL = re.compile(r"\btl::(?:load_global_|ldg)(\d+)")


def strip(source: str) -> str:
    """C-like source without comments and literals, so that an instruction's name in one is not counted."""
    return _NOT_CODE.sub(lambda m: " " if m.group()[0] == "/" else '""', source)


def count_instruction(source: str, pattern: re.Pattern[str]) -> tuple[int, str]:
    """Textual count of the matches of `pattern`, and the name met most often ("" where there is none)."""
    names = Counter(m.group(1) for m in pattern.finditer(strip(source)))
    return sum(names.values()), names.most_common(1)[0][0] if names else ""


def evidence(source: str) -> dict[str, str | int]:
    """What a kernel engineer looks for in generated CUDA or MACA source.

    `launch_bounds` of each kernel, how each of its inputs is read (`reads_A`: `2 x uint2`, `1 x tma_load`, `4 x cp_async 16 B`;
    the last parameter is the output), and how many copies are asynchronous.
    """
    code = strip(source)
    found: dict[str, str | int] = {}
    for number, kernel in enumerate(_BOUNDS.finditer(code)):
        suffix = f"_{number + 1}" if number else ""
        found[f"launch_bounds{suffix}"] = " ".join(kernel.group(1).split())
        names = [name.removesuffix("_desc") for name in _PARAMETER.findall(kernel.group(2))]
        body = code[kernel.end() :].partition("__launch_bounds__")[0]
        for name in names[:-1]:
            reads = _reads(body, name)
            if reads:
                found[f"reads_{name}{suffix}"] = ", ".join(f"{count} x {form}" for form, count in reads.items())
    found["async_copies"] = len(_ASYNC.findall(code))
    return found


def _reads(body: str, name: str) -> Counter[str]:
    """In what form a parameter is read, by the statements that do."""
    of_it = re.compile(rf"\b{name}\s*(?:\[|\+)|\({name}\)|\b{name}_desc\b")
    vector = re.compile(rf"\*\((?:const\s+)?(\w+)\s*\*\)\s*\(\s*{name}\b")
    found: Counter[str] = Counter()
    for line in body.splitlines():
        _, _, right = line.partition(" = ")
        statement = right or line
        if not of_it.search(statement) or "prefetch" in statement:
            continue
        copy, wide, cast = _ASYNC.search(statement), _LOAD_GLOBAL.search(statement), vector.search(statement)
        if copy:
            kind, _, size = copy.group(1).partition("<")
            found[f"cp_async {size} B" if size else kind] += 1
        elif wide or cast:
            found[f"{wide.group(1)} bit" if wide else cast.group(1) if cast else ""] += 1
        else:
            found["scalar"] += 1
    return found
