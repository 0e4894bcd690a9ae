"""Sweeps that are interrupted, killed, or robbed of what they run on: nothing measured is lost, and nothing is left running."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from runner.process import forkserver
from tests import command
from tests.command import ok
from tests.servers import local_folder
from tests.sleeper import SIGNS, await_sign, sign

__all__ = ["local_folder"]

SWEEP = """\
name: {name}
kernel: tests.sleeper:SLEEPER
workload: {{M: 4, N: 8, dtype: float32}}
target: cpu
base: {{ms: 1, build_s: 0, number: 1}}
strategy: list
configs:
{configs}
measure: {{warmup: 1, repeat: 7, finals: 1}}
accept: {{max_abs_error: 0.0, mma: none, max_spread: 99.0, alone: none}}
"""

SOON = 45.0
"""Seconds within which nothing may be left of a driver that died. What runs is gone in three; a worker of Ray's that was
just being started first asks for its Ray, for fifteen seconds and on a busy machine for longer."""

QUIET_BY: dict[Place, float] = {}
"""By when nothing may run any more that was started in a place."""

OWN_END = ("ray::Dashboard", "ray::RuntimeEnv", "dashboard.py")
"""Ray's helpers, which hold nothing and look for themselves whether their Ray is still there, but for up to a minute."""


ON_A_TERMINAL = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from runner.cli.sweep import main; main()"
"""`sweep` whose own terminal is what it reads from."""


class Place:
    """A folder to run sweeps in, whose processes are known by a mark in their environment."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.signs = folder / "signs"
        self.signs.mkdir()
        self.mark = uuid.uuid4().hex
        self.environment = {SIGNS: str(self.signs), "SLEEPER_MARK": self.mark}

    def file(self, *configs: str, name: str = "sleep") -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(SWEEP.format(name=name, configs="\n".join(f"  - {{{c}}}" for c in configs)))
        return path.name

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return command.start("sweep", *arguments, folder=self.folder, **self.environment, **environment)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return command.run("sweep", *arguments, folder=self.folder, **self.environment)

    def processes(self) -> dict[int, str]:
        """What runs with our mark, as pid and command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                marked = entry.name.isdecimal() and self.mark.encode() in (entry / "environ").read_bytes()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") if marked else ""
            except OSError:
                continue
            if line and not any(own in line for own in OWN_END):
                found[int(entry.name)] = line
        return found

    def expect_quiet(self) -> None:
        """Nothing may be left of what was started here; the last test of this file looks, so that none waits for it."""
        QUIET_BY[self] = time.monotonic() + SOON

    def runs(self, kind: str = "variant") -> list[Run]:
        client = MlflowClient(f"sqlite:///{self.folder}/mlflow.db")
        ids = [e.experiment_id for e in client.search_experiments()]
        return list(client.search_runs(ids, f"tags.kind = '{kind}'", run_view_type=ViewType.ACTIVE_ONLY))

    def statuses(self) -> dict[str, Counter[str]]:
        """How often each status was recorded, by the variant's number."""
        found: dict[str, Counter[str]] = {}
        for run in self.runs():
            found.setdefault(run.data.params["number"], Counter())[run.data.tags["status"]] += 1
        return found

    def sweep_id(self) -> str:
        (sweep,) = self.runs("sweep")
        return str(sweep.data.tags["sweep_id"])

    def demand_nothing_running(self) -> None:
        running = [r.info.run_name for kind in ("sweep", "variant") for r in self.runs(kind) if r.info.status == "RUNNING"]
        assert not running, f"RUNNING in MLflow: {running}"


@pytest.fixture
def place(local_folder: Path) -> Iterator[Place]:
    made = Place(local_folder)
    yield made
    if made not in QUIET_BY:  # it failed
        for pid in made.processes():
            os.kill(pid, signal.SIGKILL)


