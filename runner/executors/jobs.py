"""Commands as jobs of a Ray cluster: Ray's job API starts, lists, follows and stops them. A job's driver runs on the head.

What is submitted is what runs: the current folder (the sweep file and a user's families) and this package travel with the
job.
"""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.artifacts import environment
from runner.errors import InfrastructureLost, NotFound

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

JOB = "SWEEP_RUNNER_JOB_ID"
"""Environment variable of a job: its own id. Who has it was submitted from somewhere else."""

SWEEP, NAME = "sweep_id", "sweep_name"  # a job's metadata, where it is a sweep's
STARTS = "Running entrypoint for job "
"""How the line begins that Ray writes into a job's log before what the job prints; above it are lines of Ray's own."""

START = "import sys; sys.path = [p for p in sys.path if p]; from runner.cli.{program} import main; main(prog_name='{program}')"
"""What a job runs. With -m, files of the job's folder would come before ours, a user's `kernels/` among them."""

PACKAGES = ("runner", "kernels", "tracking")
LEFT_HERE = [".git", ".venv", "venv", "mlruns", "mlartifacts", "*.db", "__pycache__", ".runner"]
"""What does not travel, in gitignore's words; what the folder's own .gitignore names does not either."""

NOT_READY = 90.0
"""Seconds for which a head that was just started may not be able to run jobs yet."""

AGAIN = 0.7  # seconds between two looks at a job
RATE = 1e6  # bytes a second that looking may take on top: Ray hands out a log from its beginning
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass(frozen=True)
class Job:
    """A job on a cluster. `status` is Ray's: PENDING, RUNNING, or one of those that it ended with."""

    id: str
    sweep_id: str  # this and the name are empty where it is no sweep's
    name: str
    status: str
    submitted_at: str  # UTC, ISO 8601
    message: str
    exit_code: int | None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


def is_cluster(address: str | None) -> bool:
    """Whether an address is that of a cluster's job API, and not of its head itself."""
    return (address or "").startswith(("http://", "https://"))


def new_job_id(what: str) -> str:
    """`what` and four digits more: the same may be asked again, and Ray takes no id twice."""
    return f"{re.sub('[^0-9a-z]+', '-', what)}-{secrets.token_hex(2)}"


class Jobs:
    """`address` is where the head's dashboard listens: `http://head:8265`.

    Every method raises InfrastructureLost, with one line, when the cluster does not answer.
    """

    def __init__(self, address: str):
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient

        self.address = address
        for chatty in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        try:
            with environment({"RAY_API_SERVER_ADDRESS": address}):  # else RAY_ADDRESS would be taken instead
                self._client: JobSubmissionClient = JobSubmissionClient(address)
        except (OSError, RuntimeError, RayError) as error:
            raise InfrastructureLost(
                f"no Ray takes jobs at {address}: {_line(error)} (`ray start --head --dashboard-host=HOST` "
                "starts one; its token is to be in RAY_AUTH_TOKEN, or in the file of RAY_AUTH_TOKEN_PATH)"
            ) from error

    def submit_sweep(self, sweep_id: str, name: str, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
        """`sweep ARGUMENTS` as a job of this sweep: the job's id."""
        job_id = new_job_id(f"sweep-{sweep_id}")
        self.submit(job_id, ["sweep", *arguments], variables, {SWEEP: sweep_id, NAME: name})
        return job_id

    def submit(
        self, job_id: str, command: Sequence[str], variables: Mapping[str, str], metadata: Mapping[str, str] | None = None
    ) -> None:
        """Run `sweep …` or `runner …` on the head, with some environment variables. None may be a secret."""
        program, *arguments = command
        root = Path(__file__).resolve().parent.parent.parent
        job: dict[str, Any] = {
            "entrypoint": shlex.join(["python", "-c", START.format(program=program), *arguments, "--address", "auto"]),
            "submission_id": job_id,
            "metadata": dict(metadata or {}),
            "runtime_env": {
                "working_dir": str(Path.cwd()),
                "excludes": LEFT_HERE,
                "py_modules": [str(root / package) for package in PACKAGES],
                "env_vars": {**variables, JOB: job_id},
            },
        }
        end = time.monotonic() + NOT_READY
        while True:
            try:
                self._client.submit_job(**job)
                return
            except (OSError, RuntimeError, ValueError) as error:
                if "No available agent" not in str(error) or time.monotonic() > end:
                    raise InfrastructureLost(f"{self.address} did not take the job: {_line(error)}") from error
                time.sleep(1)

    def sweeps(self) -> list[Job]:
        """The jobs of sweeps, newest first."""
        with self._answering():
            found = [job for job in map(_job, self._client.list_jobs()) if job.sweep_id]
        return sorted(found, key=lambda job: job.submitted_at, reverse=True)

    def latest(self, prefix: str) -> Job | None:
        """The latest job of the sweep whose id starts with `prefix`. Raises NotFound where it may be several."""
        matches = [job for job in self.sweeps() if job.sweep_id.startswith(prefix)]
        ids = sorted({job.sweep_id for job in matches})
        if len(ids) > 1:
            raise NotFound(f"{prefix!r} may be {', '.join(ids)}: write more of it")
        return matches[0] if matches else None

    def look(self, job_id: str) -> Job:
        """How a job stands."""
        with self._answering():
            return _job(self._client.get_job_info(job_id))

    def read(self, job_id: str) -> tuple[Job, str]:
        """How a job stands, and what it has printed; of one that never came to start, what Ray said."""
        job = self.look(job_id)  # first: the log of a job that has ended is whole
        with self._answering():
            said: str = self._client.get_job_logs(job_id)
        before, starts, own = said.partition(STARTS)
        return job, own.partition("\n")[2] if starts else before if job.ended else ""

    def follow(self, job_id: str, show: Callable[[str], None]) -> Job:
        """Show each line that a job prints, from its beginning, until it ends; then how it ended."""
        shown = 0
        while True:
            job, said = self.read(job_id)
            whole = said if job.ended else said[: said.rfind("\n") + 1]
            for line in whole[shown:].splitlines():
                show(line)
            if job.ended:
                return job
            shown = len(whole)
            time.sleep(AGAIN + len(said) / RATE)

    def cancel(self, job_id: str) -> bool:
        """Ask a job to end, as Ctrl-C does; whether it was running."""
        with self._answering():
            stopped: bool = self._client.stop_job(job_id)
        return stopped

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        from ray.exceptions import RayError

        try:
            yield
        except OSError as error:  # also whatever requests raises
            raise InfrastructureLost(f"the cluster at {self.address} does not answer") from error
        except (RuntimeError, RayError) as error:
            raise InfrastructureLost(f"{self.address}: {_line(error)}") from error


def _job(found: Any) -> Job:
    started = datetime.fromtimestamp((found.start_time or 0) / 1e3, timezone.utc)
    return Job(
        id=found.submission_id or "",
        sweep_id=(found.metadata or {}).get(SWEEP, ""),
        name=(found.metadata or {}).get(NAME, ""),
        status=str(found.status.value),
        submitted_at=started.isoformat(timespec="seconds"),
        message=_killed(found.driver_exit_code) or _line(found.message or ""),
        exit_code=found.driver_exit_code,
    )


def _killed(code: int | None) -> str:
    """Which signal a driver's exit code tells of, directly or as its shell gives it on; empty where it tells of none."""
    number = -code if code and code < 0 else (code or 0) - 128
    return f"its driver was killed by {signal.Signals(number).name}" if number in set(signal.Signals) else ""


def _line(said: object) -> str:
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
