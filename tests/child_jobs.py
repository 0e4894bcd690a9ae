"""Jobs for a child process: importable functions that misbehave in one way each."""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from runner.errors import FailureKind, JobFailed


def add(a: int, b: int) -> int:
    return a + b


def leave_a_file() -> str:
    """As TileLang leaves a kernel's source and library."""
    handle, path = tempfile.mkstemp(suffix=".cpp")
    os.close(handle)
    return path


def process_id() -> int:
    return os.getpid()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def sleep_with_grandchild(pid_file: str) -> None:
    """Never ends, and neither does a process it started."""
    grandchild = subprocess.Popen(["sleep", "600"])
    Path(pid_file).write_text(str(grandchild.pid))
    time.sleep(600)


def spin_in_native_code() -> None:
    """Holds the interpreter lock for ever, as a kernel that never ends does: no Python signal handler can run."""
    ctypes.PyDLL(None).pause()


def kill_itself(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def die_after_forking(pid_file: str) -> None:
    """Leaves a forked process that still holds all of its pipes."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    Path(pid_file).write_text(str(pid))
    os.kill(os.getpid(), signal.SIGSEGV)


def read_address_zero() -> None:
    ctypes.string_at(0)


def exit_with(code: int) -> None:
    os._exit(code)


def leave_with(code: int) -> None:
    sys.exit(code)


def answer_then_die(after: float) -> str:
    """Gives its result in good order; a thread then takes the process down, as a corrupted heap does."""
    threading.Timer(after, os._exit, (9,)).start()
    return "done"


def close_every_pipe() -> None:
    os.closerange(3, 256)
    time.sleep(600)


class Unpicklable(Exception):
    def __init__(self, what: str, handle: object):
        super().__init__(what)
        self.handle = handle

    def __reduce__(self) -> Any:
        raise TypeError("holds a handle")


def raise_unpicklable() -> None:
    raise Unpicklable("first line\nsecond line", threading.Lock())


def return_unpicklable() -> object:
    return threading.Lock()


def raise_job_failed(sticky: bool) -> None:
    print("said before failing")
    raise JobFailed(FailureKind.WRONG_RESULT, "off by one", sticky=sticky)


def print_garbage(value: int) -> int:
    """Writes what looks like results wherever a kernel can print."""
    fake = pickle.dumps((-1,))
    for stream in (1, 2):
        os.write(stream, len(fake).to_bytes(8, "big") + fake + b"\xff\xfe\x00")
    print("printed at the end")
    return value


def print_much(lines: int) -> None:
    for number in range(lines):
        print(f"line {number:08d}")


def open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def echo(data: bytes) -> bytes:
    return data


def print_much_then_hang(lines: int) -> None:
    print_much(lines)
    time.sleep(600)


def has_imported(names: tuple[str, ...]) -> bool:
    return all(name in sys.modules for name in names)


def path() -> list[str]:
    return sys.path


def attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
