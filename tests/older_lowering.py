"""Run as `python -m tests.older_lowering ARCH`, with another TileLang first on the path: lowers what the sweep files ask for.

Prints JSON: which TileLang it was, and for each config its knobs and its matrix instruction, or what the compiler said.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Any

from kernels.gemm import GEMM
from runner.records import Value, Variant
from runner.targets.base import backend
from tests.test_gemm import SWEEPS, configs_of, source_of

KNOBS = {
    "sm_80": (
        "c_staging",
        "warp_policy",
        "b_interleave",
        "a_coalesced_width",
        "c_coalesced_width",
        "c_swizzle_bytes",
        "panel_size",
        "raster_order",
    ),
    "sm_90a": ("persistent_blocks", "split_k", "tma", "b_interleave"),
}
"""What an architecture is asked to show every value of: the knobs that call for something of TileLang by name; a block's sizes
and the number of stages are only numbers to it. Lowering takes seconds a config, so each knob is tried where it matters more; B's
packing, which takes another way on Hopper, on both."""

FREE = ("b_interleave", "a_coalesced_width", "c_coalesced_width", "c_swizzle_bytes", "panel_size", "raster_order", "tma")
"""Of those, the knobs whose every value goes with any value of the others, so that one config can show a value of each."""

NO_LAYOUT = {"sm_80": ("shared_m64", "shared_m32"), "sm_90a": ("shared_m32",)}
"""The slices of C for which TileLang finds no layout, 0.1.9 as well as 0.1.15: only some of a block's warps hold those rows, and
which they are changes with the slice. The compiler says so, and a sweep goes on."""


def asked(arch: str) -> list[Variant]:
    """What the sweep files have for an architecture, less the schedules that are written out in words of a newer TileLang."""
    return [of for path in SWEEPS for of in configs_of(path, arch) if of.config["schedule"] == "automatic"]


def covering(configs: Iterable[Variant], knobs: tuple[str, ...]) -> list[Variant]:
    """Few variants, in which every value of each of these knobs occurs that occurs in the ones given."""
    given = list(configs)
    missing = {(knob, of.config[knob]) for of in given for knob in knobs}
    chosen = []
    while missing:
        of = max(given, key=lambda of: _novelty(missing & of.config.items()))
        for knob, value in sorted(missing, key=repr):
            changed = replace(of, config={**of.config, knob: value})
            if knob in FREE and (knob, of.config[knob]) not in missing and fits(changed):
                of = changed
        chosen.append(of)
        missing -= of.config.items()
    return chosen


def _novelty(new: Set[tuple[str, Value]]) -> tuple[int, int]:
    """What no other config could show comes first."""
    return sum(knob not in FREE for knob, _ in new), len(new)


def fits(of: Variant) -> bool:
    return GEMM.unfit(of.workload, of.config, of.target, backend("cuda").limits(of.target)) is None


def lowered(of: Variant) -> dict[str, Any]:
    """`said` is the matrix instruction's name, or what was raised."""
    try:
        count, said = backend("cuda").mma(source_of(of)) or (0, "")
    except Exception as error:
        return {"config": of.config, "mma": 0, "said": str(error)}
    return {"config": of.config, "mma": count, "said": said}


def main(arch: str) -> None:
    import tilelang

    configs = asked(arch)
    without = {str(of.config["c_staging"]): of for of in configs if of.config["c_staging"] in NO_LAYOUT[arch]}
    chosen = [*covering((of for of in configs if of.config["c_staging"] not in without), KNOBS[arch]), *without.values()]
    found = {"version": tilelang.__version__, "file": tilelang.__file__, "lowered": [lowered(of) for of in chosen]}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
