"""What is timed: a built kernel, or its family's baseline, each with buffers of its own to work on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernels.family import packing_of
from kernels.optional import Form, workspace_of
from runner.artifacts import load_kernel
from runner.errors import FailureKind, JobFailed
from runner.jobs.buffers import Guarded, Poison, bits, same
from runner.jobs.cases import Case, cases
from runner.jobs.check import compare
from runner.jobs.problem import OTHER, TIMED, Problem
from runner.records import Artifact, Check, Variant
from runner.targets.base import backend

if TYPE_CHECKING:
    from torch import Tensor

SLOT_BYTES = 1 << 30
"""What the buffers of all slots of one subject may take."""


class Slot:
    """The buffers of one call. Calls that are timed together have a slot each, so that each finds cold data."""

    def __init__(self, inputs: Sequence[Tensor], workspace: Sequence[tuple[Tensor, bool]], out: Tensor):
        self.inputs = [Guarded(t) for t in inputs]
        self.workspace = [(Guarded(t), returns_to_zero) for t, returns_to_zero in workspace]
        self.out = Guarded(out)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (*(g.tensor for g in self.inputs), *(g.tensor for g, _ in self.workspace), self.out.tensor)

    def overrun(self) -> str:
        """Beyond which of its buffers somebody wrote; empty where nobody did."""
        named = [(f"packed input {n}", g) for n, g in enumerate(self.inputs, 1)]
        named += [(f"workspace {n}", g) for n, (g, _) in enumerate(self.workspace, 1)]
        return next((name for name, guarded in [*named, ("its output", self.out)] if not guarded.intact()), "")


class Kernel:
    """A variant's kernel, loaded from its artifact, whose every output is looked at.

    It works on copies of its packed inputs, at the same addresses for whatever inputs are put there: a kernel that remembers
    an answer by address gives a wrong one.
    """

    def __init__(self, variant: Variant, artifact: Artifact, problem: Problem, search: tuple[str, ...]):
        self.variant, self.problem, self.family = variant, problem, problem.family
        self.target = backend(variant.target.kind)
        self.kernel = load_kernel(variant, artifact, search)
        started = time.perf_counter()
        self.packed = self._pack(TIMED)
        self.prepack_ms = (time.perf_counter() - started) * 1e3
        self.slots = [self._slot()]
        self.poison = Poison()
        self.right: Tensor | None = None  # the first output for the timed inputs that was checked
        self.compared = self.equal = 0
        self.worst_timed = 0.0
        self.call_ms: list[float] = []  # of the calls before timing, by the host's clock

    @property
    def calls(self) -> list[Callable[[], object]]:
        return [partial(self.kernel, *slot.arguments) for slot in self.slots]

    def widen(self, batch: int) -> None:
        """Have a slot for each call of a batch, and one at least."""
        size = sum(t.numel() * t.element_size() for t in self.slots[0].arguments)
        for _ in range(len(self.slots), min(batch, max(1, SLOT_BYTES // max(1, size)))):
            self.slots.append(self._slot())

    def prepare(self) -> None:
        """Spoil what the next calls are to write."""
        for slot in self.slots:
            self.poison.spoil(slot.out.tensor, self.right)
            self._spoil_workspace(slot)

    def verify(self) -> None:
        """Compare what the calls left with the first output, bit by bit. Raises JobFailed where it is more than rounding."""
        for slot in self.slots:
            self.compared += 1
            assert self.right is not None
            if same(bits(slot.out.tensor), bits(self.right)):
                self.equal += 1
            else:
                check = self._compare(slot, self.problem.expected[TIMED], TIMED, f"call {self.compared} of the timing loop")
                self.worst_timed = max(self.worst_timed, check.max_abs_error)
            self._demand_zero(slot)

    def checks_before(self) -> list[Check]:
        """The timed seed last, so that what is timed follows it."""
        other, timed = (self._check(seed, "before timing") for seed in (OTHER, TIMED))
        self.right, self.worst_timed = self.slots[0].out.tensor.clone(), timed.max_abs_error
        self.prepare()
        self._call(self.slots[0])
        self.verify()
        return [other, timed]

    def checks_after(self) -> list[Check]:
        """The worst of the timed calls, then both seeds anew: a kernel may skip its work by now, or repeat an answer."""
        self._demand_unchanged()
        as_timed = Check(TIMED, "as timed", self.worst_timed)
        return [as_timed, *(self._check(seed, "after timing") for seed in (OTHER, TIMED))]

    def prove(self) -> list[Check]:
        """A check with inputs of every kind. Raises JobFailed(WRONG_RESULT)."""
        return [self._try(case) for case in cases(self.problem)]

    def restore(self) -> None:
        """The timed inputs again, after others."""
        self._put(self.packed)

    def _try(self, case: Case) -> Check:
        self._put(self.family.pack(case.inputs, self.variant.config))
        self._run_once()
        check = self._compare(self.slots[0], case.expected, case.seed, "before accepting", case.name, case.by_row)
        if case.exactly and check.max_abs_error:
            said = f"off by {check.max_abs_error:.6g}, where no order of summation changes a bit"
            raise JobFailed(FailureKind.WRONG_RESULT, f"before accepting, {case.name}, seed {case.seed}: {said}")
        return check

    def _check(self, seed: int, when: str) -> Check:
        """Run once on an output that was never written, and compare it with the baseline's."""
        self._put(self.packed if seed == TIMED else self._pack(seed))
        self._run_once()
        return self._compare(self.slots[0], self.problem.expected[seed], seed, when)

    def _run_once(self) -> None:
        slot = self.slots[0]
        self.poison.never_written(slot.out.tensor)
        self._spoil_workspace(slot)
        self._call(slot)
        self._demand_zero(slot)

    def _call(self, slot: Slot) -> None:
        started = time.perf_counter()
        self.kernel(*slot.arguments)
        self.target.synchronize()
        self.call_ms.append((time.perf_counter() - started) * 1e3)

    def _put(self, packed: Sequence[Tensor]) -> None:
        """Give every slot these inputs, where it had others."""
        for slot in self.slots:
            for guarded, tensor in zip(slot.inputs, packed):
                guarded.tensor.copy_(tensor)

    def _pack(self, seed: int) -> tuple[Tensor, ...]:
        packed = self.family.pack(self.problem.inputs[seed], self.variant.config)
        self.target.synchronize()
        return packed

    def _slot(self) -> Slot:
        import torch

        specs = workspace_of(self.family, self.problem.workload, self.variant.config)
        device = self.problem.torch_device
        workspace = [
            (torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=device), spec.returns_to_zero) for spec in specs
        ]
        return Slot(self.packed, workspace, self.problem.output())

    def _spoil_workspace(self, slot: Slot) -> None:
        for guarded, returns_to_zero in slot.workspace:
            if not returns_to_zero:
                self.poison.spoil(guarded.tensor)

    def _demand_zero(self, slot: Slot) -> None:
        for number, (guarded, returns_to_zero) in enumerate(slot.workspace, 1):
            if returns_to_zero and guarded.tensor.any():
                raise JobFailed(FailureKind.WRONG_RESULT, f"workspace {number} was not zero again after a call")

    def _compare(self, slot: Slot, expected: Tensor, seed: int, when: str, inputs: str = "normal", by_row: bool = False) -> Check:
        """Raises JobFailed(WRONG_RESULT), with the likeliest cause first."""
        overrun = self._overrun()
        try:
            check = compare(slot.out.tensor, expected, seed, when, inputs, by_row)
        except JobFailed as failure:
            # What the inputs were packed for is half of what an engineer asks first about a wrong result.
            packing = packing_of(self.family, self.variant.config)
            written = overrun or (self._written_to() if seed == TIMED else "")
            said = f"{written + '; ' if written else ''}{failure.detail}{f' ({packing})' if packing else ''}"
            raise JobFailed(failure.kind, said, failure.output, failure.sticky) from None
        if overrun:
            raise JobFailed(FailureKind.WRONG_RESULT, overrun)
        return check

    def _overrun(self) -> str:
        found = next(filter(None, (slot.overrun() for slot in self.slots)), "")
        return f"writes beyond the edge of {found}" if found else ""

    def _written_to(self) -> str:
        """Which of its inputs are not those that were put there, where the timed ones were."""
        wrong = {
            number
            for slot in self.slots
            for number, (guarded, tensor) in enumerate(zip(slot.inputs, self.packed), 1)
            if not same(bits(guarded.tensor), bits(tensor))
        }
        return f"writes to its input {min(wrong)}" if wrong else ""

    def _demand_unchanged(self) -> None:
        if said := self._overrun() or self._written_to():
            raise JobFailed(FailureKind.WRONG_RESULT, said)
        if changed := self.problem.changed():
            raise JobFailed(FailureKind.WRONG_RESULT, f"writes to memory that is not its own: {changed} changed", sticky=True)


