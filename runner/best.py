"""The accepted kernel of a workload, as a callable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kernels.family import Family, load_family
from kernels.optional import workspace_of
from runner.artifacts import load_kernel
from runner.errors import NotFound
from runner.paths import search_folders
from runner.records import Device, Variant, Workload
from runner.targets.base import BACKENDS, backend
from tracking.registry import Best, Registry
from tracking.store import Store

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class BestKernel:
    """An accepted kernel, loaded. Call it with the operation's own inputs, or pack once and `run` many times.

    >>> best = runner.load_best("gemm", M=512, N=512, K=512, dtype="float32")
    >>> c = best(a, b)                      # packs b, allocates c
    >>> packed = best.pack(a, b)            # static weights: pack once
    >>> best.run(packed, c)
    """

    variant: Variant
    family: Family
    kernel: Any
    run_id: str
    version: int

    def pack(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The inputs as this kernel wants them, and its workspace: what `run` takes again and again."""
        import torch

        packed = self.family.pack(inputs, self.variant.config)
        device, specs = packed[0].device, workspace_of(self.family, self.variant.workload, self.variant.config)
        return (*packed, *(torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=device) for spec in specs))

    def run(self, packed: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Compute into `out` from packed inputs; nothing is allocated."""
        self.kernel(*packed, out)
        return out

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Pack, allocate the output, compute."""
        packed = self.pack(*inputs)
        return self.run(packed, self.family.output(self.variant.workload, str(inputs[0].device)))


def load_best(family: str, *, dtype: str, device: str | None = None, uri: str | None = None, **shape: int) -> BestKernel:
    """Load the accepted kernel of a workload, built when it was measured and not compiled again.

    `family` as in a sweep file, `shape` its dimensions (`M=…, N=…, K=…`). `device` is a device model; None takes the
    first device of this machine whose model has a best. `uri` is the MLflow store, by default what `sweep` uses.
    Raises NotFound where nothing was accepted, RequestError for a family or shape that does not exist.
    """
    found = load_family(family, search_folders())
    if set(shape) != set(found.dims):
        raise NotFound(f"the shape of {family} is {', '.join(found.dims)}; asked for {', '.join(shape) or 'none of them'}")
    workload = Workload(family, {d: shape[d] for d in found.dims}, dtype)
    store = Store(uri)
    best = _best(workload, device, store)
    outcome = best.stored.outcome
    assert outcome.artifact is not None
    artifact = replace(outcome.artifact, blob=store.artifact_blob(best.run_id))
    kernel = load_kernel(outcome.variant, artifact, search_folders())
    return BestKernel(outcome.variant, found, kernel, best.run_id, best.version)


def _best(workload: Workload, model: str | None, store: Store) -> Best:
    registry = Registry(store)
    here: list[Device] = [d for kind in BACKENDS for d in backend(kind).devices()] if model is None else []
    models = [model] if model is not None else list(dict.fromkeys(d.model for d in here))
    for name in models:
        if (best := registry.best(workload, name)) is not None:
            return best
    raise NotFound(f"no accepted kernel for {workload.name} on {' or '.join(models)}: see `runner best`")
