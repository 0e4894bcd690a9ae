"""A child process survives whatever a job does to it, names what happened, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.errors import FailureKind, JobFailed
from runner.process import forkserver, scratch
from runner.process.child import OUTPUT_TAIL, Child
from tests import child_jobs as jobs
from tests.processes import SOON, eventually_gone, with_a_child


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


def failure_of(child: Child, function: Callable[..., Any], *args: Any, deadline: float = 30) -> JobFailed:
    with pytest.raises(JobFailed) as raised:
        child.run(function, *args, deadline=deadline)
    return raised.value


def works(child: Child) -> None:
    assert child.run(jobs.add, 2, 3, deadline=30) == 5


def test_it_stays_warm_between_jobs(child: Child) -> None:
    first = child.run(jobs.process_id, deadline=30)
    assert first == child.run(jobs.process_id, deadline=30) != os.getpid()


def test_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN_OVER", "as it is")
    monkeypatch.setenv("HIDDEN", "secret")
    child = Child({"CUDA_VISIBLE_DEVICES": "", "HIDDEN": None})
    names = ("TAKEN_OVER", "CUDA_VISIBLE_DEVICES", "HIDDEN")
    assert [child.run(jobs.environment, name, deadline=30) for name in names] == ["as it is", "", None]
    child.close()


def test_no_module_of_ours_hides_a_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a user calls the file of a family, and wherever the sweep is started."""
    (tmp_path / "worker.py").write_text("def answer():\n    return 'the user'\n")
    monkeypatch.syspath_prepend(tmp_path)
    import worker  # type: ignore[import-not-found]

    child = Child()
    assert child.run(worker.answer, deadline=30) == "the user"
    child.close()
    monkeypatch.delitem(sys.modules, "worker")


def test_large_arguments_and_results(child: Child) -> None:
    data = os.urandom(1 << 24)
    assert child.run(jobs.echo, data, deadline=60) == data


class TestDeadline:
    def test_kills_the_whole_group(self, child: Child, tmp_path: Path) -> None:
        works(child)
        pid_file = tmp_path / "pid"
        started = time.monotonic()
        failure = failure_of(child, jobs.sleep_with_grandchild, str(pid_file), deadline=1.5)
        assert time.monotonic() - started < 1.5 + SOON
        assert failure.kind is FailureKind.HANG and "2 s" in failure.detail
        assert eventually_gone(int(pid_file.read_text()))
        works(child)

    def test_needs_no_help_of_the_interpreter(self, child: Child) -> None:
        works(child)
        assert failure_of(child, jobs.spin_in_native_code, deadline=1).kind is FailureKind.HANG
        works(child)

    def test_is_called_what_the_caller_says(self, child: Child) -> None:
        works(child)
        with pytest.raises(JobFailed) as raised:
            child.run(time.sleep, 600, deadline=0.5, overdue=FailureKind.COMPILE_TIMEOUT)
        assert raised.value.kind is FailureKind.COMPILE_TIMEOUT


