"""How many floating-point operations the matrix instructions of generated source make in one launch, by its loops' trip counts.

TileLang writes regular code: loops with constant bounds, and branches by thread index for warps with different work. What is not
of that form leaves the number unknown, and never guessed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from runner.targets.source import strip

_TOKEN = re.compile(
    r"\bfor \(int (?P<name>\w+) = (?P<first>\d+); (?P=name) < (?P<end>\d+); \+\+(?P=name)\)\s*\{"
    r"|(?P<loop>\b(?:for|while)\s*\([^\n]*\{)"
    r"|\bif \(\(\(int\)threadIdx\.x\) < (?P<below>\d+)\)\s*\{"
    r"|\bif \((?P<least>\d+) <= \(\(int\)threadIdx\.x\)\)\s*\{"
    r"|(?P<other>\}\s*else\s*\{)"
    r"|(?P<open>\{)|(?P<close>\})"
    r"|\btl::(?P<form>wgmma_\w+|mma_sync\w*|gemm_\w+)\s*<(?P<shape>[^<>]*)>\s*\("
    r"|\b__builtin_mxc_mma_(?P<metax>\d+x\d+x\d+)\w*\s*\("
)
_KERNEL = re.compile(r"__launch_bounds__\((\d+)[^)]*\)\s*(\w+)\([^)]*\)\s*\{")
_ARGUMENT = re.compile(r"v_int64\)? = \(\(int64_t\)(\d+)\)")


@dataclass(frozen=True)
class _Region:
    """Where the reader of a kernel is: how often it is passed through, by the threads from `low` up to `high`."""

    trips: int | None
    low: int
    high: int
    rest: tuple[int, int] | None = None  # the threads of an `else`, where the condition tells


def evidence(source: str, launch: str) -> dict[str, str | int]:
    """`matrix_flops`, where it is known and there is a matrix instruction."""
    found = matrix_flops(source, launch)
    return {"matrix_flops": found} if found else {}


def matrix_flops(source: str, launch: str) -> int | None:
    """Of all kernels in CUDA or MACA source that the host code `launch` calls; None where it cannot be told."""
    code, total = strip(source), 0
    kernels = list(_KERNEL.finditer(code))
    for kernel, after in zip(kernels, [*kernels[1:], None]):
        threads, name = int(kernel.group(1)), kernel.group(2)
        body = code[kernel.end() : after.start() if after else len(code)]
        per_block = _per_block(body, threads)
        if per_block == 0:
            continue
        blocks = _blocks(launch, name, threads, "cluster" in body)
        if per_block is None or blocks is None:
            return None
        total += per_block * blocks
    return total if kernels else None


def _per_block(body: str, threads: int) -> int | None:
    """Operations of one block; None where a matrix instruction is in a loop whose trips are not written down."""
    total, regions = 0, [_Region(1, 0, threads)]
    for token in _TOKEN.finditer(body):
        here = regions[-1]
        if token["name"]:
            trips = max(0, int(token["end"]) - int(token["first"]))
            regions.append(_Region(None if here.trips is None else here.trips * trips, here.low, here.high))
        elif token["loop"]:
            regions.append(_Region(None, here.low, here.high))
        elif token["below"] or token["least"]:
            at = min(max(int(token["below"] or token["least"]), here.low), here.high)
            below, above = (here.low, at), (at, here.high)
            own, rest = (below, above) if token["below"] else (above, below)
            regions.append(_Region(here.trips, *own, rest))
        elif token["other"]:
            left = regions.pop()
            outer = regions[-1]
            regions.append(_Region(left.trips, *(left.rest or (outer.low, outer.high))))
        elif token["open"]:
            regions.append(_Region(here.trips, here.low, here.high))
        elif token["close"]:
            regions.pop()
            if not regions:
                break
        else:
            if here.trips is None:
                return None
            total += here.trips * _operations(token, here.high - here.low)
    return total


def _operations(token: re.Match[str], threads: int) -> int:
    """Of one instruction by so many threads: 2 M N K for each group of threads that issues it together."""
    if token["metax"]:
        shape, together = [int(n) for n in token["metax"].split("x")], 64
    else:
        shape = [int(n) for n in re.findall(r"(?<![\w.])\d+(?![\w.])", token["shape"])][:3]
        together = {"wg": 128, "mm": 32}.get(token["form"][:2], max(1, threads))
    return 2 * math.prod(shape) * (threads // together)


def _blocks(launch: str, name: str, threads: int, clusters: bool) -> int | None:
    """The grid of a kernel, from the arguments of its launch: cluster, grid, threads, and perhaps shared memory."""
    before, found, _ = launch.partition(f"FunctionCall({name}_packed")
    if not found:
        return None
    arguments = [int(n) for n in _ARGUMENT.findall(before.rpartition("FunctionCall(")[2])]
    ends = [i for i in range(len(arguments) - 2) if arguments[i : i + 3] == [threads, 1, 1]]
    if not ends:
        return None
    grid = arguments[: ends[-1]]
    return math.prod(grid[3:] if clusters and len(grid) > 3 else grid)
