"""gemm computes the product on every target: run on the CPU, generated for GPUs, and documented knob by knob."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.family import Knob, load_family
from kernels.gemm import GEMM, K_PACK
from kernels.layouts import interleave_k, swizzle
from kernels.optional import Workspace
from runner.artifacts import load_kernel
from runner.build import BuildJob
from runner.expand import expand
from runner.jobs.requests import BenchJob
from runner.prune import prune
from runner.records import Limits, Measurement, Target, Variant, Workload
from runner.spec import load_spec
from runner.targets.base import backend
from runner.targets.source import evidence
from tests.workbench import PROTOCOL, Workbench, variant

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = sorted((ROOT / "sweeps").glob("*.yaml"))
H200 = Limits(1024, 232_448, 32, ("float16", "float32"))
C500 = Limits(1024, 65_536, 64, ("float16", "float32"))
LAPTOP = Limits(None, 4 << 20, None, ("float16", "float32"))
LIMITS = {"cuda": H200, "maca": C500, "cpu": LAPTOP}


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench()
    yield bench
    bench.close()


def gemm(m: int, n: int, k: int, dtype: str = "float32", **config: Any) -> Variant:
    blocks = {"block_M": 32, "block_N": 32, "block_K": 32}
    return variant("gemm", {"M": m, "N": n, "K": k}, dtype, **{**blocks, **config})


class TestOnTheCPU:
    @pytest.mark.parametrize(
        "shape, dtype, config",
        [
            ((64, 96, 128), "float32", {}),
            ((64, 96, 128), "float16", {}),
            ((100, 72, 88), "float32", {}),  # no dimension is a multiple of its block
            ((100, 72, 88), "float16", {}),
            ((5, 3, 7), "float32", {}),  # smaller than one block
            ((1, 1, 1), "float32", {}),
            ((40, 40, 40), "float32", {"block_M": 24, "block_N": 7, "block_K": 9}),  # odd blocks
            *(((50, 36, 80), "float32", {"b_interleave": width}) for width in (2, 4, 8, 16)),
            ((50, 36, 80), "float16", {"b_interleave": 8}),
        ],
    )
    def test_is_the_product(self, bench: Workbench, shape: tuple[int, int, int], dtype: str, config: dict[str, Any]) -> None:
        done = bench.bench(gemm(*shape, dtype, **config))
        assert done.failure is None, f"{done.failure}\n{done.output}"
        measured: Measurement = done.value
        # One rounding to the output's dtype, and float32 sums in another order.
        assert measured.max_abs_error <= {"float32": 1e-4, "float16": 2e-2}[dtype]

    def test_whoever_gets_an_artifact_need_not_import_tilelang_for_it(self, bench: Workbench) -> None:
        """TileLang's strings are of its own type, and Ray's driver would import TileLang, and torch, to unpickle one."""
        assert type(bench.build(gemm(16, 16, 16)).source) is str

    def test_what_is_packed_is_what_is_multiplied(self, bench: Workbench) -> None:
        """Against a product in float64, with matrices that no two layouts would agree on."""
        of = gemm(20, 24, 32, b_interleave=4)
        kernel = load_kernel(of, bench.build(of))
        a, b = torch.arange(20 * 32.0).reshape(20, 32) / 64, torch.arange(32 * 24.0).reshape(32, 24) / 64
        c = torch.full((20, 24), float("nan"))
        kernel(*GEMM.pack((a, b), of.config), c)
        assert torch.allclose(c.double(), a.double() @ b.double(), rtol=1e-6)


class TestPacking:
    @pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
    def test_puts_neighbours_in_k_side_by_side(self, width: int) -> None:
        b = torch.arange(32 * 6).reshape(32, 6)
        packed = interleave_k(b, width)
        assert packed.shape == (32 // width, 6, width) and packed.is_contiguous()
        assert all(packed[k // width, n, k % width] == b[k, n] for k in range(32) for n in range(6))
        assert torch.equal(packed.permute(0, 2, 1).reshape(32, 6), b)

    def test_refuses_a_k_that_it_does_not_divide(self) -> None:
        with pytest.raises(ValueError, match="K=30 is not divisible"):
            interleave_k(torch.zeros(30, 4), 4)

    def test_leaves_a_alone_and_b_where_nothing_is_interleaved(self) -> None:
        a, b = torch.zeros(4, 4), torch.zeros(4, 4)
        assert GEMM.pack((a, b), {"b_interleave": 1}) == (a, b)
        assert GEMM.pack((a, b), {"b_interleave": 2})[0] is a


class TestWorkspace:
    def test_of_a_kernel_that_multiplies_all_of_k_at_once_is_none(self) -> None:
        assert GEMM.workspace(Workload("gemm", {"M": 4, "N": 6, "K": 8}, "float16"), {"split_k": 1}) == ()

    def test_parts_of_k_get_a_buffer_of_their_own(self) -> None:
        workload = Workload("gemm", {"M": 4, "N": 6, "K": 8}, "float16")
        assert GEMM.workspace(workload, {"b_interleave": 1, "split_k": 4}) == (Workspace((4, 4, 6), "float32"),)

    def test_and_a_counter_for_each_tile_where_its_last_block_sums_them(self) -> None:
        config = {"b_interleave": 1, "split_k": 4, "split_k_sum": "last_block", "block_M": 16, "block_N": 32}
        workload = Workload("gemm", {"M": 40, "N": 64, "K": 8}, "float16")
        assert GEMM.workspace(workload, config)[1] == Workspace((3, 2), "int32", returns_to_zero=True)


class TestSwizzle:
    @pytest.mark.parametrize("itemsize", [2, 4])
    @pytest.mark.parametrize("period", [32, 64, 128, 256])
    def test_moves_whole_vectors_within_a_row_and_loses_none(self, itemsize: int, period: int) -> None:
        columns, vector = 256 // itemsize, 16 // itemsize
        for row in range(40):
            places = [swizzle(row, column, itemsize, period) for column in range(columns)]
            assert sorted(places) == [(row, column) for column in range(columns)]
            assert all(place[1] % vector == column % vector for column, place in enumerate(places))
            assert all(place[1] * itemsize // period == column * itemsize // period for column, place in enumerate(places))

    def test_spreads_a_column_over_the_groups_of_banks(self) -> None:
        assert len({swizzle(row, 0, 2, 256)[1] for row in range(16)}) == 16
        assert len({swizzle(row, 0, 2, 64)[1] for row in range(16)}) == 4


WRITTEN_OUT: Mapping[str, Any] = {"schedule": "cooperative", "warp_policy": "FullRow", "num_stages": 2}


class TestUnfit:
    @pytest.mark.parametrize(
        "kind, config, reason",
        [
            ("cuda", {"b_interleave": 16, "block_K": 40}, "block_K=40 is not divisible by b_interleave=16"),
            ("cpu", {"b_interleave": 16, "block_K": 40}, "block_K=40 is not divisible by b_interleave=16"),
            ("cuda", {"block_M": 100}, "100x128x64 is not in units of the matrix instruction"),
            ("maca", {"block_K": 24}, "not in units of the matrix instruction"),
            ("cuda", {"block_M": 16, "block_N": 16, "threads": 128}, "128 threads are more warps than a 16x16 block"),
            (
                "cuda",
                {"block_M": 256, "block_N": 256, "block_K": 128, "num_stages": 2},
                "needs 262,144 bytes, the limit is 232,448",
            ),
            ("maca", {"num_stages": 3}, "needs 98,304 bytes, the limit is 65,536"),
            ("cpu", {"block_M": 1024, "block_N": 1024}, "stack for the tiles needs"),
            ("maca", {"block_M": 256, "block_N": 256, "c_staging": "shared"}, "shared memory for C needs 131,072 bytes"),
            ("cuda", {"c_swizzle_bytes": 256}, "c_swizzle_bytes=256 swizzles the staged C tile, and c_staging is direct"),
            ("maca", {"c_staging": "shared", "c_swizzle_bytes": 512}, "more than a row of the staged C tile, 256 bytes"),
            ("cuda", {"c_staging": "shared", "block_N": 192, "c_swizzle_bytes": 256}, "384 bytes, is not divisible by c_swizzle"),
            ("cuda", {"c_staging": "shared_n64", "block_N": 96}, "not divisible in slices of c_staging=shared_n64"),
            ("cuda", {"split_k": 3}, "64 steps along K are not divisible by split_k=3"),
            ("cuda", {"split_k": 2, "persistent_blocks": 132}, "two ways to share the work"),
            ("cuda", {"split_k": 2, "c_staging": "shared"}, "c_staging has nothing to do"),
            ("cuda", {"cluster_M": 2}, "clusters need a schedule that is written out"),
            ("cuda", {"c_buffers": 2, "c_staging": "shared_n64"}, "c_buffers needs a schedule that is written out"),
            ("cuda", {**WRITTEN_OUT, "c_buffers": 2, "c_staging": "shared_n128"}, "a warp group has 1 slices of C"),
            ("cuda", {**WRITTEN_OUT, "c_staging": "shared", "c_swizzle_bytes": 64}, "has no use for c_swizzle_bytes"),
            ("cuda", {"tail_N": 64, "persistent_blocks": 132}, "tail_N needs schedule=cooperative"),
            ("cuda", {**WRITTEN_OUT, "tail_N": 64}, "there is one block for each tile"),
            ("cuda", {**WRITTEN_OUT, "tail_N": 64, "persistent_blocks": 128}, "the last turn, and it is full"),
            (
                "cuda",
                {**WRITTEN_OUT, "tail_N": 64, "persistent_blocks": 132},
                "makes 200 pieces of the last turn, for 132 workers",
            ),
            ("cuda", {**WRITTEN_OUT, "threads": 128}, "multiplies with 256 or 384 threads, not with 128"),
            ("cuda", {**WRITTEN_OUT, "schedule": "pingpong", "threads": 384}, "multiplies with 256 threads, not with 384"),
            ("cuda", {**WRITTEN_OUT, "block_M": 192}, "64 rows at a time, and schedule=cooperative gives it 96"),
            ("cuda", {**WRITTEN_OUT, "cluster_M": 2, "cluster_N": 2}, "two ways to share what is loaded"),
            ("cuda", {**WRITTEN_OUT, "persistent_blocks": 131, "cluster_N": 2}, "not divisible in clusters of 2"),
            ("cuda", {**WRITTEN_OUT, "b_interleave": 4, "tma": False}, "has no use for b_interleave, tma: false"),
            ("maca", {K_PACK: 8}, "block_K=64 is not divisible by 16 times the port's k_pack=8"),
        ],
    )
    def test_says_why_a_config_cannot_run(self, kind: Any, config: dict[str, Any], reason: str) -> None:
        of = variant("gemm", {"M": 4096, "N": 4096, "K": 4096}, "float16", kind, "sm_90a" if kind == "cuda" else None, **config)
        said = GEMM.unfit(of.workload, of.config, of.target, LIMITS[kind])
        assert said is not None and reason in said

    def test_a_schedule_for_hopper_on_another_card(self) -> None:
        of = variant("gemm", {"M": 4096, "N": 4096, "K": 4096}, "float16", "cuda", "sm_80", **WRITTEN_OUT)
        assert "is for Hopper, and the target is sm_80" in str(GEMM.unfit(of.workload, of.config, of.target, LIMITS["cuda"]))

    @pytest.mark.parametrize("kind", ["cuda", "cpu"])
    def test_a_matrix_beyond_32_bit_indices(self, kind: Any) -> None:
        of = variant("gemm", {"M": 1 << 20, "N": 4096, "K": 64}, "float32", kind, "sm_90a" if kind == "cuda" else None)
        said = GEMM.unfit(of.workload, of.config, of.target, LIMITS[kind])
        assert said == "C has 4,294,967,296 elements, above the 2,147,483,647 of a 32-bit index"

    def test_a_k_that_cannot_be_packed(self) -> None:
        of = variant("gemm", {"M": 64, "N": 64, "K": 100}, kind="cpu", b_interleave=8)
        assert (
            GEMM.unfit(of.workload, of.config, of.target, LAPTOP)
            == "K=100 is not divisible by b_interleave=8, so B cannot be packed"
        )

    @pytest.mark.parametrize("kind", ["cuda", "maca", "cpu"])
    def test_has_nothing_against_the_defaults(self, kind: Any) -> None:
        of = variant("gemm", {"M": 1000, "N": 1000, "K": 1000}, "float16", kind, "sm_90a" if kind == "cuda" else None)
        assert GEMM.unfit(of.workload, of.config, of.target, LIMITS[kind]) is None

    def test_what_exactly_fits_is_kept(self) -> None:
        of = variant("gemm", {"M": 256, "N": 256, "K": 256}, "float16", "maca", None, num_stages=2)  # 2 x (128 + 128) x 64 halves
        assert GEMM.unfit(of.workload, of.config, of.target, C500) is None


def configs_of(path: Path, arch: str) -> list[Variant]:
    """What a sweep file would build for a CUDA architecture, each config once."""
    spec = load_spec(path, lambda asked: "cuda", load_family)
    family, target = load_family(spec.family), Target("cuda", arch)
    expansion = expand(spec, family, target, "code", {})
    pruned = prune(expansion, family, backend("cuda").limits(target))
    return [v for v in expansion.variants if v.id not in pruned]


def every_value(arch: str) -> list[Variant]:
    """Configs of the sweep files in which every value of every knob in them occurs, and few beyond."""
    chosen, seen = list[Variant](), set[tuple[str, Any]]()
    for path in SWEEPS:
        for of in configs_of(path, arch):
            new = {(name, repr(value)) for name, value in of.config.items() if name in SHAPING} - seen
            if new:
                chosen.append(of)
                seen |= new
    return chosen


SHAPING = (
    "c_staging",
    "c_buffers",
    "c_swizzle_bytes",
    "warp_policy",
    "tma",
    "persistent_blocks",
    "tail_N",
    "schedule",
    "cluster_M",
    "cluster_N",
    "split_k",
    "split_k_sum",
)
"""Knobs that change what TileLang makes of a program, beyond numbers in it."""

LAYOUT_FAILS = {"shared_m32"}
"""Values for which TileLang finds no layout on Hopper: the compiler says so, and a sweep goes on."""


class TestForGPUs:
    """Generating CUDA needs neither a GPU nor nvcc, and proves what `mma: required` will be told."""

    @pytest.mark.parametrize("of", every_value("sm_90a"), ids=lambda of: of.id)
    def test_every_value_in_a_sweep_file_feeds_the_matrix_instruction(self, of: Variant) -> None:
        if of.config["c_staging"] in LAYOUT_FAILS:
            with pytest.raises(Exception, match="not injective"):
                source_of(of)
            return
        count, name = backend("cuda").mma(source_of(of)) or (0, "")
        assert count >= 1 and name.startswith("wgmma"), of.label()

    @pytest.mark.parametrize("of", configs_of(ROOT / "sweeps/interleave.yaml", "sm_80"), ids=lambda of: of.id)
    def test_cards_before_hopper_get_their_own_instruction(self, of: Variant) -> None:
        count, name = backend("cuda").mma(source_of(of)) or (0, "")
        assert count >= 1 and name.startswith("mma_sync"), of.label()

    def test_maca_gets_a_program_for_every_packing(self) -> None:
        for width in (1, 2, 4, 8, 16):
            of = variant("gemm", {"M": 256, "N": 256, "K": 256}, "float16", "maca", b_interleave=width)
            assert GEMM.program(of.workload, of.config, of.target) is not None

    def test_float32_is_generated_too(self) -> None:
        of = variant("gemm", {"M": 256, "N": 256, "K": 256}, "float32", "cuda", "sm_80")
        assert (backend("cuda").mma(source_of(of)) or (0, ""))[0] >= 1

    def test_loads_of_a_are_as_wide_as_asked(self) -> None:
        for width, said in ((2, "cp_async 4 B"), (4, "cp_async 8 B"), (8, "cp_async 16 B")):
            of = variant(
                "gemm", {"M": 256, "N": 256, "K": 256}, "float16", "cuda", "sm_80", a_coalesced_width=width, num_stages=2
            )
            assert said in str(evidence(source_of(of))["reads_A"])

    def test_what_a_cluster_has_in_common_is_loaded_once_for_all(self) -> None:
        def loads(**clusters: int) -> dict[str, bool]:
            shape = {"M": 1000, "N": 1024, "K": 512}
            source = source_of(variant("gemm", shape, "float16", "cuda", "sm_90a", **WRITTEN_OUT, **clusters))
            return {matrix: f"tma_load_multicast({matrix}_desc" in source for matrix in "AB"}

        assert loads(cluster_M=2) == {"A": False, "B": True}
        assert loads(cluster_N=2) == {"A": True, "B": False}
        assert loads() == {"A": False, "B": False}

    @pytest.mark.parametrize("config", [{}, {"schedule": "pingpong"}], ids=str)
    def test_a_second_buffer_lets_a_store_go_on_while_the_next_slice_is_written(self, config: dict[str, Any]) -> None:
        def waits(buffers: int) -> set[str]:
            staged = {"c_staging": "shared_n32", "c_buffers": buffers}
            shape = {"M": 1024, "N": 1024, "K": 512}
            of = variant("gemm", shape, "float16", "cuda", "sm_90a", **{**WRITTEN_OUT, **staged, **config})
            return set(re.findall(r"tma_store_wait<(\d), true>", source_of(of)))

        assert waits(1) == {"0"} and waits(2) == {"0", "1"}

    def test_warp_groups_that_share_a_tile_do_not_wait_for_each_other(self) -> None:
        of = variant("gemm", {"M": 1024, "N": 1024, "K": 512}, "float16", "cuda", "sm_90a", **WRITTEN_OUT, c_staging="shared_n64")
        synchronised = re.findall(r"__sync_thread_partial\((\d), (\d+)\)", source_of(of))
        assert {threads for _, threads in synchronised} == {"128"} and len({barrier for barrier, _ in synchronised}) == 2

    def test_the_copy_engine_is_used_unless_it_is_switched_off(self) -> None:
        def source(tma: bool) -> str:
            return source_of(variant("gemm", {"M": 256, "N": 256, "K": 256}, "float16", "cuda", "sm_90a", tma=tma, num_stages=2))

        assert "tma_load" in source(True) and "tma_load" not in source(False)


def source_of(of: Variant) -> str:
    """The CUDA that TileLang generates for a variant. Nothing is compiled."""
    import tilelang
    from tilelang import tvm

    family, target = load_family(of.workload.family), backend("cuda").compile_options(of.target)["target"]
    program = family.program(of.workload, of.config, of.target)
    with tvm.transform.PassContext(opt_level=3, config=of.pass_configs), target:
        return str(tilelang.lower(program, target=target).kernel_source)


def test_every_knob_is_documented_with_its_default_and_its_values() -> None:
    text = (ROOT / "docs/knobs.md").read_text()
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(#[\w-]+\) \| (.+) \|$", text, re.MULTILINE))
    assert list(rows) == [knob.name for knob in GEMM.knobs]
    for knob in GEMM.knobs:
        default, values, *on = (cell.strip() for cell in rows[knob.name].split("|"))
        assert default == documented(knob.default)
        assert values == documented_choices(knob)
        assert {kind for kind, said in zip(("cuda", "maca", "cpu"), on) if said != "`null`"} == set(knob.kinds)
        section = re.search(rf"^## [^\n]*`{knob.name}`[^\n]*\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section and all(f"`{kind}`" in section[1] or "all targets" in section[1] for kind in knob.kinds), knob.name


def documented(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return "`{}`".format({None: "null", True: "true", False: "false"}.get(value, value))


def documented_choices(knob: Knob) -> str:
    if knob.choices is None:
        return "positive integer" if knob.least == 1 else f"integer from {knob.least} on"
    if knob.choices == tuple(range(33)):
        return "0 to 32"
    return ", ".join(map(documented, knob.choices))


@pytest.mark.gpu
@pytest.mark.skipif(not backend("cuda").devices(), reason="no CUDA device here")
@pytest.mark.parametrize(
    "config",
    [
        {"b_interleave": 1},
        {"b_interleave": 4},
        {**WRITTEN_OUT, "c_staging": "shared_n64"},
        {**WRITTEN_OUT, "c_staging": "shared_n64", "cluster_M": 2, "persistent_blocks": 16, "panel_size": 3},
        {**WRITTEN_OUT, "c_staging": "shared", "cluster_N": 2, "persistent_blocks": 16, "num_stages": 4},
        {**WRITTEN_OUT, "c_staging": "shared_n32", "c_buffers": 2, "persistent_blocks": 16, "num_stages": 3},
        {**WRITTEN_OUT, "c_staging": "shared_n64", "cluster_M": 2, "persistent_blocks": 60, "tail_N": 64},
        {**WRITTEN_OUT, "schedule": "pingpong", "c_staging": "shared_n64", "persistent_blocks": 16, "num_stages": 3},
        {"split_k": 4},
        {"split_k": 4, "split_k_sum": "last_block", "num_stages": 2},
    ],
    ids=str,
)
def test_on_a_cuda_device_it_is_built_measured_and_right(config: dict[str, Any]) -> None:
    bench = Workbench()
    device = backend("cuda").devices()[0]
    if "schedule" in config and not backend("cuda").target().arch.startswith("sm_90"):
        pytest.skip("this schedule needs Hopper")
    of = variant("gemm", {"M": 1000, "N": 1024, "K": 512}, "float16", "cuda", **config)
    built = bench.do(BuildJob(of), 300)
    assert built.failure is None, f"{built.failure}\n{built.output}"
    assert built.value.mma_count >= 1
    done = bench.do(BenchJob(of, built.value, device, PROTOCOL), 300)
    bench.close()
    assert done.failure is None, f"{done.failure}\n{done.output}"
    assert done.value.max_abs_error <= 0.25 and min(done.value.samples_ms) > 0
