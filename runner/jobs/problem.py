"""What a kernel is given and checked by: a workload's inputs, the baseline's results, and a sample of the result in float64."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kernels.family import Family, load_family
from runner.errors import FailureKind, JobFailed
from runner.jobs.buffers import bits, fingerprint, same
from runner.jobs.check import Exact
from runner.jobs.conduct import device_errors, same_settings
from runner.records import Accuracy, TargetKind, Workload
from runner.targets.base import Backend, backend

if TYPE_CHECKING:
    from torch import Tensor

    Inputs = tuple[Tensor, ...]

SEEDS = (20_240, 20_241)
"""The first seed's inputs are timed; the second proves that the result follows the inputs."""

TIMED, OTHER = SEEDS

FLOAT64_BYTES = 24 << 30
"""What the inputs and the result may take in float64; above it there is no exact result to compare with."""


class Problem:
    """All that is made once for a workload on a device: inputs and expected results of both seeds, and the exact sample."""

    def __init__(self, workload: Workload, kind: TargetKind, search: tuple[str, ...]):
        self.workload, self.torch_device = workload, backend(kind).torch_device
        self.family: Family = load_family(workload.family, search)
        self.inputs: dict[int, Inputs] = {}
        self.expected: dict[int, Tensor] = {}
        for seed in SEEDS:
            self.inputs[seed] = self.family.inputs(workload, seed, self.torch_device)
            self.expected[seed] = self.result_of(self.inputs[seed])
        self._demand_sound()
        self.exact, self.why_inexact = self._exact()
        self.baseline_accuracy: Accuracy | None = self.exact.accuracy(self.expected[TIMED]) if self.exact else None
        self._prints = self._fingerprints()

    def output(self) -> Tensor:
        """A buffer of the output's shape and dtype, of its own: a family may hand out the same one twice."""
        import torch

        return torch.empty_like(self.family.output(self.workload, self.torch_device))

    def result_of(self, inputs: Inputs) -> Tensor:
        """The baseline's."""
        out = self.output()
        self.family.baseline(inputs, out)
        return out

    def in_float64(self, inputs: Inputs) -> Tensor:
        """The same math in float64. Raises whatever a baseline does that has no such form."""
        import torch

        out = torch.empty_like(self.output(), dtype=torch.float64)
        self.family.baseline(tuple(t.double() if t.dtype.is_floating_point else t for t in inputs), out)
        return out

    def changed(self) -> str:
        """What of it is not as it was made, in words; empty where all is."""
        now = self._fingerprints()
        return next((name for name in now if now[name] != self._prints[name]), "")

    def _fingerprints(self) -> dict[str, int]:
        tensors = {f"input {n} of seed {s}": t for s in SEEDS for n, t in enumerate(self.inputs[s], 1)}
        tensors |= {f"the expected result of seed {s}": self.expected[s] for s in SEEDS}
        return {name: fingerprint(tensor) for name, tensor in tensors.items()}

    def _demand_sound(self) -> None:
        """Raises JobFailed(UNSOUND) where the family leaves nothing to tell a right kernel from a wrong one by."""
        family, one, other = self.workload.family, self.expected[TIMED], self.expected[OTHER]
        if not one.dim():
            raise unsound(f"{family}: its output is a scalar, and a kernel's is a tensor: give it one dimension, torch.empty(1)")
        if one.dtype.is_floating_point and not getattr(self.family, "allows_nan", False):
            for seed, expected in self.expected.items():
                if count := int(expected.isnan().sum().item()):
                    raise unsound(
                        f"{family}: {self.family.baseline_name} itself gives {count:,} NaN for seed {seed}: mend `inputs` or"
                        " `baseline`, or set `allows_nan = True` on the family if that is right"
                    )
        if same(bits(one), bits(other)) and not getattr(self.family, "same_for_every_seed", ""):
            raise unsound(
                f"{family}: both seeds expect the same result, so a kernel that ignores its inputs would pass: have `inputs`"
                " use the seed, or say in `same_for_every_seed` why it cannot"
            )

    def _exact(self) -> tuple[Exact | None, str]:
        """A sample of the timed seed's result in float64, or why there is none."""
        expected, inputs = self.expected[TIMED], self.inputs[TIMED]
        if not expected.dtype.is_floating_point:
            return None, "the output is no floating-point number: every element must be equal"
        if 8 * (expected.numel() + sum(t.numel() for t in inputs)) > FLOAT64_BYTES:
            return None, "inputs and output are too large in float64"
        try:
            return Exact(self.in_float64(inputs), TIMED), ""
        except Exception as error:  # whatever a library says that has no such form, or no memory for it
            return None, f"{self.family.baseline_name} has no result in float64: {type(error).__name__}"


def unsound(why: str) -> JobFailed:
    return JobFailed(FailureKind.UNSOUND, why)


@functools.lru_cache(maxsize=1)
def _cached(family: str, shape: tuple[tuple[str, int], ...], dtype: str, kind: TargetKind, search: tuple[str, ...]) -> Problem:
    return Problem(Workload(family, dict(shape), dtype), kind, search)


def problem_of(workload: Workload, kind: TargetKind, search: tuple[str, ...]) -> Problem:
    """Made once for a workload; the process sees one device."""
    return _cached(workload.family, tuple(workload.shape.items()), workload.dtype, kind, search)


@contextmanager
def prepared(workload: Workload, kind: TargetKind, search: tuple[str, ...]) -> Iterator[tuple[Backend, Problem]]:
    """The target, set up for a dtype, and the workload's problem on it; what goes wrong meanwhile has the target's words."""
    import tilelang  # noqa: F401 - what it sets up is no kernel's doing

    target = backend(kind)
    target.prepare(workload.dtype)
    with same_settings(), _forgetting(), device_errors(kind):
        yield target, problem_of(workload, kind, search)


@contextmanager
def _forgetting() -> Iterator[None]:
    """Has the next problem made anew where something goes wrong, which may have written to this one."""
    try:
        yield
    except BaseException:
        _cached.cache_clear()
        raise