class Vendor:
    """The family's baseline on the timed inputs, called in one of its forms."""

    def __init__(self, problem: Problem, form: Form | None):
        self.problem, self.form = problem, form
        inputs = problem.inputs[TIMED]
        self.inputs = form.pack(inputs) if form else inputs
        self.slots: list[tuple[tuple[Tensor, ...], Tensor]] = [(self.inputs, problem.output())]
        self.poison = Poison()
        self.right: Tensor | None = None

    @property
    def calls(self) -> list[Callable[[], object]]:
        call: Any = self.form.call if self.form else self.problem.family.baseline
        return [partial(call, inputs, out) for inputs, out in self.slots]

    def widen(self, batch: int) -> None:
        size = sum(t.numel() * t.element_size() for t in (*self.inputs, self.slots[0][1]))
        for _ in range(len(self.slots), min(batch, max(1, SLOT_BYTES // max(1, size)))):
            self.slots.append((tuple(t.clone() for t in self.inputs), self.problem.output()))

    def prepare(self) -> None:
        for _, out in self.slots:
            self.poison.spoil(out, self.right)

    def verify(self) -> None:
        """As much work between its calls as between a kernel's."""
        for _, out in self.slots:
            if self.right is None:
                self.right = out.clone()
            same(bits(out), bits(self.right))

    def checks_before(self) -> list[Check]:
        return []

    def checks_after(self) -> list[Check]:
        return []


Subject = Kernel | Vendor
