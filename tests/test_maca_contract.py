"""What the runner asks of the MACA port of TileLang, and what it makes of the answer, with a stub in the port's place.

Nothing here is evidence of a C500. The stub's source and product are its own, so what is proven is the runner's half:
from a variant to the call of `tilelang.compile`, and from a kernel's source and output to the record and its verdicts.
It ends where a card begins: `measure_without_a_card` says what is put in a card's place.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.family import load_family
from runner.artifacts import load_kernel
from runner.build import BuildJob, build
from runner.executors.base import build_child, measure_child
from runner.gate import judge
from runner.jobs.measure import measure
from runner.jobs.requests import BenchJob
from runner.process.child import Child
from runner.records import Acceptance, Artifact, Device, Measurement, Ruling, Variant
from tests import command
from tests.command import ROOT, ok
from tests.workbench import PROTOCOL, variant

SHAPE = {"M": 256, "N": 256, "K": 512}
ARTICLE = {
    "block_M": 128,
    "block_N": 128,
    "block_K": 64,
    "num_stages": 1,
    "threads": 512,
    "b_interleave": 4,
    "a_coalesced_width": 4,
    "c_staging": "shared",
    "c_swizzle_bytes": 256,
    "c_coalesced_width": 4,
    "panel_size": 2,
    "pass.tl.enable_lower_ldgstg": True,
}
"""The C500 article's last config."""

C500 = Device("maca", "MetaX C500", 1, "node", "GPU-b", {"float16": 239.6})


