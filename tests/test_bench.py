"""No kernel that computes something else, or nothing, gets a latency; and none is compiled while it is measured."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from runner.bench import SEEDS, compare

from runner import stats
from runner.artifacts import cache_in, load_kernel, pack, unpack
from runner.build import BuildJob, build
from runner.errors import FailureKind, JobFailed
from runner.jobs.requests import BaselineJob
from runner.records import Artifact, Measurement, Paired, Variant, Workload
from tests.workbench import PROTOCOL, Workbench, variant

SHAPE = {"M": 8, "N": 16}
TIMED, OTHER = SEEDS


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench()
    yield bench
    bench.close()


def broken(name: str) -> Variant:
    return variant(f"tests.broken_families:{name}", SHAPE)


@pytest.fixture(scope="module")
def right(bench: Workbench) -> Artifact:
    return bench.build(broken("RIGHT"))


class TestCompare:
    EXPECTED = torch.linspace(-4.0, 4.0, 7 * 5).reshape(7, 5)

    def failure(self, out: torch.Tensor, expected: torch.Tensor = EXPECTED) -> str:
        with pytest.raises(JobFailed) as raised:
            compare(out, expected, 3, "as timed")
        assert raised.value.kind is FailureKind.WRONG_RESULT
        assert raised.value.detail.startswith("as timed, seed 3: ")
        return raised.value.detail

    def test_equal(self) -> None:
        assert compare(self.EXPECTED.clone(), self.EXPECTED, 3, "as timed").max_abs_error == 0.0

    def test_rounding_is_for_the_gate_to_judge(self) -> None:
        out = self.EXPECTED.clone()
        out[2, 3] += 0.03
        assert compare(out, self.EXPECTED, 3, "as timed").max_abs_error == pytest.approx(0.03, rel=1e-4)

    def test_one_element_off_is_named(self) -> None:
        out = self.EXPECTED.clone()
        out[6, 4] += 0.5
        out[2, 3] -= 2.0
        said = self.failure(out)
        assert "off by 2 at [2, 3]" in said
        assert f"got {out[2, 3].item():.6g}, expected {self.EXPECTED[2, 3].item():.6g}" in said

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
    def test_what_is_no_number(self, bad: float) -> None:
        out = self.EXPECTED.clone()
        out[4, 1] = bad
        assert "at [4, 1]" in self.failure(out)

    def test_never_written(self) -> None:
        assert "35 of 35 elements" in self.failure(torch.full_like(self.EXPECTED, float("nan")))

    def test_partly_written(self) -> None:
        out = self.EXPECTED.clone()
        out[5:, 2:] = float("nan")
        said = self.failure(out)
        assert "6 of 35 elements" in said and "first seen at [5, 2]" in said

    def test_zeros_leave_no_room_for_error(self) -> None:
        zeros = torch.zeros(4, 4)
        assert compare(zeros.clone(), zeros, 3, "as timed").max_abs_error == 0.0
        assert "off by 1e-30" in self.failure(zeros + 1e-30, zeros)

    def test_an_overflow_that_both_have_is_no_error(self) -> None:
        expected = self.EXPECTED.clone()
        expected[0, 0] = float("inf")
        assert compare(expected.clone(), expected, 3, "as timed").max_abs_error == 0.0
        out = expected.clone()
        out[1, 1] += 1.0  # not hidden behind the infinity
        assert "off by 1 at [1, 1]" in self.failure(out, expected)

    def test_one_dimension_and_half_precision(self) -> None:
        expected = torch.arange(2048, dtype=torch.float16)
        out = expected.clone()
        out[1999] = 0
        assert "off by 1999 at [1999]" in self.failure(out, expected)


class TestMeasure:
    def test_a_right_kernel(self, bench: Workbench, right: Artifact) -> None:
        done = bench.bench(broken("RIGHT"), right)
        measured: Measurement = done.value
        assert len(measured.samples_ms) == PROTOCOL.repeat and min(measured.samples_ms) > 0
        assert measured.protocol == PROTOCOL.key and measured.device == bench.device
        assert [(c.seed, c.when) for c in measured.checks] == [
            (OTHER, "before timing"),
            (TIMED, "before timing"),
            (TIMED, "as timed"),
            (TIMED, "after timing"),
            (OTHER, "after timing"),
        ]
        assert measured.max_abs_error == 0.0
        assert measured.state["threads"] == 1.0
        assert set(measured.versions) >= {"torch", "tilelang"}
        assert measured.measured_at.endswith("+00:00")

    def test_a_rounding_error_is_measured_and_told(self, bench: Workbench) -> None:
        assert bench.bench(broken("ROUNDING")).value.max_abs_error == pytest.approx(1e-3, rel=1e-3)

    @pytest.mark.parametrize(
        "name, when, seed, what",
        [
            ("NOTHING", "before timing", OTHER, "128 of 128 elements are NaN or were never written, first seen at [0, 0]"),
            (
                "LAST_ROW_MISSING",
                "before timing",
                OTHER,
                "16 of 128 elements are NaN or were never written, first seen at [7, 0]",
            ),
            ("ONE_NAN", "before timing", OTHER, "1 of 128 elements are NaN or were never written, first seen at [1, 2]"),
            ("ONE_OFF", "before timing", OTHER, "off by 1 at [1, 2]"),
            ("ADDS", "before timing", OTHER, "never written"),  # to what was in the output: it reads what it should write
            ("FIRST_ANSWER", "before timing", TIMED, "off by"),  # right for one seed only
            ("EATS_ITS_INPUT", "as timed", TIMED, "off by"),
            ("WRONG_AFTER_5", "as timed", TIMED, "off by 1 at [0, 0]"),
            ("STOPS_AFTER_5", "after timing", TIMED, "128 of 128 elements are NaN or were never written"),
            ("SKIPS_KNOWN_INPUTS", "after timing", TIMED, "128 of 128 elements are NaN or were never written"),
            ("SECOND_ANSWER", "after timing", OTHER, "off by"),  # repeats an answer that happens to be the timed one
        ],
    )
    def test_a_wrong_kernel_is_caught_by_the_check_that_can(
        self, bench: Workbench, right: Artifact, name: str, when: str, seed: int, what: str
    ) -> None:
        failure = bench.bench(broken(name)).failure
        assert failure is not None and failure.kind is FailureKind.WRONG_RESULT
        assert failure.detail.startswith(f"{when}, seed {seed}: ") and what in failure.detail
        # In the same warm process: whatever a kernel did is not visited on the next.
        after = bench.bench(broken("RIGHT"), right)
        assert after.failure is None and after.value.max_abs_error == 0.0

    def test_a_kernel_that_crashes(self, bench: Workbench, right: Artifact) -> None:
        done = bench.bench(broken("CRASHES"))
        assert done.failure is not None and done.failure.kind is FailureKind.CRASH
        assert "SIGSEGV" in done.failure.detail and "about to crash" in done.output
        assert bench.bench(broken("RIGHT"), right).failure is None

    def test_a_kernel_that_never_ends(self, bench: Workbench, right: Artifact) -> None:
        assert bench.bench(broken("RIGHT"), right).failure is None  # warm: the deadline below is the kernel's alone
        failure = bench.bench(broken("HANGS"), deadline=3).failure
        assert failure is not None and failure.kind is FailureKind.HANG
        assert bench.bench(broken("RIGHT"), right).failure is None


@pytest.mark.quiet
class TestPair:
    def test_the_slower_of_two_is_told_from_the_faster(self, bench: Workbench) -> None:
        done = bench.pair(broken("SLOW"), broken("RIGHT"))
        paired: Paired = done.value
        assert (paired.candidate_id, paired.reference_id) == (broken("SLOW").id, broken("RIGHT").id)
        assert len(paired.candidate_ms) == len(paired.reference_ms) == PROTOCOL.repeat
        assert paired.high < 1.0 and paired.low <= paired.speedup <= paired.high
        assert paired.confidence == stats.CONFIDENCE
        assert {(c.seed, c.when) for c in paired.checks} >= {(TIMED, "as timed"), (OTHER, "after timing")}

    @pytest.mark.parametrize("names", [("STOPS_AFTER_5", "RIGHT"), ("RIGHT", "STOPS_AFTER_5")])
    def test_both_are_checked(self, bench: Workbench, names: tuple[str, str]) -> None:
        failure = bench.pair(*map(broken, names)).failure
        assert failure is not None and failure.kind is FailureKind.WRONG_RESULT


class TestBaseline:
    def test_is_timed_call_by_call(self, bench: Workbench) -> None:
        done = bench.do(BaselineJob(Workload("gemm", {"M": 32, "N": 32, "K": 32}, "float32"), bench.device, PROTOCOL))
        assert len(done.value) == PROTOCOL.repeat and min(done.value) > 0

    def test_of_a_dtype_that_torch_does_not_have(self, bench: Workbench) -> None:
        done = bench.do(BaselineJob(Workload("gemm", {"M": 8, "N": 8, "K": 8}, "float3"), bench.device, PROTOCOL))
        assert done.failure is not None and "float3" in done.failure.detail


class TestArtifact:
    def test_loading_never_compiles(self, right: Artifact) -> None:
        kernel = load_kernel(broken("RIGHT"), right)
        a, c = torch.randn(8, 16), torch.empty(8, 16)
        kernel(a, c)
        assert torch.equal(c, -a)
        with pytest.raises(JobFailed, match="did not recognise the built kernel and compiled it again"):
            load_kernel(broken("ROUNDING"), right)

    def test_another_variants_artifact_is_not_measured(self, bench: Workbench, right: Artifact) -> None:
        failure = bench.bench(broken("ONE_OFF"), right).failure
        assert failure is not None and failure.kind is FailureKind.LAUNCH_ERROR and "compiled it again" in failure.detail

    def test_each_environment_knob_gets_its_own_kernel(self, bench: Workbench) -> None:
        """TileLang's cache in memory does not know them: in a warm process one would be given another's."""
        plain = broken("RIGHT")
        knobbed = [replace(plain, config={**plain.config, "env.TILELANG_MACA_GEMM_K_PACK": pack}) for pack in (1, 2)]
        artifacts = [bench.build(v) for v in (plain, *knobbed)]
        assert len({a.source_hash for a in artifacts}) == 3
        assert all(bench.bench(v, a).failure is None for v, a in zip((plain, *knobbed), artifacts))

    def test_an_environment_knob_that_is_in_tilelangs_key(self, bench: Workbench) -> None:
        plain = broken("RIGHT")
        knobbed = replace(plain, config={**plain.config, "env.TILELANG_LAYOUT_COST_MODEL": "io-aware"})
        assert bench.bench(knobbed).failure is None

    def test_a_user_who_turned_tilelangs_cache_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
        of = broken("RIGHT")
        kernel = load_kernel(of, build(BuildJob(of)))
        given = torch.ones(tuple(of.workload.shape.values()))
        out = torch.empty_like(given)
        kernel(given, out)
        assert torch.equal(out, -given)

    def test_one_source_has_one_hash_and_compiler_flags_make_another(self, bench: Workbench, right: Artifact) -> None:
        same = replace(broken("RIGHT"), config={"block": 2})
        assert bench.build(same).source_hash == right.source_hash
        flagged = replace(broken("RIGHT"), config={"block": 1, "pass.tl.enable_fast_math": True})
        assert bench.build(flagged).source_hash != right.source_hash

    def test_a_build_that_fails_says_why_in_one_line(self, bench: Workbench) -> None:
        done = bench.do(BuildJob(broken("DOES_NOT_COMPILE")))
        assert done.failure is not None and done.failure.kind is FailureKind.COMPILE_ERROR
        assert "no_such_name" in done.failure.detail and "\n" not in done.failure.detail
        assert "/tmp" not in done.failure.detail  # or no two failures would have the same reason
        assert "C[0] = no_such_name" in done.output

    def test_a_packed_entry_unpacks_to_the_same_files(self, right: Artifact, tmp_path: Path) -> None:
        unpack(right.blob, tmp_path)
        assert pack(tmp_path)
        names = {p.suffix for p in tmp_path.rglob("*") if p.is_file()}
        assert ".so" in names

    def test_names_that_lead_outside_are_refused(self, tmp_path: Path) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            tar.addfile(tarfile.TarInfo("../outside"), io.BytesIO())
        with pytest.raises(JobFailed, match="does not belong"):
            unpack(buffer.getvalue(), tmp_path / "in")
        assert not (tmp_path / "outside").exists()

    def test_the_cache_folder_is_put_back(self, tmp_path: Path) -> None:
        from tilelang import env

        before = env.TILELANG_CACHE_DIR
        with cache_in(str(tmp_path)):
            assert str(tmp_path) == env.TILELANG_CACHE_DIR
        assert before == env.TILELANG_CACHE_DIR
