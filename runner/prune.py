"""The variants that certainly cannot run, with the reason for each. Pure: nothing is compiled to find out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.expand import Expansion
from runner.records import Limits, Variant

if TYPE_CHECKING:
    from kernels.family import Family


def prune(expansion: Expansion, family: Family, limits: Limits) -> dict[str, str]:
    """Why each variant that cannot run cannot, by id and in the sweep's order: its `where`, the target's limits, its family."""
    reasons = (
        (v.id, expansion.dropped.get(v.id) or _over_limit(v, limits) or _unfit(v, family, limits)) for v in expansion.variants
    )
    return {variant_id: reason for variant_id, reason in reasons if reason}


def _over_limit(variant: Variant, limits: Limits) -> str | None:
    """What any family's variant may not exceed; the rest only its family can tell."""
    dtype, threads = variant.workload.dtype, variant.config.get("threads")
    if dtype not in limits.dtypes:
        return f"dtype {dtype} is not supported on {variant.target}, which has {', '.join(limits.dtypes)}"
    if limits.max_threads is not None and isinstance(threads, int) and threads > limits.max_threads:
        return f"threads {threads} is above the {limits.max_threads} of a block on {variant.target}"
    return None


def _unfit(variant: Variant, family: Family, limits: Limits) -> str | None:
    return family.unfit(variant.workload, variant.config, variant.target, limits)