def of(**config: Any) -> Variant:
    return variant("gemm", SHAPE, "float16", "maca", **{**ARTICLE, **config})


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """Puts the stub first on the path of children, on a node like MetaX's; returns what was asked of it, in order."""
    record = tmp_path / "calls"
    record.touch()
    bin = tmp_path / "bin"
    bin.mkdir()
    for tool in ("nvcc", "mx-smi"):
        (bin / tool).write_text("#!/bin/sh\necho 'dev, die, hottemp, power, xcoreclk, mcclk\n1, 0, 45, 159, 1125, 1800'\n")
        (bin / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(bin), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_HOME", "/opt/maca/tools/cu-bridge")
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")  # as the port's own benchmarks have it
    monkeypatch.setenv("STUB_TILELANG_CALLS", str(record))
    monkeypatch.syspath_prepend(Path(__file__).parent / "stub_tilelang")
    return lambda: [json.loads(line) for line in record.read_text().splitlines()]


@pytest.fixture
def builder(calls: object) -> Iterator[Child]:
    child = build_child()
    yield child
    child.close()


@pytest.fixture
def measurer(calls: object) -> Iterator[Child]:
    child = measure_child(C500)
    yield child
    child.close()


def built(child: Child, variant: Variant) -> Artifact:
    return child.run(build, BuildJob(variant), deadline=60)


class TestBuild:
    def test_what_is_asked_of_the_compiler(self, builder: Child, calls: Callable[[], list[dict[str, Any]]]) -> None:
        built(builder, of(**{"env.TILELANG_MACA_GEMM_K_PACK": 2, "env.TILELANG_MACA_GEMM_SHARED_LAYOUT": "quarter"}))
        (call,) = calls()
        assert call["asked"] == {
            "target": "maca",
            "execution_backend": "tvm_ffi",
            "pass_configs": {"tl.enable_lower_ldgstg": True},
        }
        seen = call["env"]
        assert seen["TILELANG_MACA_GEMM_K_PACK"] == "2" and seen["TILELANG_MACA_GEMM_SHARED_LAYOUT"] == "quarter"
        assert seen["TILELANG_TARGET"] == "maca", "for what asks for a target beside `compile`"
        assert seen["TILELANG_DISABLE_CACHE"] == "0", "an artifact is a cache entry"
        assert seen["CUDA_VISIBLE_DEVICES"] == seen["MACA_VISIBLE_DEVICES"] == "", "a build sees no card"

    def test_a_config_without_settings_has_none(self, builder: Child, calls: Callable[[], list[dict[str, Any]]]) -> None:
        plain = {k: v for k, v in of().config.items() if not k.startswith("pass.")}
        built(builder, variant("gemm", SHAPE, "float16", "maca", **plain))
        (call,) = calls()
        assert call["asked"]["pass_configs"] is None
        assert not any(name.startswith("TILELANG_MACA_") for name in call["env"])

    def test_each_build_has_a_cache_of_its_own(self, builder: Child, calls: Callable[[], list[dict[str, Any]]]) -> None:
        """Also the variants of one warm process that differ in an environment variable alone, which no key knows of."""
        knobs = [{}, {"env.TILELANG_MACA_GEMM_K_PACK": 2}, {}]
        artifacts = [built(builder, of(**knob)) for knob in knobs]
        asked = calls()
        assert [call["found"] for call in asked] == ["", "", ""], "each was built, none taken for another"
        assert len({call["cache"] for call in asked}) == 3 and not any(Path(call["cache"]).exists() for call in asked)
        assert [artifact.mma_count for artifact in artifacts] == [1, 2, 1]
        assert [call["env"].get("TILELANG_MACA_GEMM_K_PACK") for call in asked] == [None, "2", None]
        assert artifacts[0].source_hash == artifacts[2].source_hash != artifacts[1].source_hash

    def test_what_the_source_shows_is_in_the_artifact(self, builder: Child) -> None:
        packed, plain = built(builder, of()), built(builder, of(b_interleave=1))
        assert packed.source.count("__builtin_mxc_mma_16x16x16f16") == 4, "in two comments and a string too"
        assert (packed.mma_count, packed.mma_instruction) == (1, "__builtin_mxc_mma_16x16x16f16")
        assert packed.evidence == {"launch_bounds": "512, 1", "reads_A": "1 x uint2", "reads_B": "1 x uint2", "async_copies": 0}
        assert plain.evidence["reads_B"] == "1 x scalar"


class TestProgram:
    """What the family asks `tilelang.language` for: the article's own steps."""

    def program(self, builder: Child, calls: Callable[[], list[dict[str, Any]]], **config: Any) -> list[str]:
        built(builder, of(**config))
        steps: list[str] = calls()[-1]["program"]
        return steps

    def test_of_the_article(self, builder: Child, calls: Callable[[], list[dict[str, Any]]]) -> None:
        assert self.program(builder, calls) == [
            "gemm(A=float16[256, 512], B=float16[128, 256, 4], C=float16[256, 256])",
            "Kernel(2, 2, threads=512)",
            "use_swizzle(2, order=column, enable=True)",
            "fragment0 = float32[128, 128]",
            "shared0 = float16[128, 64]",
            "shared1 = float16[64, 128]",
            "annotate_layout({shared1: Layout([64, 128], (k, n) -> ((k // 4), n, (k % 4)))})",
            "clear(fragment0)",
            "Pipelined(8, num_stages=1)",
            "copy(A[(by * 128), (0 + (k * 64))], shared0, coalesced_width=4, annotations={})",
            "Parallel(16, 128)",
            "vectorized(4)",
            "shared1[((i * 4) + v), j] = B[(((0 + (k * 64)) // 4) + i), ((bx * 128) + j), v]",
            "gemm(shared0, shared1, fragment0, policy=Square)",
            "shared2 = float16[128, 128]",
            "annotate_layout({shared2: Layout([128, 128], (m, n) -> (m, ((((n // 8) ^ (m % 16)) * 8) + (n % 8))))})",
            "copy(fragment0, shared2)",
            "copy(shared2, C[(by * 128), (bx * 128)], coalesced_width=4, annotations={})",
        ]

    def test_unpacked(self, builder: Child, calls: Callable[[], list[dict[str, Any]]]) -> None:
        steps = self.program(builder, calls, b_interleave=1, num_stages=2, panel_size=0, c_swizzle_bytes=0, c_staging="direct")
        assert steps[0] == "gemm(A=float16[256, 512], B=float16[512, 256], C=float16[256, 256])"
        assert "use_swizzle(1, order=column, enable=False)" in steps and "Pipelined(8, num_stages=2)" in steps
        assert "copy(B[(0 + (k * 64)), (bx * 128)], shared1, annotations={})" in steps
        assert steps[-1] == "copy(fragment0, C[(by * 128), (bx * 128)], coalesced_width=4, annotations={})"
        assert not [step for step in steps if step.startswith(("annotate_layout", "vectorized"))]


@pytest.mark.parametrize("line", re.findall(r"^sweep (?:plan|submit) (.+)$", (ROOT / "docs/c500.md").read_text(), re.MULTILINE))
def test_what_the_check_list_asks_for_can_be_planned(tmp_path: Path, line: str) -> None:
    """Whoever has a card for ten minutes must not lose them to a line that this project got wrong."""
    file, *settings = line.split()
    said = ok(command.run("sweep", "plan", str(ROOT / file), "--target", "maca", *settings, folder=tmp_path))
    assert re.search(r"^[58] to measure, 0 known, 0 pruned$", said, re.MULTILINE)


def measure_without_a_card(job: BenchJob) -> Measurement:
    """As on a card but for what needs one: memory, events and synchronisation are the CPU's."""
    from runner.targets.cpu import CPU
    from runner.targets.maca import MACA

    for name in ("torch_device", "prepare", "time", "cache_clearer", "synchronize", "settle_seconds", "shortest_ms"):
        setattr(MACA, name, getattr(CPU, name))
    return measure(job)


def load_and_say(variant: Variant, artifact: Artifact) -> str:
    return str(load_kernel(variant, artifact).get_kernel_source())


class TestMeasure:
    @pytest.mark.parametrize("config", [{}, {"b_interleave": 1}, {"env.TILELANG_MACA_GEMM_K_PACK": 2}])
    def test_an_artifact_is_measured_without_compiling(
        self, builder: Child, measurer: Child, calls: Callable[[], list[dict[str, Any]]], config: dict[str, Any]
    ) -> None:
        variant = of(**config)
        artifact = built(builder, variant)
        measured = measurer.run(measure_without_a_card, BenchJob(variant, artifact, C500, PROTOCOL), deadline=120)
        build_call, load_call = calls()
        assert load_call["found"] == "on disk" and load_call["cache"] != build_call["cache"]
        assert {k: load_call[k] for k in ("asked", "program")} == {k: build_call[k] for k in ("asked", "program")}
        assert load_call["env"]["CUDA_VISIBLE_DEVICES"] == load_call["env"]["MACA_VISIBLE_DEVICES"] == "1"
        assert len(measured.samples_ms) == PROTOCOL.repeat and len(measured.checks) == 5
        assert measured.state == {"clock_mhz": 1125.0, "memory_clock_mhz": 1800.0, "power_w": 159.0, "temperature_c": 45.0}

    def test_the_gate_sees_the_matrix_instruction(self, builder: Child, measurer: Child) -> None:
        artifact = built(builder, of())
        measured = measurer.run(measure_without_a_card, BenchJob(of(), artifact, C500, PROTOCOL), deadline=120)
        flops = load_family("gemm").flops(of().workload)
        verdicts = judge(of(), artifact, measured, None, Acceptance(max_abs_error=0.5), flops, None)
        ruled = {verdict.rule: verdict for verdict in verdicts}
        assert ruled["mma"].ruling is Ruling.PASS
        assert ruled["mma"].evidence == (
            "1 x __builtin_mxc_mma_16x16x16f16 in the generated source (text only: no disassembler where it was built)"
        )
        assert ruled["correct"].ruling is ruled["plausible"].ruling is Ruling.PASS

    def test_what_another_build_made_is_not_compiled_anew(self, builder: Child, measurer: Child) -> None:
        """An artifact that TileLang does not recognise is a failure that says so."""
        artifact = built(builder, of())
        with pytest.raises(Exception, match="TileLang did not recognise the built kernel"):
            measurer.run(load_and_say, of(block_N=64), artifact, deadline=60)
        assert measurer.run(load_and_say, of(), artifact, deadline=60) == artifact.source
