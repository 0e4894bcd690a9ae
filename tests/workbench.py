"""Builds and measures single variants as a sweep does: in warm children, on this machine's CPU."""

from __future__ import annotations

from typing import Any

from kernels.family import defaults, load_family
from kernels.sources import code_hash
from runner.build import BuildJob
from runner.executors.base import Done
from runner.executors.inline import InlineExecutor
from runner.jobs.requests import BenchJob, PairJob
from runner.records import Artifact, Device, Protocol, TargetKind, Value, Variant, Workload
from runner.targets.base import backend

PROTOCOL = Protocol(warmup=2, repeat=5)
PAIRS = 20


def variant(
    family_name: str,
    shape: dict[str, int],
    dtype: str = "float32",
    kind: TargetKind = "cpu",
    arch: str | None = None,
    **config: Value,
) -> Variant:
    """A variant whose knobs are the family's defaults but for those given."""
    family = load_family(family_name)
    settings = {**defaults(family.knobs, kind), **config}
    workload = Workload(family_name, shape, dtype)
    return Variant(workload, settings, backend(kind).target(arch), code_hash(family_name), {"tilelang": "any"}, PROTOCOL.key)


class Workbench:
    def __init__(self) -> None:
        self.executor = InlineExecutor()
        self.device: Device = backend("cpu").devices()[0]
        self._built: dict[str, Artifact] = {}

    def do(self, job: Any, deadline: float = 120.0) -> Done:
        self.executor.submit(job, deadline)
        return self.executor.next()

    def build(self, variant: Variant) -> Artifact:
        if variant.id not in self._built:
            done = self.do(BuildJob(variant))
            assert done.failure is None, f"{done.failure}\n{done.output}"
            self._built[variant.id] = done.value
        return self._built[variant.id]

    def bench(self, variant: Variant, artifact: Artifact | None = None, deadline: float = 120.0) -> Done:
        """Measures a variant from the artifact given, or from its own."""
        return self.do(BenchJob(variant, artifact or self.build(variant), self.device, PROTOCOL), deadline)

    def pair(self, candidate: Variant, reference: Variant, session: str = "") -> Done:
        built = (candidate, self.build(candidate), reference, self.build(reference))
        return self.do(PairJob(*built, self.device, PROTOCOL, pairs=PAIRS, session=session))

    def close(self) -> None:
        self.executor.close()
