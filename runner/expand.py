"""A sweep's question -> its variants, each with a stable id. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.errors import SpecError
from runner.expression import parse
from runner.knobs import Config
from runner.records import ENV_PREFIX, PASS_PREFIX, Target, Value, Variant
from runner.spec import SweepSpec

if TYPE_CHECKING:
    from kernels.family import Family

MAX_VARIANTS = 100_000


@dataclass(frozen=True)
class Expansion:
    """The variants of a sweep, the base first, then in the file's order; no id twice.

    `dropped` says by id why a `where` is not met. Those variants are among `variants`, since what became of them
    is part of the sweep's record.
    """

    variants: tuple[Variant, ...]
    base: Variant
    dropped: Mapping[str, str]


def expand(spec: SweepSpec, family: Family, target: Target, code: str, toolchain: Mapping[str, str]) -> Expansion:
    """All variants of a sweep on a target. Raises SpecError where there would be more than `MAX_VARIANTS`.

    `code` is the hash of the family's source, `toolchain` the versions that shape what is generated.
    """
    count = 1 + _count(spec)
    if count > MAX_VARIANTS:
        raise SpecError(f"asks for {count} variants: sweep fewer knobs or values ({MAX_VARIANTS} at most)", spec.file)
    conditions = [parse(text, {*(knob.name for knob in family.knobs), *family.dims}) for text in spec.where]
    variants: dict[str, Variant] = {}
    dropped: dict[str, str] = {}
    for config in itertools.chain([spec.base], _configs(spec)):
        variant = Variant(spec.workload, _canonical(config), target, code, toolchain, spec.protocol.key)
        if variant.id in variants:
            continue
        variants[variant.id] = variant
        reasons = (condition.unmet({**config, **spec.workload.shape}) for condition in conditions)
        if reason := next(filter(None, reasons), None):
            dropped[variant.id] = reason
    return Expansion(tuple(variants.values()), next(iter(variants.values())), dropped)


def _count(spec: SweepSpec) -> int:
    """How many configs `_configs` yields, without yielding them."""
    if spec.strategy == "list":
        return len(spec.listed)
    sizes = [len(values) for values in spec.sweep.values()]
    return math.prod(sizes) if spec.strategy == "grid" else sum(sizes)


def _configs(spec: SweepSpec) -> Iterator[Config]:
    if spec.strategy == "list":
        yield from ({**spec.base, **config} for config in spec.listed)
    elif spec.strategy == "one_at_a_time":
        yield from ({**spec.base, knob: value} for knob, values in spec.sweep.items() for value in values)
    else:
        for values in itertools.product(*spec.sweep.values()):
            yield {**spec.base, **dict(zip(spec.sweep, values))}


def _canonical(config: Mapping[str, Value]) -> Config:
    """Without the pass configs and environment variables that are null: not set is the same as not there."""
    return {key: value for key, value in config.items() if value is not None or not key.startswith((PASS_PREFIX, ENV_PREFIX))}