class TestDeath:
    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
    def test_by_a_signal_is_named(self, child: Child, number: signal.Signals) -> None:
        failure = failure_of(child, jobs.kill_itself, number)
        assert failure.kind is FailureKind.CRASH and number.name in failure.detail
        works(child)

    def test_by_a_wild_pointer(self, child: Child) -> None:
        failure = failure_of(child, jobs.read_address_zero)
        assert failure.kind is FailureKind.CRASH and "SIGSEGV" in failure.detail
        works(child)

    @pytest.mark.parametrize("function", [jobs.exit_with, jobs.leave_with])
    def test_by_exit_gives_the_code(self, child: Child, function: Callable[[int], None]) -> None:
        failure = failure_of(child, function, 3)
        assert failure.kind is FailureKind.CRASH and "exit code 3" in failure.detail
        works(child)

    def test_is_seen_while_a_forked_process_holds_its_pipes(self, child: Child, tmp_path: Path) -> None:
        pid_file = tmp_path / "pid"
        failure = failure_of(child, jobs.die_after_forking, str(pid_file), deadline=60)
        assert failure.kind is FailureKind.CRASH and "SIGSEGV" in failure.detail
        assert eventually_gone(int(pid_file.read_text()))
        works(child)

    def test_between_two_jobs_is_not_the_next_ones_fault(self, child: Child) -> None:
        pid = child.run(jobs.process_id, deadline=30)
        assert child.run(jobs.answer_then_die, 0.1, deadline=30) == "done"
        assert eventually_gone(pid)
        works(child)

    def test_that_nobody_has_told_of_yet_is_not_the_next_ones_fault(self, child: Child) -> None:
        pid = child.run(jobs.process_id, deadline=30)
        forked_it = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(forked_it, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        assert eventually_gone(pid)
        threading.Timer(0.3, os.kill, (forked_it, signal.SIGCONT)).start()
        works(child)

    def test_of_its_pipe_alone_ends_it_too(self, child: Child) -> None:
        pid = child.run(jobs.process_id, deadline=30)
        assert failure_of(child, jobs.close_every_pipe, deadline=60).kind is FailureKind.CRASH
        assert eventually_gone(pid)
        works(child)


class TestErrors:
    def test_that_cannot_be_pickled(self, child: Child) -> None:
        pid = child.run(jobs.process_id, deadline=30)
        failure = failure_of(child, jobs.raise_unpicklable)
        assert failure.kind is FailureKind.CRASH and failure.detail == "Unpicklable: first line"
        assert "raise Unpicklable" in failure.output  # its traceback
        assert child.run(jobs.process_id, deadline=30) == pid

    def test_results_that_cannot_be_pickled(self, child: Child) -> None:
        failure = failure_of(child, jobs.return_unpicklable)
        assert failure.kind is FailureKind.CRASH and "pickle" in failure.detail
        works(child)

    def test_of_the_job_arrive_as_they_were_raised(self, child: Child) -> None:
        failure = failure_of(child, jobs.raise_job_failed, False)
        assert (failure.kind, failure.detail) == (FailureKind.WRONG_RESULT, "off by one")
        assert failure.output == "said before failing"

    @pytest.mark.parametrize("sticky", [True, False])
    def test_that_stick_replace_the_child(self, child: Child, sticky: bool) -> None:
        before = child.run(jobs.process_id, deadline=30)
        failure_of(child, jobs.raise_job_failed, sticky)
        assert (child.run(jobs.process_id, deadline=30) != before) == sticky


class TestOutput:
    def test_is_never_taken_for_a_result(self, child: Child) -> None:
        assert [child.run(jobs.print_garbage, value, deadline=30) for value in (7, 8)] == [7, 8]
        assert child.output().endswith("printed at the end")

    def test_keeps_the_tail(self, child: Child) -> None:
        child.run(jobs.print_much, 10_000, deadline=30)
        kept = child.output()
        assert kept.endswith("line 00009999") and len(kept) <= OUTPUT_TAIL and "line 00000000" not in kept

    def test_is_of_the_last_job_alone(self, child: Child) -> None:
        child.run(jobs.print_much, 3, deadline=30)
        works(child)
        assert child.output() == ""

    def test_of_a_job_that_was_killed_is_kept(self, child: Child) -> None:
        works(child)
        assert "line 00000002" in failure_of(child, jobs.print_much_then_hang, 3, deadline=2).output


def test_a_killed_parent_takes_its_child_along(tmp_path: Path) -> None:
    parent, pid = with_a_child(tmp_path, "time.sleep, 600")
    parent.kill()
    parent.wait()
    assert eventually_gone(pid)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, with nothing in it."""
    forkserver.start()  # its own folder is elsewhere, and stays
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class TestTemporaryFiles:
    def test_are_a_childs_own_and_end_with_it(self, temporary: Path) -> None:
        child = Child()
        paths = [Path(child.run(jobs.leave_a_file, deadline=30)) for _ in range(2)]
        assert all(path.exists() and temporary in path.parents for path in paths), "as long as it lives, it may need them"
        child.close()
        assert list(temporary.iterdir()) == []
        child.run(jobs.leave_a_file, deadline=30)
        child.close()
        assert list(temporary.iterdir()) == []

    @pytest.mark.parametrize("forked", [True, False])
    def test_end_with_a_child_that_is_killed_or_dies(self, temporary: Path, forked: bool) -> None:
        child = Child(forked=forked)
        for end, *arguments in ((jobs.exit_with, 3), (time.sleep, 600), (jobs.kill_itself, signal.SIGSEGV)):
            assert temporary in Path(child.run(jobs.leave_a_file, deadline=30)).parents
            failure_of(child, end, *arguments, deadline=1)
            assert list(temporary.iterdir()) == []
        child.close()

    def test_of_one_whose_parent_was_killed_are_removed_by_the_next(
        self, temporary: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        parent, pid = with_a_child(temporary, "time.sleep, 600", TMPDIR=str(temporary))
        abandoned = set(temporary.glob(f"{scratch.PREFIX}*"))  # the child's, and that of who forked it
        assert abandoned
        monkeypatch.setattr(scratch, "YOUNG", 0.0)
        scratch.remove_abandoned()
        assert set(temporary.glob(f"{scratch.PREFIX}*")) == abandoned, "their maker lives"
        parent.kill()
        parent.wait()
        assert eventually_gone(pid)
        child = Child()
        works(child)
        child.close()
        assert not list(temporary.glob(f"{scratch.PREFIX}*"))


def test_it_works_where_the_current_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    child = Child()
    works(child)
    child.close()


def test_closing_ends_it_and_it_starts_again_when_asked(child: Child) -> None:
    pid = child.run(jobs.process_id, deadline=30)
    child.close()
    child.close()
    assert eventually_gone(pid)
    works(child)


def test_many_jobs_and_many_deaths_leak_no_descriptors(child: Child) -> None:
    works(child)
    gc.collect()  # children of tests before this one
    here, there = jobs.open_descriptors(), child.run(jobs.open_descriptors, deadline=30)
    for number in range(100):
        assert child.run(jobs.add, number, 1, deadline=30) == number + 1
    assert child.run(jobs.open_descriptors, deadline=30) == there
    for _ in range(10):
        failure_of(child, jobs.exit_with, 1)
    works(child)
    gc.collect()
    assert jobs.open_descriptors() <= here
    assert child.run(jobs.open_descriptors, deadline=30) == there
