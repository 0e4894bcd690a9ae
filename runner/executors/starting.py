"""A Ray executor that starts while other things are done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from runner.executors.on_ray import RayExecutor
from runner.process import forkserver
from runner.records import Device


class Starting:
    """As a context manager it ends with the block.

    A Ray of our own starts in a thread that stays as long as it does: Linux ends a process with the thread that started it.
    """

    def __init__(self, address: str | None = None):
        self._address = address
        self._found: Future[RayExecutor] | None = None
        self._devices: Sequence[Device] = ()
        self._closed = threading.Event()

    def expect(self) -> None:
        """Begin what is easily left again: who forks the children takes seconds to import what they need."""
        if not self._address:
            forkserver.start()

    def begin(self, devices: Sequence[Device] = ()) -> None:
        """Start it, and seek these devices as soon as it is there: who measures on one takes seconds to import what it needs."""
        if self._found is None:
            self.expect()
            self._found, self._devices = Future(), devices
            if self._address:
                self._start(self._found)
            else:
                threading.Thread(target=self._start, args=(self._found,), daemon=True).start()

    def executor(self) -> RayExecutor:
        """Waits for it, in the main thread. Raises InfrastructureLost where it could not be started."""
        self.begin()
        assert self._found is not None
        found = self._found.result()
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))  # Ray took it, in a thread that may not give it back
        return found

    def __enter__(self) -> Starting:
        return self

    def __exit__(self, *_: object) -> None:
        if self._found is not None:
            with contextlib.suppress(Exception):  # whoever waited for it was told
                self._found.result().close()
        self._closed.set()

    def _start(self, found: Future[RayExecutor]) -> None:
        try:
            executor = RayExecutor(self._address)
            if self._devices:
                executor.seek(self._devices)
            found.set_result(executor)
        except BaseException as error:
            found.set_exception(error)
        if not self._address:
            self._closed.wait()
