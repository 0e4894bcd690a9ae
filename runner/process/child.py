"""Runs jobs, one at a time, in a child process that can be killed at its deadline with everything it started.

The child stays warm between jobs (importing torch and TileLang costs seconds) and is replaced after it died, was
killed, or said that its device is no longer usable. Jobs and results travel over a private pipe, so nothing that a
kernel prints can be taken for a result; what it prints goes to a file, whose tail is kept.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, TypeVar

from runner.errors import FailureKind, JobFailed
from runner.process import worker

T = TypeVar("T")

OUTPUT_TAIL = 16_384  # bytes of a job's own printing that are kept
POLL = 0.5  # seconds between looks at whether the child still lives
LENGTH = struct.Struct("!Q")


class Child:
    """A process of its own group, in which `run` executes importable functions.

    `env` is laid over this process's environment when the child starts (None removes a name).
    """

    def __init__(self, env: Mapping[str, str | None] | None = None):
        self._env = {k: v for k, v in {**os.environ, **(env or {})}.items() if v is not None}
        self._process: subprocess.Popen[bytes] | None = None
        self._jobs: IO[bytes] | None = None
        self._results: int = -1
        self._output = tempfile.NamedTemporaryFile(prefix="runner-child-", suffix=".log")  # noqa: SIM115 - lives as long as the child

    def run(self, function: Callable[..., T], *args: Any, deadline: float, overdue: FailureKind = FailureKind.HANG) -> T:
        """`function(*args)` in the child, or JobFailed.

        `deadline` is in seconds from now; a job that outlives it is killed with its process group, and the failure
        is `overdue`. The function must be importable, its arguments and result picklable.
        """
        if self._process is not None and self._process.poll() is not None:
            self.close()  # it died between jobs: not this one's doing
        if self._process is None:
            self._start()
        os.truncate(self._output.name, 0)
        try:
            self._send((function, args))
            reply = self._receive(deadline)
        except (EOFError, BrokenPipeError):
            raise JobFailed(FailureKind.CRASH, self._death(), self.output()) from None
        except TimeoutError:
            output = self.output()
            self.close()
            raise JobFailed(overdue, f"still running after {deadline:.0f} s, killed with its process group", output) from None
        except BaseException:
            self.close()  # an interrupt: what runs must not go on behind our back
            raise
        if isinstance(reply, JobFailed):
            reply.output = reply.output or self.output()
            if reply.sticky:
                self.close()
            raise reply
        value: T = reply[0]
        return value

    def output(self) -> str:
        """The tail of what the last job printed."""
        with Path(self._output.name).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - OUTPUT_TAIL))
            return file.read().decode(errors="replace").strip()

    def close(self) -> None:
        """Kill the child and its whole group, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._drop_pipes()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _start(self) -> None:
        job_read, job_write = os.pipe()
        result_read, result_write = os.pipe()
        # By path and not by -m, which would put the current folder first on the child's path, and a user's files before ours.
        command = [sys.executable, worker.__file__, str(job_read), str(result_write), str(os.getpid())]
        path = os.pathsep.join(p for p in sys.path if p)
        with Path(self._output.name).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**self._env, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(job_read, result_write),
                start_new_session=True,
            )
        os.close(job_read)
        os.close(result_write)
        self._jobs, self._results = os.fdopen(job_write, "wb"), result_read

    def _send(self, message: object) -> None:
        assert self._jobs is not None
        data = pickle.dumps(message)
        self._jobs.write(LENGTH.pack(len(data)) + data)
        self._jobs.flush()

    def _receive(self, deadline: float) -> Any:
        end = time.monotonic() + deadline
        (size,) = LENGTH.unpack(self._read(LENGTH.size, end))
        return pickle.loads(self._read(size, end))

    def _read(self, size: int, end: float) -> bytes:
        assert self._process is not None
        data = bytearray()
        while len(data) < size:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
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

    def _death(self) -> str:
        """How the child ended, in words; it has closed its pipe, so it is gone or about to be."""
        assert self._process is not None
        process, self._process = self._process, None
        try:
            code = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # grandchildren
        process.wait()
        self._drop_pipes()
        if code is None:
            return "closed its result pipe and went on running, killed"
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"ended the process with exit code {code}"

    def _drop_pipes(self) -> None:
        with contextlib.suppress(OSError):
            if self._jobs is not None:
                self._jobs.close()
        with contextlib.suppress(OSError):
            os.close(self._results)
        self._jobs, self._results = None, -1
