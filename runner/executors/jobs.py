"""Sweeps as jobs of a Ray cluster: Ray's job API starts, lists, follows and stops them. A sweep's driver runs on the head.

What is submitted is what runs: the current folder (the sweep file and a user's families) and this package travel with the
job.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import InfrastructureLost, NotFound

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

PREFIX = "sweep-"
SWEEP, NAME = "sweep_id", "sweep_name"  # a job's metadata
PACKAGES = ("runner", "kernels", "tracking")
LEFT_HERE = [".git", ".venv", "venv", "mlruns", "mlartifacts", "*.db", "__pycache__", ".runner"]
"""What does not travel, in gitignore's words; what the folder's own .gitignore names does not either."""

NOT_READY = 90.0
"""Seconds for which a head that was just started may not be able to run jobs yet."""


@dataclass(frozen=True)
class Job:
    """A sweep on a cluster. `status` is Ray's: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED."""

    id: str
    sweep_id: str
    name: str
    status: str
    submitted_at: str  # UTC, ISO 8601
    message: str
    exit_code: int | None


class Jobs:
    """`address` is where the head's dashboard listens: `http://head:8265`."""

    def __init__(self, address: str):
        from ray.exceptions import RayError
        from ray.job_submission import JobSubmissionClient

        self.address = address
        for chatty in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        try:
            self._client: JobSubmissionClient = JobSubmissionClient(address)
        except (ConnectionError, RuntimeError, RayError) as error:
            raise InfrastructureLost(
                f"no Ray takes jobs at {address}: {_line(error)} (`ray start --head --dashboard-host=HOST` "
                "starts one; its token is to be in RAY_AUTH_TOKEN, or in the file of RAY_AUTH_TOKEN_PATH)"
            ) from error

    def submit(self, sweep_id: str, name: str, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        """Run `sweep ARGUMENTS` on the head, as a job of this sweep, with some environment variables. None may be a secret."""
        attempt = sum(job.sweep_id == sweep_id for job in self.jobs())
        command = ["python", "-m", "runner.cli.sweep", *arguments, "--address", "auto"]
        root = Path(__file__).resolve().parent.parent.parent
        job: dict[str, Any] = {
            "entrypoint": shlex.join(command),
            "submission_id": f"{PREFIX}{sweep_id}" + (f"-{attempt}" if attempt else ""),
            "metadata": {SWEEP: sweep_id, NAME: name},
            "runtime_env": {
                "working_dir": str(Path.cwd()),
                "excludes": LEFT_HERE,
                "py_modules": [str(root / package) for package in PACKAGES],
                "env_vars": dict(variables),
            },
        }
        end = time.monotonic() + NOT_READY
        while True:
            try:
                self._client.submit_job(**job)
                return
            except (RuntimeError, ValueError) as error:
                if "No available agent" not in str(error) or time.monotonic() > end:
                    raise InfrastructureLost(f"{self.address} did not take the sweep: {_line(error)}") from error
                time.sleep(1)

    def jobs(self) -> list[Job]:
        """Newest first."""
        found = [job for job in self._client.list_jobs() if (job.metadata or {}).get(SWEEP)]
        return sorted((_job(job) for job in found), key=lambda job: job.submitted_at, reverse=True)

    def find(self, prefix: str) -> Job:
        """The latest job of the sweep whose id starts with `prefix`. Raises NotFound, with what matches."""
        matches = [job for job in self.jobs() if job.sweep_id.startswith(prefix)]
        if not matches:
            raise NotFound(f"no sweep {prefix!r} at {self.address}: `sweep list --address {self.address}` has them")
        ids = sorted({job.sweep_id for job in matches})
        if len(ids) > 1:
            raise NotFound(f"{prefix!r} may be {', '.join(ids)}: write more of it")
        return matches[0]

    def log(self, job: Job) -> str:
        """What a job has printed."""
        said: str = self._client.get_job_logs(job.id)
        return said

    def follow(self, job: Job) -> Iterator[str]:
        """What a job prints, from its beginning, until it ends."""
        lines: AsyncIterator[str] = self._client.tail_job_logs(job.id)
        loop = asyncio.new_event_loop()
        try:
            while True:
                try:
                    yield loop.run_until_complete(anext(lines))
                except StopAsyncIteration:
                    return
        finally:
            loop.close()

    def cancel(self, job: Job) -> bool:
        """Ask a job to end, as Ctrl-C does; whether it was running."""
        stopped: bool = self._client.stop_job(job.id)
        return stopped


def _job(found: Any) -> Job:
    started = datetime.fromtimestamp((found.start_time or 0) / 1e3, timezone.utc)
    return Job(
        id=found.submission_id,
        sweep_id=found.metadata[SWEEP],
        name=found.metadata[NAME],
        status=str(found.status.value),
        submitted_at=started.isoformat(timespec="seconds"),
        message=_line(found.message or ""),
        exit_code=found.driver_exit_code,
    )


def _line(said: object) -> str:
    lines = [line.strip() for line in str(said).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
