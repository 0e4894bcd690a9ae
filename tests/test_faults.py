"""Nobody is hurt by a kernel: not the node, not the next variant, and not the truth. Real children, real kernels, on this CPU."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.family import load_family
from runner import stats
from runner.build import BuildJob
from runner.errors import FailureKind, JobFailed
from runner.executors.base import Done
from runner.executors.inline import InlineExecutor
from runner.finals import deadline
from runner.gate import DRIFT_LIMIT, judge
from runner.jobs.requests import BenchJob
from runner.pipeline import compile_deadline, run
from runner.process.lease import lease
from runner.process.memory import available, default_limit
from runner.process.session import processes_of
from runner.records import (
    Acceptance,
    Allowance,
    Artifact,
    Baseline,
    Decision,
    Device,
    Outcome,
    PairSession,
    Protocol,
    Ruling,
    Status,
)
from runner.submit import decided
from runner.sweep import Result
from runner.targets import cpu_time
from runner.targets.base import backend
from runner.targets.cpu_time import Used
from tests.command import ROOT
from tests.fake_executor import FakeExecutor, Fate
from tests.test_pipeline import CPU, LOST, fates, make_sweep, play
from tests.workbench import PROTOCOL, Workbench, variant

BUSY = "other processes used 1.0 of 2 cores while this was timed"
QUIET = Acceptance(mma="none", max_spread=3.0)  # what sweeps ask for where they do not say otherwise


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that computes as fast as it can."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


SHAPE = {"M": 8, "N": 16}
LIMIT_GB = 1.5  # torch and TileLang take half of a gigabyte


@pytest.fixture(scope="module")
def bench() -> Iterator[Workbench]:
    bench = Workbench()
    yield bench
    bench.close()


@pytest.fixture(scope="module")
def right(bench: Workbench) -> Artifact:
    return bench.build(variant("tests.broken_families:RIGHT", SHAPE))


def measure(bench: Workbench, name: str, seconds: float = 120, memory_gb: float | None = None, **shape: int) -> Done:
    broken = variant(f"tests.broken_families:{name}", {**SHAPE, **shape})
    return bench.do(BenchJob(broken, bench.build(broken), bench.device, PROTOCOL, memory_gb=memory_gb), seconds)


def build(bench: Workbench, name: str, seconds: float = 120, memory_gb: float | None = None) -> Done:
    return bench.do(BuildJob(variant(f"tests.broken_families:{name}", SHAPE), memory_gb=memory_gb), seconds)


def failure_of(done: Done) -> JobFailed:
    assert done.failure is not None, f"it ended well: {done.value}"
    return done.failure


def next_is_measured(bench: Workbench, right: Artifact) -> None:
    done = bench.bench(variant("tests.broken_families:RIGHT", SHAPE), right)
    assert done.failure is None and done.value.max_abs_error == 0.0


class TestCrash:
    @pytest.mark.parametrize(
        "name, how, printed",
        [
            ("CRASHES", "killed by SIGSEGV", "about to crash"),
            ("ABORTS", "killed by SIGABRT", "about to abort"),
            ("EXITS", "ended the process with exit code 3", "about to exit"),
        ],
    )
    def test_is_named_and_costs_one_variant(self, bench: Workbench, right: Artifact, name: str, how: str, printed: str) -> None:
        failure = failure_of(measure(bench, name))
        assert (failure.kind, failure.detail) == (FailureKind.CRASH, how)
        assert printed in failure.output
        next_is_measured(bench, right)


class TestMemory:
    def test_a_kernel_that_allocates_without_end(self, bench: Workbench, right: Artifact) -> None:
        failure = failure_of(measure(bench, "EATS_MEMORY", memory_gb=LIMIT_GB))
        assert failure.kind is FailureKind.CRASH
        assert failure.detail == "used more than 1.5 GB of memory, killed with its process group"
        next_is_measured(bench, right)

    def test_a_compile_that_allocates_without_end(self, bench: Workbench) -> None:
        """It is the compiler that does, two processes below the child."""
        failure = failure_of(build(bench, "COMPILE_EATS_MEMORY", memory_gb=LIMIT_GB))
        assert failure.kind is FailureKind.CRASH
        assert failure.detail == "used more than 1.5 GB of memory, killed with its process group"
        assert build(bench, "ADDS").failure is None

    def test_what_a_kernel_leaves_running_ends_with_it(self, bench: Workbench, right: Artifact) -> None:
        next_is_measured(bench, right)
        (child,) = bench.executor._measurers.values()
        leader = child._process.pid
        failure = measure(bench, "LEAKS_AND_FORKS").failure
        assert failure is not None and failure.kind is FailureKind.SIDE_EFFECT and failure.detail == "leaves 1 process running"
        end = time.monotonic() + 10
        while processes_of(leader) and time.monotonic() < end:
            time.sleep(0.05)
        assert processes_of(leader) == {}, "a process that goes on would disturb whatever is timed next"
        next_is_measured(bench, right)

    def test_of_a_process_group_is_counted_whole(self) -> None:
        shell = subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"], start_new_session=True)
        try:
            end = time.monotonic() + 10
            held: dict[int, int] = {}  # one that is being replaced by `sleep` holds nothing for a moment
            while not (len(held) == 3 and min(held.values()) > 0) and time.monotonic() < end:
                time.sleep(0.01)
                held = processes_of(shell.pid)
            assert len(held) == 3 and shell.pid in held and min(held.values()) > 0
            assert os.getpid() not in held
        finally:
            os.killpg(shell.pid, 9)
            shell.wait()
        end = time.monotonic() + 10
        while processes_of(shell.pid) and time.monotonic() < end:
            time.sleep(0.01)
        assert processes_of(shell.pid) == {}

    MEMINFO = "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 800 kB\n"

    @pytest.mark.parametrize(
        "files, expected",
        [
            ({"proc/self/cgroup": "0::/\n"}, 800 * 1024),
            ({"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/memory.max": "max"}, 800 * 1024),
            (
                {
                    "proc/self/cgroup": "0::/job/step\n",
                    "sys/fs/cgroup/job/memory.max": "5000",
                    "sys/fs/cgroup/job/memory.current": "3000",
                    "sys/fs/cgroup/job/memory.stat": "anon 1\ninactive_file 700\n",
                },
                2700,
            ),
            (
                {
                    "proc/self/cgroup": "3:cpu:/\n2:memory:/docker/of/the/host\n",
                    "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000",
                    "sys/fs/cgroup/memory/memory.usage_in_bytes": "3000",
                    "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 70\n",
                },
                2070,
            ),
        ],
    )
    def test_what_is_available_is_the_containers_where_that_is_less(
        self, tmp_path: Path, files: dict[str, str], expected: int
    ) -> None:
        for name, text in {"proc/meminfo": self.MEMINFO, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert available(tmp_path) == expected

    def test_what_a_child_may_use_leaves_the_node_something(self) -> None:
        assert default_limit() < available() or available() < 4e9


class TestHang:
    def test_a_kernel_that_never_returns(self, bench: Workbench, right: Artifact) -> None:
        next_is_measured(bench, right)  # warm: the deadline is the kernel's alone
        started = time.monotonic()
        failure = failure_of(measure(bench, "HANGS", seconds=3))
        assert time.monotonic() - started < 13
        assert (failure.kind, failure.output) == (FailureKind.HANG, "about to hang")
        assert failure.detail == "still running after 3 s, killed with its process group"
        next_is_measured(bench, right)

    def test_a_compile_that_never_returns(self, bench: Workbench) -> None:
        assert build(bench, "ADDS").failure is None
        started = time.monotonic()
        failure = failure_of(build(bench, "COMPILES_FOR_EVER", seconds=4))
        assert time.monotonic() - started < 14
        assert failure.kind is FailureKind.COMPILE_TIMEOUT
        assert failure.detail == "still running after 4 s, killed with its process group"
        assert build(bench, "ONE_NAN").failure is None


class TestDeadlines:
    @pytest.mark.parametrize(
        "seen, expected", [([], 300), ([1, 2], 300), ([1, 2, 3], 60), ([1, 2, 9], 90), ([9, 1, 1, 1], 90), ([1, 50, 1], 300)]
    )
    def test_of_a_compile_follow_the_slowest_seen(self, seen: list[float], expected: float) -> None:
        assert compile_deadline(Allowance(compile_deadline_s=(60, 300)), seen) == expected

    @pytest.mark.parametrize("baseline_ms, expected", [(0.0, 20), (1.0, 20 + 0.05 * 14), (1_000, 90)])
    def test_of_a_measurement_follow_the_baseline(self, baseline_ms: float, expected: float) -> None:
        device = Device("cpu", "X")
        result = Result(baselines={("", 0): Baseline(device, "torch.mm", (baseline_ms,) * 3)})
        allowance = Allowance(deadline_s=(20, 90))
        assert deadline(result, device, Protocol(warmup=3, repeat=7), allowance) == pytest.approx(expected)

    def test_are_in_the_record_with_the_attempt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(FakeExecutor, "builders", lambda self: 1)
        variants = {name: Fate(name, builds=[seconds]) for name, seconds in zip("abcde", (1.0, 2.0, 9.0, 1.0, 1.0))}
        variants["e"].benches = [LOST, 1.0]
        ran = play(variants, allowance=Allowance((20, 90), (60, 300)))
        assert [ran.outcomes[name].deadlines["build"] for name in "abcde"] == [300, 300, 300, 90, 90]
        assert all(20 < o.deadlines["measure"] < 90 for o in ran.outcomes.values())
        assert {name: o.attempt for name, o in ran.outcomes.items()} == {**dict.fromkeys("abcd", 1), "e": 2}

    def test_of_what_failed_are_in_the_record_too(self) -> None:
        slow = JobFailed(FailureKind.COMPILE_TIMEOUT, "still running")
        ran = play({**fates(base=1.0), "a": Fate("a", builds=[slow])})
        assert ran.outcomes["a"].deadlines == {"build": 300.0}

    def test_a_node_is_given_no_more_builds_than_it_has_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(FakeExecutor, "builders", lambda self: 2)
        log = play(fates(**{f"v{i}": 1.0 for i in range(6)})).executor
        started = {line: log.log.index(line) for line in log.log if line.startswith("build")}
        assert len(started) == 6 and log.log.index("baseline on 0") < started["build v3"], "timing does not wait for the last"


class TestWrongResults:
    """What each wrong kernel is caught by is in test_bench.py; here is what takes more than a kernel."""

    def test_the_last_variants_answer_still_in_the_buffer(self, bench: Workbench) -> None:
        names = ("RIGHT", "NOTHING")
        first, second = (variant("tests.broken_families:ONE_BUFFER", SHAPE, behaviour=name) for name in names)
        artifacts = [bench.build(v) for v in (first, second)]
        assert bench.bench(first, artifacts[0]).failure is None
        failure = failure_of(bench.bench(second, artifacts[1]))
        assert failure.kind is FailureKind.WRONG_RESULT and "128 of 128 elements" in failure.detail

    def test_b_packed_for_another_interleave(self, bench: Workbench) -> None:
        shape = {"M": 32, "N": 32, "K": 32}
        tiles = {"block_M": 16, "block_N": 16, "block_K": 16}
        assert bench.bench(variant("gemm", shape, b_interleave=4, **tiles)).failure is None
        failure = failure_of(bench.bench(variant("tests.broken_families:MISPACKED", shape, b_interleave=4, **tiles)))
        assert failure.kind is FailureKind.WRONG_RESULT
        assert failure.detail.endswith(" (B packed as [K/4, N, 4])")

    def test_a_rate_that_no_core_can_reach(self, bench: Workbench) -> None:
        """A kernel that remembers the answer to inputs it has seen passes every check, and is given away by its rate."""
        said = {}
        for name, size in (("LABORIOUS", 128), ("REMEMBERS", 512)):
            of_name = variant(f"tests.broken_families:{name}", {"M": size, "N": size})
            done = bench.bench(of_name)
            assert done.failure is None and done.value.max_abs_error == 0.0
            flops = load_family(of_name.workload.family).flops(of_name.workload)
            verdicts = judge(of_name, bench.build(of_name), done.value, None, QUIET, flops, None)
            said[name] = next(verdict for verdict in verdicts if verdict.rule == "plausible")
        assert said["LABORIOUS"].ruling is Ruling.PASS, said["LABORIOUS"].evidence
        cheat = said["REMEMBERS"]
        assert cheat.ruling is Ruling.FAIL and "more than any device of this kind can do" in cheat.evidence
        assert backend("cpu").devices()[0].peak_tflops == {}, "a bound is no peak: no share of it is ever reported"


class TestContention:
    @pytest.mark.parametrize(
        "all_s, own_s, cores, expected",
        [
            (1.0, 1.0, 2, ""),
            (1.25, 1.0, 2, ""),  # a desktop
            (1.5, 1.0, 2, "other processes used 0.5 of 2 cores while this was timed"),
            (1.98, 1.0, 2, "other processes used 1.0 of 2 cores while this was timed"),
            (2.0, 1.0, 64, ""),  # somebody is always somewhere on a large machine
            (41.0, 1.0, 64, "other processes used 40.0 of 64 cores while this was timed"),
            (0.98, 1.0, 2, ""),  # the clocks differ by a count
            (0.0, 1.0, 2, None),  # a sandbox that does not count
        ],
    )
    def test_what_others_used(self, all_s: float, own_s: float, cores: int, expected: str | None) -> None:
        assert cpu_time.judged(Used(5.0, 100.0, 7.0), Used(6.0, 100.0 + all_s, 7.0 + own_s), cores) == expected

    def test_what_the_system_counts(self) -> None:
        ticks = cpu_time.TICKS
        line = f"cpu  {ticks} {2 * ticks} {3 * ticks} 1000 1000 {4 * ticks} {5 * ticks} {6 * ticks} 700 700\ncpu0 1 1 1\n"
        assert cpu_time.busy(line) == 1 + 2 + 3 + 4 + 5 + 6

    def test_a_busy_process_is_seen(self, bench: Workbench, right: Artifact) -> None:
        with busy_process():
            done = bench.bench(variant("tests.broken_families:RIGHT", SHAPE), right)
        found = re.fullmatch(r"other processes used (\d+\.\d) of \d+ cores while this was timed", done.value.contended)
        assert found and float(found.group(1)) > 0.6

    @pytest.mark.quiet
    def test_own_work_is_not_taken_for_anothers(self) -> None:
        """Threads and all: what this process burns is its own."""
        before = cpu_time.now()
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            pass
        after = cpu_time.now()
        assert after.own - before.own > 0.5
        assert after.all - before.all >= after.own - before.own - 0.05

    def test_what_was_disturbed_is_measured_once_more_at_the_end(self) -> None:
        disturbed = Fate("a", benches=[9.0, 1.0], others=[BUSY, ""])
        ran = play({**fates(base=2.0), "a": disturbed, **fates(b=1.5, c=1.0)}, acceptance=QUIET)
        assert ran.timed() == ["base", "a", "b", "c", "a"] and ran.built().count("a") == 1
        outcome = ran.outcomes["a"]
        assert outcome.measurement and outcome.measurement.samples_ms[0] == 1.0 and outcome.measurement.contended == ""
        assert outcome.attempt == 2 and outcome.decision is Decision.UNPROVEN

    def test_and_refused_when_it_is_disturbed_again(self) -> None:
        ran = play({**fates(base=2.0), "a": Fate("a", others=[BUSY])}, acceptance=QUIET)
        outcome = ran.outcomes["a"]
        assert ran.timed() == ["base", "a", "a"] and outcome.attempt == 2
        assert outcome.status is Status.MEASURED and outcome.measurement and outcome.measurement.contended == BUSY
        assert outcome.decision is Decision.REJECTED and outcome.reason == f"alone: {BUSY}"

    def test_a_base_is_measured_again_before_the_others_need_it(self) -> None:
        base = Fate("base", benches=[9.0, 2.0], others=[BUSY, ""])
        ran = play({"base": base, **fates(a=1.0)}, acceptance=QUIET)
        assert ran.timed() == ["base", "base", "a"]
        assert "2.0000x the base" in ran.outcomes["a"].reason

    @pytest.mark.parametrize("seed", range(4))
    def test_duplicates_wait_for_the_second_measurement(self, seed: int) -> None:
        twins = {"a": Fate("same", others=[BUSY, ""]), "b": Fate("same", others=[BUSY, ""])}
        ran = play({**fates(base=2.0), **twins}, target=CPU, seed=seed, acceptance=QUIET)
        assert sorted(ran.statuses().values()) == ["duplicate", "measured", "measured"]
        assert all(o.measurement and not o.measurement.contended for o in ran.outcomes.values())

    def test_where_quiet_is_not_asked_for_it_is_told_and_not_repeated(self) -> None:
        ran = play({**fates(base=2.0), "a": Fate("a", others=[BUSY])})
        assert ran.timed() == ["base", "a"] and ran.outcomes["a"].decision is Decision.UNPROVEN
        assert any(v.rule == "alone" and BUSY in v.evidence for v in ran.outcomes["a"].verdicts)


@pytest.mark.quiet
class TestDrift:
    def test_of_the_machine_is_shown_and_fools_nobody(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The machine is slow until the base is measured. By its median, what is timed after it would look faster."""
        slow = tmp_path / "slow"
        slow.touch()
        monkeypatch.setenv("SLOW_MACHINE", str(slow))
        base, worse = (variant("tests.broken_families:SLOWING", SHAPE, work=work) for work in (10, 15))
        settled: dict[str, Outcome] = {}

        def emit(outcome: Outcome) -> None:
            settled[outcome.variant.id] = outcome
            slow.unlink(missing_ok=True)

        executor = InlineExecutor()
        acceptance = Acceptance(mma="none", max_spread=3.0, alone="none")
        sweep = make_sweep((base, worse), backend("cpu").devices(), acceptance, finals=1, protocol=Protocol(1, 7))
        try:
            result = run(sweep, executor, emit, lambda progress: None)
        finally:
            executor.close()
        (baseline,) = result.baselines.values()
        assert abs(stats.drift(baseline.before_ms, baseline.after_ms)) > 10 * DRIFT_LIMIT
        medians = {i: stats.median(o.measurement.samples_ms) for i, o in settled.items() if o.measurement}
        assert medians[worse.id] < medians[base.id], "taken one after the other, the worse one looks better"
        ratio = {i: o.measurement.speedup_vs_baseline or 0.0 for i, o in settled.items() if o.measurement}
        assert ratio[worse.id] / ratio[base.id] < 0.85, "not by the calls of the baseline among its own"
        assert decided(sweep, result, settled)[worse.id].decision is Decision.BEATEN, "whether it played or not"

    def test_a_pair_has_the_same_ratio_on_a_slow_machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        slow = tmp_path / "slow"
        monkeypatch.setenv("SLOW_MACHINE", str(slow))
        bench = Workbench()
        better, worse = (variant("tests.broken_families:SLOWING", SHAPE, work=work) for work in (10, 20))
        try:
            quick: PairSession = bench.pair(better, worse).value
            slow.touch()
            slowed: PairSession = bench.pair(better, worse).value
        finally:
            bench.close()
        assert stats.median(slowed.candidate_ms) > 2 * stats.median(quick.candidate_ms)
        speedups = [stats.paired_speedup(found.candidate_ms, found.reference_ms)[0] for found in (quick, slowed)]
        assert all(1.5 < speedup < 2.7 for speedup in speedups)


