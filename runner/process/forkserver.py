"""Forks children from a process that has imported torch and TileLang already, which costs every other process seconds.

    server                      one for each process that needs children, or shared with those that it starts (`ADDRESS`)
      |- child of this process
      |- child of a Ray worker

Started by path as `python forkserver.py SOCKET PARENT_PID`; asked over a Unix socket in a folder of its own. A connection
stands for a child: it brings the child's exit code, and when it is closed the child is killed with all that it started. So a
child ends with whoever asked for it, whatever ended that, and with the server.

Only a process that uses no device can be forked, and importing may be enough to open one. So the server is shown none, and its
children build, or measure on the CPU; one that measures on an accelerator is spawned.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from runner.paths import here
from runner.process import worker
from runner.process.lease import TAKES_TURNS
from runner.process.scratch import Scratch
from runner.process.session import kill_session
from runner.subprocesses import NO_DEVICES, die_with, python_path

ADDRESS = "SWEEP_RUNNER_FORKSERVER"
"""Environment variable: the socket of a server that processes share with the one that started them."""

LONGEST_IMPORT = 120.0  # seconds that a server may take until it answers
SIZE = struct.Struct("!Q")
NUMBER = struct.Struct("!i")

_own: _Own | None = None


class _Own:
    """A server of this process, in a folder that nobody else can enter."""

    def __init__(self) -> None:
        self.path = tuple(sys.path)
        self._folder = Scratch()
        self.address = str(self._folder.folder / "socket")
        env = {**os.environ, **NO_DEVICES, "PYTHONUNBUFFERED": "1", TAKES_TURNS: "1"}
        env["PYTHONPATH"] = python_path()
        # By path and not by -m, which would put the current folder first on the path, and a user's files before ours.
        self.process = subprocess.Popen(
            [sys.executable, __file__, self.address, str(os.getpid())],
            env=env,
            cwd=here() or "/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the driver's
        )

    def serves(self) -> bool:
        """Whether it lives, and would import the same: what has come to the end of the path since hides nothing."""
        return self.process.poll() is None and tuple(sys.path[: len(self.path)]) == self.path

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._folder.remove()


class Forked:
    """A child that the server forked, as far as `Child` uses a subprocess.Popen."""

    def __init__(self, connection: socket.socket, pid: int):
        self.pid = pid
        self.server_gone = False
        self._connection = connection
        self._code: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self._code is None:
            self._connection.settimeout(timeout)
            try:
                self._code = NUMBER.unpack(_read(self._connection, NUMBER.size))[0]
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired("child", timeout or 0.0) from None
            except (EOFError, OSError):
                self._code, self.server_gone = -signal.SIGKILL, True  # and the child with it
            self._connection.close()
        return self._code


def start() -> str:
    """Start this process's server unless there is one or one is shared with it, and return its socket at once: it goes on
    importing meanwhile.

    To be called from the main thread: Linux ends the server with the thread that started it.
    """
    if shared := os.environ.get(ADDRESS):
        return shared
    global _own
    if _own is not None and not _own.serves():
        _own.close()
        _own = None
    _own = _own or _Own()
    return _own.address


def fork(env: Mapping[str, str], output: int, pipes: Sequence[int]) -> Forked | None:
    """A worker (`worker.main`) with this environment that prints to `output` and has the two pipes; None: nobody can fork it."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(LONGEST_IMPORT)
        _connect(connection, start())
        request = pickle.dumps(({**env, "PYTHONPATH": python_path()}, here() or "/", sys.path))
        socket.send_fds(connection, [SIZE.pack(len(request))], [output, *pipes])
        connection.sendall(request)
        (pid,) = NUMBER.unpack(_read(connection, NUMBER.size))
    except (OSError, EOFError):
        connection.close()
        return None
    return Forked(connection, pid)


def _connect(connection: socket.socket, address: str) -> None:
    """A server that was just started takes some hundredths of a second until it has a socket."""
    process = _own.process if _own is not None and _own.address == address else None
    end = time.monotonic() + LONGEST_IMPORT
    while True:
        try:
            return connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            if process is None or process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.02)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


class Server:
    """Forks, reaps and kills, one event at a time."""

    def __init__(self, path: str):
        self._imported: Mapping[str, str] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(1024)
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._died, died = socket.socketpair()
        for end in (self._died, died):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # what is ignored does not wake
        signal.set_wakeup_fd(died.fileno(), warn_on_full_buffer=False)
        self._woken_by = died

    def prepare(self) -> None:
        """Import what every job needs. TileLang leaves in the environment where its parts are, which a child must find there."""
        before = dict(os.environ)
        with contextlib.suppress(ImportError):  # the child meets the same fault, and reports it
            import tilelang  # noqa: F401
            import torch  # noqa: F401
        self._imported = {name: value for name, value in os.environ.items() if before.get(name) != value}

    def serve(self) -> NoReturn:
        self._selector.register(self._listener, selectors.EVENT_READ, self._fork)
        self._selector.register(self._died, selectors.EVENT_READ, self._reap)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _fork(self) -> None:
        connection, _ = self._listener.accept()
        try:
            header, fds, _, _ = socket.recv_fds(connection, SIZE.size, 3)
            env, folder, path = pickle.loads(_read(connection, SIZE.unpack(header)[0]))
        except (OSError, EOFError, struct.error):
            connection.close()  # who asked is gone
            return
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become_child(env, folder, path, fds, server)
        for fd in fds:
            os.close(fd)
        self._children[pid] = connection
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._let_go(pid))
        with contextlib.suppress(OSError):
            connection.sendall(NUMBER.pack(pid))

    def _become_child(self, env: Mapping[str, str], folder: str, path: list[str], fds: Sequence[int], server: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for ours in (self._listener, self._died, self._woken_by, *self._children.values()):
                ours.close()
            os.setsid()
            output, jobs, results = fds
            for fd in (1, 2):
                os.dup2(output, fd)
            os.close(output)
            os.environ.clear()
            os.environ.update({**self._imported, **env}, PYTHONUNBUFFERED="1")
            sys.path[:] = path
            tempfile.tempdir = None  # what was imported may have asked for the server's
            with contextlib.suppress(OSError):
                os.chdir(folder)
            worker.main(jobs, results, server)
            os._exit(0)
        except SystemExit as asked:
            os._exit(asked.code if isinstance(asked.code, int) else 1)
        finally:
            os._exit(1)

    def _let_go(self, pid: int) -> None:
        """Who asked for a child has closed the connection, or is gone."""
        self._selector.unregister(self._children[pid])
        self._children.pop(pid).close()
        kill_session(pid)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._died.recv(4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                connection = self._children.pop(pid, None)
                if connection is not None:
                    self._selector.unregister(connection)
                    with contextlib.suppress(OSError):
                        connection.sendall(NUMBER.pack(os.waitstatus_to_exitcode(status)))
                    connection.close()


def main(path: str, parent: int) -> None:
    die_with(parent)
    server = Server(path)
    server.prepare()
    server.serve()


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder
    main(sys.argv[1], int(sys.argv[2]))
