"""What is counted in the machine code of a built CUDA kernel: by the real compiler and the real disassembler, without a GPU."""

from __future__ import annotations

import pytest

from runner.build import BuildJob, build
from runner.gate import judge
from runner.records import Acceptance, Artifact, Check, Device, Measurement, Ruling, Value, Variant
from runner.targets import sass
from runner.targets.trips import matrix_flops
from tests.workbench import variant

SHAPE = {"M": 64, "N": 128}


def ruling(of: Variant, artifact: Artifact, flops: float = 1.0) -> tuple[Ruling, str]:
    measurement = Measurement(Device("cuda", "X"), of.protocol, (1.0,), (Check(1, "as timed", 0.0),))
    verdict = next(v for v in judge(of, artifact, measurement, None, Acceptance(), flops, None) if v.rule == "mma")
    return verdict.ruling, verdict.evidence


@pytest.mark.parametrize("decoy", ["called", "launched"])
def test_an_instruction_that_is_named_and_never_launched_does_not_count(decoy: str) -> None:
    of = variant("tests.decoys:DECOY", SHAPE, kind="cuda", arch="sm_90a", decoy=decoy)
    artifact = build(BuildJob(of))
    assert artifact.mma_count == 1, "it stands in the text"
    assert not [name for name in artifact.evidence if name.removeprefix("sass_") in sass.MATRIX]
    assert artifact.evidence["sass_in_loops"] == 0, "the machine code was looked at"
    found, said = ruling(of, artifact)
    assert found is Ruling.FAIL and "machine code" in said


def test_the_instructions_of_a_gemm_are_counted_once_and_are_in_its_loop() -> None:
    tile = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256}
    of = variant("gemm", {"M": 256, "N": 256, "K": 1024}, "float16", "cuda", "sm_90a", **tile)
    artifact = build(BuildJob(of))
    assert artifact.evidence["sass_HGMMA"] == artifact.evidence["sass_in_loops"]
    listing = {name: len(lines) for name, lines in sass.functions(LISTING).items()}
    assert listing == {"gemm_kernel": 3, "other": 1}
    found, said = ruling(of, artifact)
    assert found is Ruling.PASS and f"{artifact.evidence['sass_HGMMA']} x HGMMA" in said


def test_without_a_disassembler_the_record_says_that_only_the_text_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sass, "disassembler", lambda: None)
    of = variant("tests.decoys:DECOY", SHAPE, kind="cuda", arch="sm_90a", decoy="called")
    found, said = ruling(of, build(BuildJob(of)))
    assert found is Ruling.PASS and "text only" in said


@pytest.mark.parametrize("listing, inside", [("nvdisasm", 1), ("cuobjdump", 1)])
def test_an_instruction_is_in_a_loop_where_a_branch_leads_back_before_it(listing: str, inside: int) -> None:
    lines = (LABELS if listing == "nvdisasm" else ADDRESSES).splitlines()
    assert sass.matrix_in_loops(lines) == inside


LISTING = """
\t\tFunction : gemm_kernel
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/                   HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0020*/                   EXIT ;
\t\tFunction : other
        /*0000*/                   EXIT ;
"""

LABELS = """
        /*0000*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], !UPT ;
.L_x_1:
        /*0010*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24 ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
        /*0030*/               @P1 BRA `(.L_x_2) ;
        /*0040*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24 ;
.L_x_2:
        /*0050*/                   EXIT ;
"""

ADDRESSES = LABELS.replace("`(.L_x_1)", "0x10").replace("`(.L_x_2)", "0x50").replace(".L_x_1:\n", "").replace(".L_x_2:\n", "")


TILE = {"block_M": 128, "block_N": 128, "block_K": 64, "num_stages": 3, "threads": 256}
HOPPER = {"schedule": "cooperative", "warp_policy": "FullRow", "c_staging": "shared_n64", "c_buffers": 2, "cluster_N": 2}


@pytest.mark.parametrize(
    "arch, config",
    [
        ("sm_80", TILE),
        ("sm_90a", {**TILE, "split_k": 4}),
        ("sm_90a", {**TILE, **HOPPER, "num_stages": 4, "persistent_blocks": 16}),
    ],
)
def test_by_its_loops_a_gemm_makes_the_workloads_operations_and_no_other_number(arch: str, config: dict[str, Value]) -> None:
    of = variant("gemm", {"M": 1024, "N": 1024, "K": 1024}, "float16", "cuda", arch, **config)
    artifact = build(BuildJob(of))
    assert artifact.evidence["matrix_flops"] == 2 * 1024**3
    found, said = ruling(of, artifact, 2.0 * 1024**3)
    assert found is Ruling.PASS and "by its loops it makes 100.0% of the workload's operations" in said
    found, said = ruling(of, artifact, 4.0 * 1024**3)
    assert found is Ruling.FAIL and "50.0%" in said, "half of them are done otherwise"


def test_trips_that_are_not_written_down_are_not_guessed() -> None:
    kernel = (
        'extern "C" __global__ void __launch_bounds__(128, 1) k(half* A) {{\n'
        "  {loop} {{\n tl::mma_sync<T, T, T, 16, 8, 16>(A);\n }}\n}}"
    )
    launch = "".join(f"v_int64) = ((int64_t){n}); " for n in (4, 128, 1, 1)) + "FunctionCall(k_packed"
    assert matrix_flops(kernel.format(loop="for (int i = 0; i < 10; ++i)"), launch) == 10 * 4 * 4 * 2 * 16 * 8 * 16
    assert matrix_flops(kernel.format(loop="for (int i = 0; i < n; ++i)"), launch) is None
    assert matrix_flops(kernel.format(loop="while (more(A))"), launch) is None
    assert matrix_flops(kernel.format(loop="for (int i = 0; i < 10; ++i)"), "") is None
    assert matrix_flops(kernel.format(loop="if (((int)threadIdx.x) < 32)"), launch) == 4 * 2 * 16 * 8 * 16
