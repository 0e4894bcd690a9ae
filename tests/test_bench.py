"""No kernel that computes something else, or nothing, gets a latency; and none is compiled while it is measured."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runner import stats
from runner.artifacts import cache_in, load_kernel, pack, unpack
from runner.build import BuildJob, build
from runner.errors import FailureKind, JobFailed
from runner.jobs.check import compare
from runner.jobs.problem import SEEDS
from runner.jobs.requests import BaselineJob, BenchJob
from runner.jobs.timing import BESIDE
from runner.records import Artifact, Baseline, Measurement, PairSession, Variant, Workload
from tests.workbench import PAIRS, PROTOCOL, Workbench, variant

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
            (OTHER, "after timing"),
            (TIMED, "after timing"),
        ]
        assert measured.max_abs_error == 0.0
        assert measured.equal == measured.calls == 1 + PROTOCOL.warmup + PROTOCOL.repeat
        assert len(measured.reference_ms) == BESIDE and measured.speedup_vs_baseline
        assert measured.accuracy is not None and measured.accuracy.relative_error == 0.0 and measured.accuracy.elements == 128
        assert measured.first_call_ms > 0 and measured.settled_call_ms > 0 and measured.batch == 1
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
            ("EATS_ITS_INPUT", "writes to its input 1; call 2 of the timing loop", TIMED, "off by"),
            ("WRONG_AFTER_5", "call 4 of the timing loop", TIMED, "off by 1 at [0, 0]"),
            ("STOPS_AFTER_5", "call 4 of the timing loop", TIMED, ""),
            ("SKIPS_KNOWN_INPUTS", "before timing", TIMED, "128 of 128 elements are NaN or were never written"),
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
        session: PairSession = bench.pair(broken("SLOW"), broken("RIGHT")).value
        assert len(session.candidate_ms) == len(session.reference_ms) == PAIRS
        speedup, low, high = stats.paired_speedup(session.candidate_ms, session.reference_ms)
        assert high < 1.0 and low <= speedup <= high
        assert {(c.seed, c.when) for c in session.checks} >= {(TIMED, "as timed"), (OTHER, "after timing")}
        assert session.equal == session.calls > PAIRS


class TestSessions:
    @pytest.mark.parametrize("names", [("STOPS_AFTER_5", "RIGHT"), ("RIGHT", "STOPS_AFTER_5")])
    def test_both_of_a_pair_are_checked(self, bench: Workbench, names: tuple[str, str]) -> None:
        failure = bench.pair(*map(broken, names)).failure
        assert failure is not None and failure.kind is FailureKind.WRONG_RESULT

    def test_a_session_has_a_process_of_its_own_which_its_pairs_share(self, bench: Workbench) -> None:
        """`TELLS_ITS_PROCESS` stores the number of its process where a result belongs."""

        def process(session: str) -> str:
            failure = bench.pair(broken("TELLS_ITS_PROCESS"), broken("RIGHT"), session=session).failure
            assert failure is not None
            return failure.detail.rpartition("got ")[2].partition(",")[0]

        first, again, other = process("a"), process("a"), process("b")
        assert first == again != other


class TestBaseline:
    def test_is_timed_call_by_call(self, bench: Workbench) -> None:
        done = bench.do(BaselineJob(Workload("gemm", {"M": 32, "N": 32, "K": 32}, "float32"), bench.device, PROTOCOL))
        baseline: Baseline = done.value
        assert len(baseline.before_ms) == PROTOCOL.repeat and min(baseline.before_ms) > 0
        assert baseline.name == "torch.mm" and baseline.contended is not None
        assert baseline.accuracy is not None and 0 < baseline.accuracy.relative_error < 1e-6

    def test_the_fastest_of_its_forms_is_chosen_and_all_are_on_record(self, bench: Workbench) -> None:
        baseline: Baseline = bench.do(BaselineJob(broken("IN_THREE_FORMS").workload, bench.device, PROTOCOL)).value
        assert baseline.form == "quick"
        assert set(baseline.forms) == {"as it is", "quick", "not here"}
        assert baseline.forms["not here"] == "RuntimeError: this library is not installed"
        slow, quick = baseline.forms["as it is"], baseline.forms["quick"]
        assert isinstance(slow, float) and isinstance(quick, float) and slow > 4 > quick

    def test_a_variant_is_timed_beside_the_form_that_is_asked_for(self, bench: Workbench) -> None:
        of = broken("IN_THREE_FORMS")
        for form, least, most in (("", 4.0, 1e3), ("quick", 0.0, 4.0)):
            measured: Measurement = bench.do(BenchJob(of, bench.build(of), bench.device, PROTOCOL, form=form)).value
            assert least < stats.median(measured.reference_ms) < most

    def test_of_a_dtype_that_torch_does_not_have(self, bench: Workbench) -> None:
        done = bench.do(BaselineJob(Workload("gemm", {"M": 8, "N": 8, "K": 8}, "float3"), bench.device, PROTOCOL))
        assert done.failure is not None and "float3" in done.failure.detail


class TestProblem:
    @pytest.mark.parametrize(
        "name, said",
        [
            ("IGNORES_THE_SEED", "both seeds expect the same result, so a kernel that ignores its inputs would pass"),
            ("BASELINE_WITH_NAN", "torch.neg itself gives 1 NaN for seed 20240"),
            ("SCALAR", "its output is a scalar, and a kernel's is a tensor: give it one dimension"),
        ],
    )
    def test_a_family_that_leaves_nothing_to_check_by_is_named(self, bench: Workbench, name: str, said: str) -> None:
        of = broken(name)
        for job in (BaselineJob(of.workload, bench.device, PROTOCOL), BenchJob(of, bench.build(of), bench.device, PROTOCOL)):
            failure = bench.do(job).failure
            assert failure is not None and failure.kind is FailureKind.UNSOUND
            assert f"tests.broken_families:{name}: {said}" in failure.detail

    def test_nan_that_a_family_allows_is_equal_to_itself(self, bench: Workbench) -> None:
        assert bench.bench(broken("NAN_IS_RIGHT")).value.max_abs_error == 0.0

    def test_an_output_of_integers_is_compared_exactly(self, bench: Workbench) -> None:
        of = variant("tests.broken_families:INTEGERS", SHAPE, "int32")
        measured: Measurement = bench.bench(of).value
        assert measured.max_abs_error == 0.0 and measured.accuracy is None and measured.equal == measured.calls
        failure = bench.bench(variant("tests.broken_families:INTEGERS_OFF_BY_ONE", SHAPE, "int32")).failure
        assert failure is not None and "off by 1 at [1, 2]" in failure.detail
        failure = bench.bench(variant("tests.broken_families:INTEGERS_MISSING", SHAPE, "int32")).failure
        assert failure is not None and "16 of 128 elements were never written" in failure.detail


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
