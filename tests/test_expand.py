"""A sweep's variants: which, in what order, and with what ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.errors import SpecError
from runner.expand import Expansion, expand
from runner.records import Protocol, Target, Variant, from_dict
from runner.spec import SweepSpec, load_spec
from tests import families

CUDA = Target("cuda", "sm_90a")
FAMILY = families.FAMILIES["gemm"]
TOOLCHAIN = {"tilelang": "0.1.9", "nvcc": "12.6"}

HEAD = "name: a\nkernel: gemm\nworkload: {M: 64, N: 64, K: 64, dtype: float16}\n"


def spec_of(folder: Path, text: str) -> SweepSpec:
    (folder / "sweep.yaml").write_text(HEAD + text)
    return load_spec(folder / "sweep.yaml", lambda _: "cuda", families.load)


def expansion(folder: Path, text: str) -> Expansion:
    return expand(spec_of(folder, text), FAMILY, CUDA, "c0de", TOOLCHAIN)


def configs(result: Expansion, *knobs: str) -> list[tuple[object, ...]]:
    return [tuple(v.config.get(k) for k in knobs) for v in result.variants]


def test_a_grid_has_the_base_first_and_then_the_file_s_order(tmp_path: Path) -> None:
    result = expansion(tmp_path, "sweep: {block_M: [64, 32], b_interleave: [4, 2]}")
    assert configs(result, "block_M", "b_interleave") == [(128, 1), (64, 4), (64, 2), (32, 4), (32, 2)]
    assert result.base is result.variants[0]
    assert result.dropped == {}


def test_a_base_inside_the_grid_stands_once(tmp_path: Path) -> None:
    result = expansion(tmp_path, "sweep: {b_interleave: [2, 1, 4]}")
    assert configs(result, "b_interleave") == [(1,), (2,), (4,)]


def test_one_at_a_time_changes_one_knob_of_the_base(tmp_path: Path) -> None:
    result = expansion(tmp_path, "strategy: one_at_a_time\nsweep: {block_M: [128, 64], b_interleave: [1, 2, 4]}")
    assert configs(result, "block_M", "b_interleave") == [(128, 1), (64, 1), (128, 2), (128, 4)]


def test_a_list_lays_each_config_over_the_base(tmp_path: Path) -> None:
    result = expansion(
        tmp_path, "base: {block_K: 32}\nstrategy: list\nconfigs: [{block_M: 64}, {threads: 64, b_interleave: 2}, {}]"
    )
    assert configs(result, "block_M", "block_K", "threads", "b_interleave") == [
        (128, 32, 256, 1),
        (64, 32, 256, 1),
        (128, 32, 64, 2),
    ]


def test_no_sweep_is_the_base_alone(tmp_path: Path) -> None:
    assert len(expansion(tmp_path, "").variants) == 1


def test_a_null_pass_config_or_variable_is_the_same_as_none(tmp_path: Path) -> None:
    result = expansion(tmp_path, "sweep: {env.TILELANG_X: [null, 1], pass.tl.y: [true, null]}")
    assert [(v.env, v.pass_configs) for v in result.variants] == [
        ({}, {}),
        ({}, {"tl.y": True}),
        ({"TILELANG_X": "1"}, {"tl.y": True}),
        ({"TILELANG_X": "1"}, {}),
    ]


def test_dropped_variants_stay_with_their_reason(tmp_path: Path) -> None:
    result = expansion(tmp_path, "sweep: {block_K: [8, 48]}\nwhere: [K % block_K == 0, block_K > 8]")
    by_depth = {v.config["block_K"]: result.dropped.get(v.id) for v in result.variants}
    assert by_depth == {64: None, 8: "where: block_K > 8 is false", 48: "where: K % block_K == 0 is false"}


def test_the_base_is_there_even_where_it_is_dropped(tmp_path: Path) -> None:
    result = expansion(tmp_path, "sweep: {block_K: [32]}\nwhere: [block_K < 64]")
    assert result.base.config["block_K"] == 64
    assert result.dropped == {result.base.id: "where: block_K < 64 is false"}


def test_a_sweep_too_large_is_refused_before_it_is_built(tmp_path: Path) -> None:
    lists = ", ".join(f"pass.p{n}: [{', '.join(map(str, range(100)))}]" for n in range(10))
    with pytest.raises(SpecError, match=r"sweep\.yaml: asks for 100000000000000000001 variants: .*100000 at most"):
        expansion(tmp_path, f"sweep: {{{lists}}}")


def test_an_id_does_not_depend_on_the_order_of_keys(tmp_path: Path) -> None:
    one = expansion(tmp_path, "base: {block_M: 32, threads: 64}\nsweep: {block_K: [16], b_interleave: [2]}")
    other = expansion(tmp_path, "base: {threads: 64, block_M: 32}\nsweep: {b_interleave: [2], block_K: [16]}")
    assert [v.id for v in one.variants] == [v.id for v in other.variants]


def test_an_id_is_of_everything_a_measurement_depends_on(tmp_path: Path) -> None:
    """And of nothing else: neither the sweep's name and file, nor where its shape came from."""
    spec = spec_of(tmp_path, "")

    def base(of: SweepSpec = spec, target: Target = CUDA, code: str = "c0de", tools: dict[str, str] = TOOLCHAIN) -> Variant:
        return expand(of, FAMILY, target, code, tools).base

    workload = spec.workload
    changed = [
        base(replace(spec, base={**spec.base, "block_M": 64})),
        base(replace(spec, base={**spec.base, "pass.a": 1})),
        base(replace(spec, base={**spec.base, "pass.a": True})),
        base(replace(spec, protocol=Protocol(repeat=7))),
        base(replace(spec, workload=replace(workload, dtype="float32"))),
        base(replace(spec, workload=replace(workload, shape={**workload.shape, "M": 65}))),
        base(target=Target("cuda", "sm_80")),
        base(target=Target("maca", "sm_90a")),
        base(code="c0df"),
        base(tools={**TOOLCHAIN, "nvcc": "12.8"}),
    ]
    assert len({base().id, *(v.id for v in changed)}) == 1 + len(changed)
    renamed = replace(spec, name="b", question="why", file="b.yaml", workload=replace(workload, origin="moe: …"))
    assert base(renamed).id == base().id


def test_an_id_survives_its_record(tmp_path: Path) -> None:
    from runner.records import to_dict

    base = expansion(tmp_path, "base: {pass.a: 1.5}").base
    assert from_dict(Variant, to_dict(base)).id == base.id
    assert len(base.id) == 12
