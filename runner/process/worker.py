"""The child's side of `child.py`: reads a job, runs it, writes the result, until the pipe is closed.

Run as `python worker.py JOB_FD RESULT_FD PARENT_PID`, with the runner on its path.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import struct
import sys
import traceback
from pathlib import Path

from runner.errors import FailureKind, JobFailed
from runner.subprocesses import die_with

LENGTH = struct.Struct("!Q")


def main(job_fd: int, result_fd: int, parent: int) -> None:
    if parent:
        die_with(parent)
    die_first()
    for fd in (job_fd, result_fd):
        os.set_inheritable(fd, False)  # a compiler or a kernel's own child must not hold the pipe open
    jobs, results = os.fdopen(job_fd, "rb"), os.fdopen(result_fd, "wb")
    # Ctrl-C reaches the driver, which ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while header := jobs.read(LENGTH.size):
        data = _reply(jobs.read(LENGTH.unpack(header)[0]))
        sys.stdout.flush()
        sys.stderr.flush()
        results.write(LENGTH.pack(len(data)) + data)
        results.flush()


def _reply(request: bytes) -> bytes:
    """The pickled answer: a one-tuple with the value, or a JobFailed."""
    try:
        function, args = pickle.loads(request)
        return pickle.dumps((function(*args),))
    except JobFailed as failure:
        return pickle.dumps(failure)
    except Exception as error:
        traceback.print_exc()
        return pickle.dumps(JobFailed(FailureKind.CRASH, f"{type(error).__name__}: {first_line(error)}"))


def first_line(error: BaseException) -> str:
    """The line of an error's text that says most: its first that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")


def die_first() -> None:
    """Where memory runs out all the same, Linux is to kill this process and no other. And a crash leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder
    main(*(int(a) for a in sys.argv[1:4]))
