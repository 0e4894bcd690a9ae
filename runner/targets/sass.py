"""Machine instructions of the kernels that are launched, counted where a disassembler is found: the source only promises."""

from __future__ import annotations

import importlib.util
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MATRIX = ("HGMMA", "QGMMA", "IGMMA", "HMMA", "QMMA", "IMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")
"""Instructions of the matrix unit, by what they begin with up to the first dot."""

COUNTED = (*MATRIX, "FFMA", "HFMA2", "LDGSTS", "UTMALDG", "UTMASTG", "LDSM", "STSM", "STL", "LDL")
"""Those, what would stand in for them, the copies, and the spills."""

_ELF, _CUDA_MACHINE = b"\x7fELF", 190
_FUNCTION = re.compile(r"^\s*(?:Function : |\.text\.)([\w$]+):?\s*$")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]+)[. ;](.*)")
_BRANCH = re.compile(r"`\((\.L_x_\d+)\)|\b0x([0-9a-f]+)\s*;")
TIMEOUT = 60.0


def counts(folder: Path, launch: str) -> dict[str, str | int]:
    """`sass_HGMMA: 16` and so on, over the kernels that the host code `launch` names, in the binaries of a folder.

    `sass_in_loops` is how many of the matrix instructions are within a loop. Empty where nothing can disassemble them.
    """
    tool = disassembler()
    if tool is None:
        return {}
    listings: dict[str, list[str]] = {}
    # TileLang keeps a binary twice, as a file and within the host library, and the two are not equal byte for byte.
    for cubin in sorted({cubin for path in folder.rglob("*") if path.is_file() for cubin in cubins(path.read_bytes())}):
        for name, lines in functions(_disassemble(tool, cubin)).items():
            if re.search(rf"\b{re.escape(name)}(?:_packed)?\b", launch):
                listings.setdefault(name, lines)
    total: Counter[str] = Counter()
    for lines in listings.values():
        total.update(match.group(2) for match in map(_INSTRUCTION.match, lines) if match)
        total["in_loops"] += matrix_in_loops(lines)
    found: dict[str, str | int] = {f"sass_{name}": total[name] for name in COUNTED if total[name]}
    return {**found, "sass_in_loops": total["in_loops"]} if listings else {}


def disassembler() -> str | None:
    """One on the path, or that of the package nvidia-cuda-nvdisasm."""
    if on_path := shutil.which("cuobjdump") or shutil.which("nvdisasm"):
        return on_path
    spec = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((str(path) for place in places for path in sorted(place.glob("*/bin/nvdisasm"))), None)


def functions(listing: str) -> dict[str, list[str]]:
    """The lines of each function in what `cuobjdump -sass` or `nvdisasm` prints."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            lines = found.setdefault(match.group(1), [])
        else:
            lines.append(line)
    return found


def matrix_in_loops(lines: list[str]) -> int:
    """Matrix instructions between a branch backwards and what it leads to."""
    places: dict[str, int] = {}  # line numbers of labels and addresses
    loops: list[tuple[int, int]] = []
    matrix: list[int] = []
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            places[label.group(1)] = number
        if not (match := _INSTRUCTION.match(line)):
            continue
        address, name, rest = match.groups()
        places[str(int(address, 16))] = number
        if name in MATRIX:
            matrix.append(number)
        if name == "BRA" and (to := _BRANCH.search(rest)):
            start = places.get(to.group(1) or str(int(to.group(2), 16)))  # a branch forwards leads to no place yet
            loops += [(start, number)] if start is not None else []
    return sum(any(start <= number <= end for start, end in loops) for number in matrix)


def cubins(data: bytes) -> Iterator[bytes]:
    """The CUDA binaries within a file: itself, or embedded in a host library."""
    start = data.find(_ELF)
    while start >= 0:
        header = data[start : start + 64]
        if len(header) == 64 and header[4] == 2 and struct.unpack_from("<H", header, 18)[0] == _CUDA_MACHINE:
            sections, size, number = (*struct.unpack_from("<Q", header, 40), *struct.unpack_from("<HH", header, 58))
            segments, segment_size, segment_number = (
                *struct.unpack_from("<Q", header, 32),
                *struct.unpack_from("<HH", header, 54),
            )
            yield data[start : start + max(sections + size * number, segments + segment_size * segment_number)]
        start = data.find(_ELF, start + 1)


def _disassemble(tool: str, cubin: bytes) -> str:
    option = ["-sass"] if Path(tool).name == "cuobjdump" else []
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run([tool, *option, file.name], capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
    return done.stdout
