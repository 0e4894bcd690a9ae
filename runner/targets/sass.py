"""Machine instructions of a built CUDA kernel, counted where a disassembler is found: what the source only promises."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

COUNTED = ("HGMMA", "HMMA", "IMMA", "UTCHMMA", "FFMA", "LDGSTS", "UTMALDG", "UTMASTG", "LDSM", "STSM", "STL", "LDL")
"""Matrix instructions, what would stand in for them, the copies, and the spills."""

_ELF, _CUDA_MACHINE = b"\x7fELF", 190
_INSTRUCTION = re.compile(r"^\s*(?:/\*[0-9a-f]+\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]+)[. ;]", re.MULTILINE)
TIMEOUT = 60.0


def counts(folder: Path) -> dict[str, str | int]:
    """`sass_HGMMA: 16` and so on, over all kernels in the files of a folder; empty where nothing can disassemble them."""
    tool = shutil.which("cuobjdump") or shutil.which("nvdisasm")
    if tool is None:
        return {}
    # TileLang may keep one binary twice, as a file and within the host library.
    found = {cubin for path in folder.rglob("*") if path.is_file() for cubin in cubins(path.read_bytes())}
    total: Counter[str] = Counter()
    for cubin in found:
        total.update(_INSTRUCTION.findall(_disassemble(tool, cubin)))
    return {f"sass_{name}": total[name] for name in COUNTED if total[name]}


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