HOLDER = """
import pathlib, sys, time
from runner.process.lease import lease
from runner.records import Device
log, uuid, shared = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "shared"
device = Device("cuda", "X", uuid=uuid)
with log.open("a") as file:
    print("started", file=file, flush=True)
    while not (log.parent / "go").exists():
        time.sleep(0.001)
    for _ in range(10):
        with lease(device, shared):
            started = time.monotonic()
            time.sleep(0.02)
            print(started, time.monotonic(), file=file, flush=True)
"""


class TestLease:
    def test_two_processes_never_time_at_once_on_one_device(self, tmp_path: Path) -> None:
        """Four that want to: two for timing, two for builds, which may run beside each other. Each with a TMPDIR of its own."""
        uuid = f"test-{os.getpid()}"
        holders = []
        for index, how in enumerate(("alone", "alone", "shared", "shared")):
            folder = tmp_path / str(index)
            folder.mkdir()
            command = [sys.executable, "-c", HOLDER, str(tmp_path / f"{index}.log"), uuid, how]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
            holders.append(subprocess.Popen(command, env=environment, cwd=folder))
        logs = [tmp_path / f"{index}.log" for index in range(4)]
        while not all(log.exists() and log.read_text() for log in logs):
            time.sleep(0.01)
        (tmp_path / "go").touch()
        assert [holder.wait(timeout=60) for holder in holders] == [0, 0, 0, 0]
        spans = [
            (float(start), float(end), index < 2)
            for index, log in enumerate(logs)
            for start, end in (line.split() for line in log.read_text().splitlines()[1:])
        ]
        assert len(spans) == 40
        spans.sort()
        for number, (start, end, alone) in enumerate(spans):
            for later_start, later_end, later_alone in spans[number + 1 :]:
                if alone or later_alone:
                    assert later_start >= end, f"{(start, end)} and {(later_start, later_end)} overlap"
        for lock in Path("/tmp").glob(f"sweep-runner-lease-*{uuid}.lock"):
            lock.unlink()

    def test_a_measurement_waits_for_the_device(self, bench: Workbench, right: Artifact) -> None:
        next_is_measured(bench, right)
        timing = threading.Thread(target=next_is_measured, args=(bench, right))
        with lease(bench.device):
            timing.start()
            timing.join(timeout=2)
            assert timing.is_alive(), "it did not wait for who held the device"
        timing.join(timeout=60)
        assert not timing.is_alive()

    def test_a_holder_that_is_killed_frees_it(self, tmp_path: Path) -> None:
        program = "import sys, time; from runner.process.lease import lease; from runner.records import Device\n"
        program += f"with lease(Device('cuda', 'X', uuid='test-killed-{os.getpid()}')): print(flush=True); time.sleep(600)"
        holder = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE)
        assert holder.stdout and holder.stdout.readline()
        holder.kill()
        holder.wait()
        with lease(Device("cuda", "X", uuid=f"test-killed-{os.getpid()}")):
            pass
        for lock in Path("/tmp").glob(f"sweep-runner-lease-*test-killed-{os.getpid()}.lock"):
            lock.unlink()
