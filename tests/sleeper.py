"""A family whose builds and calls take as long as they are told, and that leaves signs of where it is: for killing it there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kernels.family import Knob
from runner.process.child import ASKED_BY
from runner.records import Target, Value, Workload
from tests.broken_families import RIGHT_CODE, Negation

SIGNS = "SLEEPER_SIGNS"
"""The environment variable with the folder for signs."""

BASELINE_MS = "SLEEPER_BASELINE_MS"
"""The environment variable with how much longer the baseline takes on a machine."""

CODE = f"""{RIGHT_CODE}
  extern int usleep(unsigned); extern int unlink(const char*);
  FILE* alone = fopen("%(folder)s/timing", "wx");
  if (!alone) {{ FILE* seen = fopen("%(folder)s/overlap", "w"); if (seen) fclose(seen); }}
  FILE* quick = fopen("%(folder)s/quick", "r");
  if (quick) fclose(quick); else usleep(1000 * %(ms)s);
  if (alone) {{ fclose(alone); unlink("%(folder)s/timing"); }}
"""


class Sleeper(Negation):
    """Negation in `ms` milliseconds, or in none once there is a sign `quick`. A build takes `build_s` seconds longer."""

    name = "sleeper"
    knobs = (
        Knob("ms", 1, "How long a call takes."),
        Knob("build_s", 0, "How much longer the build takes.", (0, 4)),
        Knob("number", 1, "Changes nothing but the source."),
    )

    def body(self, config: Mapping[str, Value]) -> str:
        return CODE % {"folder": os.environ[SIGNS], "ms": config["ms"]} + f"  /* {config['number']} */"

    def baseline(self, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        """As fast as the machine is said to be."""
        time.sleep(float(os.environ.get(BASELINE_MS, "0")) / 1e3)
        super().baseline(inputs, out)

    def program(self, workload: Workload, config: Mapping[str, Value], target: Target) -> Any:
        from tilelang import env

        if config["build_s"] and "runner-build-" in env.TILELANG_CACHE_DIR:  # a built kernel is described again to load it
            leave_sign("building", config["number"])
            time.sleep(float(config["build_s"] or 0))
        return super().program(workload, config, target)

    def pack(self, inputs: tuple[Tensor, ...], config: Mapping[str, Value]) -> tuple[Tensor, ...]:
        leave_sign("measuring", config["number"])
        return inputs


SLEEPER = Sleeper("")


def leave_sign(what: str, number: Value) -> None:
    """Says which variant is being built or measured, and by which worker's child this is."""
    unfinished = Path(os.environ[SIGNS], f"{what}-{os.getpid()}")
    unfinished.write_text(f"{number} {os.environ[ASKED_BY]}")
    unfinished.replace(Path(os.environ[SIGNS], what))


def sign(folder: Path, what: str) -> tuple[int, int] | None:
    """The number of the variant that is being built or measured, and its worker's pid; None where that worker is gone."""
    path = folder / what
    number, pid = map(int, path.read_text().split()) if path.exists() else (0, 0)
    return (number, pid) if pid and Path(f"/proc/{pid}/exe").exists() else None


def await_sign(folder: Path, what: str, number: int, timeout: float = 120) -> int:
    """The worker's pid, once that variant is being built or measured."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        found = sign(folder, what)
        if found is not None and found[0] == number:
            return found[1]
        time.sleep(0.02)
    raise AssertionError(f"not {what} {number} within {timeout:.0f} s")
