"""What generated source says of itself, read with comments and strings stripped."""

from __future__ import annotations

import re
from collections import Counter

_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def strip(source: str) -> str:
    """C-like source without comments and literals, so that an instruction's name in one is not counted."""
    return _NOT_CODE.sub(lambda m: " " if m.group()[0] == "/" else '""', source)


def count_instruction(source: str, pattern: re.Pattern[str]) -> tuple[int, str]:
    """Textual count of the matches of `pattern`, and the name met most often ("" where there is none)."""
    names = Counter(m.group(1) for m in pattern.finditer(strip(source)))
    return sum(names.values()), names.most_common(1)[0][0] if names else ""
