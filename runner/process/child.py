"""Runs jobs, one at a time, in a child process that can be killed at its deadline with everything it started.

The child is forked, where it can be, from a process that has imported torch and TileLang (`forkserver.py`). It stays between
jobs, and is replaced after it died, was killed, said that its device is no longer usable, or left something behind: processes
that still run, or much memory. Jobs and results travel over a private pipe, so nothing that a kernel prints can be taken for a
result; what it prints goes to a file, whose tail is kept. Its temporary files are in a folder of its own, which ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeVar

from runner.errors import FailureKind, JobFailed
from runner.paths import here
from runner.process import worker
from runner.process.forkserver import Forked, fork
from runner.process.memory import MemoryWatch, default_limit
from runner.process.scratch import Scratch
from runner.process.session import kill_session, processes_of
from runner.subprocesses import python_path

T = TypeVar("T")

ASKED_BY = "SWEEP_RUNNER_ASKED_BY"
"""Environment variable of a child: the process that runs jobs in it, which is not the one that forked it."""

OUTPUT_TAIL = 16_384  # bytes of a job's own printing that are kept
OUTPUT_LIMIT = 1 << 30  # bytes that a job may print: a kernel that prints without end must not fill the disk
POLL = 0.2  # seconds between looks at whether the child still lives, and what it uses
LENGTH = struct.Struct("!Q")


class _Overdue(Exception):
    """The deadline has passed."""


class _Greedy(Exception):
    """More was used of the node than a job may; says of what."""


class Child:
    """A process of its own group, in which `run` executes importable functions.

    `env` is laid over this process's environment when the child starts (None removes a name). All that the child's
    processes hold together may reach `default_limit` bytes as it was when the child started. One that is not `forked` imports
    everything itself, as it must where it is to open an accelerator. `under` is a command that starts it: a memory checker.
    """

    def __init__(self, env: Mapping[str, str | None] | None = None, forked: bool = True, under: Sequence[str] = ()):
        self._under = tuple(under)
        self.session = ""  # what it last ran jobs of, where they ask for a process of their own
        self._forked = forked
        self._env = {k: v for k, v in {**os.environ, **(env or {}), ASKED_BY: str(os.getpid())}.items() if v is not None}
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._jobs: IO[bytes] | None = None
        self._results: int = -1
        self._limit = 0.0
        self._output = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - lives as long as the child, and has no name that could stay
        # What is printed after the file was emptied begins at its start, whoever prints.
        fcntl.fcntl(self._output.fileno(), fcntl.F_SETFL, fcntl.fcntl(self._output.fileno(), fcntl.F_GETFL) | os.O_APPEND)
        self._scratch: Scratch | None = None

    def run(
        self,
        function: Callable[..., T],
        *args: Any,
        deadline: float,
        overdue: FailureKind = FailureKind.HANG,
        memory_gb: float | None = None,
    ) -> T:
        """`function(*args)` in the child, or JobFailed.

        `deadline` is in seconds from now; a job that outlives it is killed with its process group, and the failure
        is `overdue`. One that uses more than `memory_gb` gigabytes is killed likewise, and the failure is a crash.
        The function must be importable, its arguments and result picklable.
        """
        os.ftruncate(self._output.fileno(), 0)
        try:
            process = self._give((function, args))
            watch = MemoryWatch(process.pid, self._limit if memory_gb is None else memory_gb * 1e9)
            reply = self._receive(deadline, watch)
        except (EOFError, BrokenPipeError):
            raise self._died() from None
        except _Overdue:
            raise self._killed(overdue, f"still running after {deadline:.0f} s") from None
        except _Greedy as greedy:
            raise self._killed(FailureKind.CRASH, str(greedy)) from None
        except BaseException:
            self.close()  # an interrupt: what runs must not go on behind our back
            raise
        if self._left_something(watch.limit) or (isinstance(reply, JobFailed) and reply.sticky):
            self.close()
        if isinstance(reply, JobFailed):
            reply.output = reply.output or self.output()
            raise reply
        value: T = reply[0]
        return value

    def output(self) -> str:
        """The tail of what the last job printed."""
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), OUTPUT_TAIL, max(0, size - OUTPUT_TAIL)).decode(errors="replace").strip()

    def close(self) -> None:
        """Kill the child and its whole group, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        kill_session(process.pid)
        process.wait()
        self._let_go()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _start(self) -> subprocess.Popen[bytes] | Forked:
        self._limit = default_limit()
        job_read, job_write = os.pipe()
        result_read, result_write = os.pipe()
        self._scratch, pipes = Scratch(), (job_read, result_write)
        env = {**self._env, "TMPDIR": str(self._scratch.folder)}
        forked = fork(env, self._output.fileno(), pipes) if self._forked else None
        self._process = forked or self._spawn(env, pipes)
        os.close(job_read)
        os.close(result_write)
        self._jobs, self._results = os.fdopen(job_write, "wb"), result_read
        return self._process

    def _spawn(self, env: Mapping[str, str], pipes: tuple[int, int]) -> subprocess.Popen[bytes]:
        """A child that imports everything itself."""
        # By path and not by -m, which would put the current folder first on the child's path, and a user's files before ours.
        # Under another command, its parent is not this process, and the pipe's end alone tells it to end.
        parent = 0 if self._under else os.getpid()
        command = [*self._under, sys.executable, worker.__file__, *map(str, pipes), str(parent)]
        return subprocess.Popen(
            command,
            env={**env, "PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"},
            cwd=here() or "/",
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            pass_fds=pipes,
            start_new_session=True,
        )

    def _give(self, job: object) -> subprocess.Popen[bytes] | Forked:
        """The child, which has the job now. One that died since its last is replaced: that was not this one's doing."""
        if self._process is not None:
            with contextlib.suppress(BrokenPipeError):  # who forked it may be slow to say that it ended
                if self._process.poll() is None:
                    self._send(job)
                    return self._process
            self.close()
        process = self._start()
        self._send(job)
        return process

    def _send(self, message: object) -> None:
        assert self._jobs is not None
        data = pickle.dumps(message)
        self._jobs.write(LENGTH.pack(len(data)) + data)
        self._jobs.flush()

    def _receive(self, deadline: float, watch: MemoryWatch) -> Any:
        end = time.monotonic() + deadline
        (size,) = LENGTH.unpack(self._read(LENGTH.size, end, watch))
        return pickle.loads(self._read(size, end, watch))

    def _read(self, size: int, end: float, watch: MemoryWatch) -> bytes:
        """Raises EOFError when the child is gone, _Overdue or _Greedy when it must go."""
        assert self._process is not None
        data = bytearray()
        while len(data) < size:
            left = end - time.monotonic()
            if left <= 0:
                raise _Overdue
            if watch.exceeded():
                raise _Greedy(f"used more than {watch.limit / 1e9:.3g} GB of memory")
            if os.fstat(self._output.fileno()).st_size > OUTPUT_LIMIT:
                raise _Greedy(f"printed more than {OUTPUT_LIMIT >> 30} GiB")
            # A forked grandchild holds the pipe open after the child's death, so its end alone does not tell.
            dead = self._process.poll() is not None
            if select.select([self._results], [], [], 0 if dead else min(left, POLL))[0]:
                chunk = os.read(self._results, min(size - len(data), 1 << 20))
                if not chunk:
                    raise EOFError
                data += chunk
            elif dead:
                raise EOFError
        return bytes(data)

    def _killed(self, kind: FailureKind, why: str) -> JobFailed:
        """Kill the child, and the failure that says so."""
        self.close()
        return JobFailed(kind, f"{why}, killed with its process group", self.output())

    def _left_something(self, limit: float) -> bool:
        """Whether a job that ended left what the next would be hurt by, or blamed for: processes, or half the memory there is."""
        assert self._process is not None
        held = processes_of(self._process.pid)
        return len(held) > 1 or sum(held.values()) > limit / 2

    def _died(self) -> JobFailed:
        """How the child ended, in words; it has closed its pipe, so it is gone or about to be."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        kill_session(process.pid)  # grandchildren
        process.wait()
        self._let_go()
        if isinstance(process, Forked) and process.server_gone:
            return JobFailed(FailureKind.LOST, "the process that forked its child is gone", self.output())
        how = "closed its result pipe and went on running, killed" if code is None else _ended(code)
        return JobFailed(FailureKind.CRASH, how, self.output())

    def _let_go(self) -> None:
        """Of what a child had that is gone."""
        if self._scratch is not None:
            self._scratch.remove()
        with contextlib.suppress(OSError):
            if self._jobs is not None:
                self._jobs.close()
        with contextlib.suppress(OSError):
            os.close(self._results)
        self._jobs, self._results = None, -1


def _ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended the process with exit code {code}"