def read_until(process: subprocess.Popen[str], wanted: Callable[[str], bool]) -> str:
    """What the command printed up to and with the first line that is wanted."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if wanted(line):
            return said
    raise AssertionError(f"ended with {process.wait()} before that line:\n{said}")


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
    end = time.monotonic() + 10
    while number == signal.SIGKILL and Path(f"/proc/{pid}/exe").exists() and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.timeout(600)
def test_a_driver_killed_again_and_again_loses_nothing_and_measures_nothing_twice(place: Place) -> None:
    numbers = range(2, 5)
    file = place.file(*(f"ms: 30, number: {n}" for n in numbers))
    moments: list[Callable[[str], bool]] = [
        lambda line: line.startswith("measured"),
        lambda line: line.startswith("timing torch.neg"),
    ]
    sweep_id = ""
    for moment in moments:  # with a server of its own to fork its children, as a user's has
        process = place.start(*(("resume", sweep_id) if sweep_id else ("submit", file)), **{forkserver.ADDRESS: ""})
        read_until(process, moment)
        process.kill()
        process.wait()
        sweep_id = place.sweep_id()
        assert " interrupted " in ok(place.run("list")), "its driver is gone, and nobody closed its record"
        assert f"its driver is gone: `sweep resume {sweep_id}`" in ok(place.run("status", sweep_id))
    ok(place.run("resume", sweep_id))
    assert place.statuses() == {str(n): Counter(measured=1) for n in (1, *numbers)}
    assert len(place.runs("sweep")) == 1
    place.demand_nothing_running()
    place.expect_quiet()


@pytest.mark.timeout(600)
def test_ctrl_c_ends_in_good_order_and_what_is_missing_is_measured_later(place: Place) -> None:
    file = place.file(*(f"ms: {ms}, number: {n}" for n, ms in ((2, 1), (3, 1), (4, 3000), (5, 1))))
    process = place.start("submit", file)
    said = read_until(process, lambda line: line.startswith("measured"))
    await_sign(place.signs, "measuring", 4)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all that the command started too
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "Traceback" not in rest
    sweep_id = place.sweep_id()
    assert f"interrupted; `sweep resume {sweep_id}` measures the rest" in rest
    assert "x cancelled: interrupted before it was measured" in rest
    told = {m[1] for m in re.finditer(r"^measured .*number=(\d)", said + rest, re.MULTILINE)}
    table = {m[1] for m in re.finditer(r"^ *\d+ +\d+ +(\d) ", rest, re.MULTILINE)}
    assert "1" in told and "4" not in told and told == table, "the table has all that was measured"
    place.expect_quiet()
    place.demand_nothing_running()
    assert place.statuses()["4"] == Counter(cancelled=1)
    assert place.runs("sweep")[0].info.status == "KILLED"

    place.signs.joinpath("quick").touch()  # from now on no call takes long
    ok(place.run("resume", sweep_id))
    for number, found in place.statuses().items():
        assert found["measured"] == 1, number
    assert place.runs("sweep")[0].info.status == "FINISHED"


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGHUP, signal.SIGHUP)], ids=["SIGTERM", "SIGHUP"])
def test_a_polite_kill_ends_in_good_order_too(place: Place, numbers: tuple[signal.Signals, ...]) -> None:
    """A shell and the kernel may both say that the terminal was closed."""
    process = place.start("submit", place.file("ms: 3000, number: 2"))
    await_sign(place.signs, "measuring", 2)
    for number in numbers:
        os.kill(process.pid, number)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "SIG" not in said and f"interrupted; `sweep resume {place.sweep_id()}`" in said
    place.expect_quiet()
    place.demand_nothing_running()


def test_a_terminal_that_is_closed_ends_a_sweep_in_good_order(place: Place) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, "submit", place.file("ms: 3000, number: 2")],
        cwd=place.folder,
        env=command.clean_environment() | {forkserver.ADDRESS: forkserver.start()} | place.environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    end = time.monotonic() + 120
    while (sign(place.signs, "measuring") or (0, 0))[0] != 2:
        assert process.poll() is None and time.monotonic() < end
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)  # the kernel tells the session of it
    assert process.wait(60) == 130
    place.expect_quiet()
    place.demand_nothing_running()
    assert place.runs("sweep")[0].info.status == "KILLED"


def test_ctrl_c_twice_is_out_at_once(place: Place) -> None:
    process = place.start("submit", place.file("ms: 3000, number: 2"))
    await_sign(place.signs, "measuring", 2)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
    process.communicate(timeout=3)
    assert process.returncode == 130
    place.expect_quiet()


@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_costs_a_variant_one_try_and_the_others_nothing(place: Place) -> None:
    file = place.file("ms: 1, number: 2, build_s: 4", "ms: 400, number: 3", "ms: 400, number: 4", "ms: 1, number: 5")
    process = place.start("submit", file)
    kill(await_sign(place.signs, "building", 2))
    to_kill = Counter({3: 1, 4: 2})
    while sum(to_kill.values()):
        found = sign(place.signs, "measuring")
        if found is not None and to_kill[found[0]]:
            to_kill[found[0]] -= 1
            kill(found[1])
        assert process.poll() is None
        time.sleep(0.02)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    measured = Counter(measured=1)
    assert place.statuses() == {"1": measured, "2": measured, "3": measured, "4": Counter(lost=1), "5": measured}
    lost = next(r for r in place.runs() if r.data.tags["status"] == "lost")
    assert "lost twice" in lost.data.tags["reason"]
    assert re.search(r"1 x lost: .*lost twice", said), said
    place.expect_quiet()


@pytest.mark.timeout(600)
def test_without_its_ray_a_sweep_ends_with_one_line_and_keeps_what_it_measured(place: Place) -> None:
    process = place.start("submit", place.file("ms: 1, number: 2", "ms: 3000, number: 3"))
    worker = await_sign(place.signs, "measuring", 3)
    raylet = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    killed_at = time.monotonic()
    kill(raylet)
    said, _ = process.communicate(timeout=60)
    assert time.monotonic() - killed_at < 30
    assert process.returncode == 3, said
    (error,) = [line for line in said.splitlines() if line.startswith("error: ")]
    sweep_id = place.sweep_id()
    assert f"`sweep resume {sweep_id}` measures the rest" in error
    assert "Traceback" not in said
    place.expect_quiet()
    place.demand_nothing_running()
    assert place.statuses()["1"] == Counter(measured=1)

    place.signs.joinpath("quick").touch()
    ok(place.run("resume", sweep_id))
    assert place.statuses() == {str(n): Counter(measured=1) for n in (1, 2, 3)}


@pytest.mark.timeout(600)
def test_two_sweeps_at_once_take_turns_and_are_both_recorded(place: Place) -> None:
    (place.folder / "mlflow.db").unlink()  # nor does either find a store
    files = [place.file(*(f"ms: 20, number: {first + n}" for n in range(3)), name=f"s{first}") for first in (10, 20)]
    both = [place.start("submit", file) for file in files]
    for process in both:
        said, _ = process.communicate(timeout=280)
        assert process.returncode == 0, said
        assert "locked" not in said and "Traceback" not in said
    assert not (place.signs / "overlap").exists(), "two kernels were timed at once"
    swept = {str(n) for n in (10, 11, 12, 20, 21, 22)}
    assert {n: found["measured"] for n, found in place.statuses().items() if n in swept} == dict.fromkeys(swept, 1)
    assert [r.info.status for r in place.runs("sweep")] == ["FINISHED"] * 2


def test_nothing_of_all_this_was_left_running() -> None:
    for place, end in QUIET_BY.items():
        while found := place.processes():
            assert time.monotonic() < end, f"still running, of {place.folder}: {found}"
            time.sleep(0.2)
