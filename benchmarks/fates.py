"""What becomes of the variants of the soak: builds and measurements that do nothing, fail, or take their process along.

Apart from the soak itself, since the children import this at every start.
"""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from runner.build import BuildJob
from runner.errors import FailureKind, JobFailed
from runner.jobs.requests import BaselineJob, BenchJob, PairJob, ProveJob
from runner.records import Artifact, Baseline, Check, Measurement, PairSession, Proof, Protocol, Status, Variant

FATE = "fate"
"""The knob that names a variant's fate."""

SHARE = 0.05
EXPECTED = {
    "fine": Status.MEASURED,
    "hang": Status.HANG,
    "crash by signal": Status.CRASH,
    "exit": Status.CRASH,
    "compile error": Status.COMPILE_ERROR,
    "compile timeout": Status.COMPILE_TIMEOUT,
    "launch error": Status.LAUNCH_ERROR,
    "wrong result": Status.WRONG_RESULT,
    "lost": Status.LOST,
    "lost once": Status.MEASURED,
}
"""What a variant of each fate must end as."""

PROTOCOL = Protocol(10, 50)
SOURCE = 'extern "C" void gemm_kernel() {}\n' * 60
CHECK = Check(1, "before timing", 0.0)
BLOB = b"\x7fELF" * 10_000
FOR_EVER = 600.0


def draw(variants: int, seed: int) -> list[str]:
    """A fate each, every failure for about `SHARE` of the variants; the first is fine, being the base."""
    failures = [fate for fate in EXPECTED if fate != "fine"]
    weights = [1 - SHARE * len(failures), *(SHARE for _ in failures)]
    return ["fine", *random.Random(seed).choices(["fine", *failures], weights, k=variants - 1)]


def counts(fates: Sequence[str]) -> dict[str, int]:
    return dict(Counter(fates).most_common())


def build(job: BuildJob) -> Artifact:
    fate = job.variant.config[FATE]
    if fate == "compile error":
        raise JobFailed(FailureKind.COMPILE_ERROR, "error: no such instruction")
    if fate == "compile timeout":
        time.sleep(FOR_EVER)
    source = f"// {job.variant.id}\n{SOURCE}"
    source_hash, blob_hash = (hashlib.sha256(data).hexdigest() for data in (source.encode(), BLOB))
    return Artifact(job.variant.id, source, source_hash, BLOB, blob_hash, compile_seconds=0.1, mma_count=1, mma_instruction="mma")


def measure(job: BenchJob) -> Measurement:
    _meet(str(job.variant.config[FATE]), job.variant)
    samples, beside = _samples(job.variant), (1.5,) * 8
    return Measurement(job.device, PROTOCOL.key, samples, (CHECK,), versions={"torch": "0"}, reference_ms=beside)


def measure_baseline(job: BaselineJob) -> Baseline:
    return Baseline(job.device, "torch.mm", tuple(1.5 + i / 1000 for i in range(PROTOCOL.repeat)))


def measure_pair(job: PairJob) -> PairSession:
    return PairSession(_samples(job.candidate)[: job.pairs], _samples(job.reference)[: job.pairs], (CHECK,))


def prove(job: ProveJob) -> Proof:
    return Proof((CHECK,), job.launches, job.launches)


def _meet(fate: str, variant: Variant) -> None:
    """Do what a bad kernel, or the end of its worker, would do here."""
    if fate == "hang":
        time.sleep(FOR_EVER)
    elif fate == "crash by signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif fate == "exit":
        os._exit(3)
    elif fate == "launch error":
        raise JobFailed(FailureKind.LAUNCH_ERROR, "an illegal memory access was encountered", sticky=True)
    elif fate == "wrong result":
        raise JobFailed(FailureKind.WRONG_RESULT, "off by 3 at [0, 0]")
    elif fate == "lost" or (fate == "lost once" and _first_time(variant)):
        os.kill(os.getppid(), signal.SIGKILL)  # the worker that this child belongs to
        time.sleep(FOR_EVER)


def _first_time(variant: Variant) -> bool:
    """Whether this is a variant's first try, by a file in the soak's folder."""
    path = Path(os.environ["SOAK_FOLDER"], variant.id)
    if path.exists():
        return False
    path.touch()
    return True


def _samples(variant: Variant) -> tuple[float, ...]:
    start = 1.0 + int(variant.config["block_M"] or 0) % 7 / 10
    return tuple(start + i / 1000 for i in range(PROTOCOL.repeat))
