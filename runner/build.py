"""Variant -> artifact. Runs in a child process that sees no device; the target is explicit, never "auto"."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.artifacts import cache_in, compile_kernel, pack
from runner.errors import FailureKind, JobFailed
from runner.records import Artifact, Variant
from runner.targets.base import backend
from runner.targets.source import strip

LOG_TAIL = 16_384


@dataclass(frozen=True)
class BuildJob:
    """`search` are folders in which a user's own family module is looked for."""

    variant: Variant
    search: tuple[str, ...] = ()


def build(job: BuildJob) -> Artifact:
    """Compile one variant and return its artifact. Raises JobFailed(COMPILE_ERROR) with the compiler's reason."""
    variant = job.variant
    with tempfile.TemporaryDirectory(prefix="runner-build-") as folder, _environment(variant.env), cache_in(folder):
        started = time.perf_counter()
        try:
            kernel = compile_kernel(variant, job.search)
        except JobFailed:
            raise
        except Exception as error:
            print(error, file=sys.stderr)
            raise JobFailed(FailureKind.COMPILE_ERROR, compiler_reason(str(error)) or type(error).__name__) from error
        seconds = time.perf_counter() - started
        entry = getattr(kernel, "_tilelang_cache_path", None)
        if entry is None or not Path(entry).is_dir():
            raise JobFailed(FailureKind.COMPILE_ERROR, "TileLang left no cache entry, so the build cannot be moved")
        source = kernel.get_kernel_source()
        blob = pack(Path(folder), Path(entry))
    target = backend(variant.target.kind)
    mma = target.mma(source)
    return Artifact(
        variant_id=variant.id,
        source=source,
        source_hash=hashlib.sha256(strip(source).encode()).hexdigest(),
        blob=blob,
        sha256=hashlib.sha256(blob).hexdigest(),
        compile_seconds=seconds,
        mma_count=mma[0] if mma else None,
        mma_instruction=mma[1] if mma else "",
    )


def compiler_reason(message: str) -> str:
    """The one line of a compiler's message that says why: its last that speaks of an error, else its last."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and set(line.strip()) - set("|^~ ")]
    telling = [line for line in lines if any(w in line.lower() for w in ("error:", "fatal:", "check failed", "cannot", "exceed"))]
    return (telling or lines or [""])[-1][:500]


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """The variant's environment knobs, for as long as its build runs."""
    before = {k: os.environ.get(k) for k in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
