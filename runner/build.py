"""Variant -> artifact. Runs in a child process that sees no device; the target is explicit, never "auto"."""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from runner.artifacts import cache_in, compile_kernel, environment, pack
from runner.errors import FailureKind, JobFailed
from runner.process.worker import first_line
from runner.records import Artifact, Variant
from runner.targets.base import backend

MESSAGE_TAIL = 4096
"""Characters of an error's message that are printed: more could push what the compiler said out of the log's tail."""

_ERROR = re.compile(r"\b(?:error|fatal)[^\S\n]*:[^\S\n]*\S.*", re.IGNORECASE)


@dataclass(frozen=True)
class BuildJob:
    """`search` are folders in which a user's own family module is looked for, `memory_gb` is as in `Allowance`."""

    variant: Variant
    search: tuple[str, ...] = ()
    memory_gb: float | None = None


def build(job: BuildJob) -> Artifact:
    """Compile one variant and return its artifact. Raises JobFailed(COMPILE_ERROR) with the compiler's reason."""
    variant, target = job.variant, backend(job.variant.target.kind)
    with tempfile.TemporaryDirectory(prefix="runner-build-") as folder, cache_in(folder), environment(target.build_environment):
        started = time.perf_counter()
        try:
            kernel = compile_kernel(variant, job.search)
        except JobFailed:
            raise
        except Exception as error:
            print(str(error)[-MESSAGE_TAIL:], file=sys.stderr)
            said = compiler_error(str(error)) or f"{type(error).__name__}: {first_line(error)}"[:500]
            raise JobFailed(FailureKind.COMPILE_ERROR, said) from error
        seconds = time.perf_counter() - started
        # TileLang's strings are of a type of its own: whoever got one would have to import it, and torch with it.
        source, launch = str(kernel.get_kernel_source()), str(kernel.get_host_source() or "")
        blob = pack(Path(folder))
        evidence = target.evidence(source, launch, Path(folder))
    mma = target.mma(source)
    return Artifact(
        variant_id=variant.id,
        source=source,
        source_hash=source_hash(variant, source, launch),
        blob=blob,
        sha256=hashlib.sha256(blob).hexdigest(),
        compile_seconds=seconds,
        mma_count=mma[0] if mma else None,
        mma_instruction=mma[1] if mma else "",
        evidence=evidence,
    )


def compiler_error(text: str) -> str:
    """The first error that a compiler names, from the word on: what is before it is a temporary file's name. Empty: none."""
    found = _ERROR.search(text)
    return found.group()[:500].strip() if found else ""


def source_hash(variant: Variant, source: str, launch: str) -> str:
    """Equal where two variants are one kernel: same source and launch code, and the same settings for the compiler behind it.

    Pass configs and environment knobs count even where they leave the source alone, since some are compiler flags
    (`tl.enable_fast_math`). String literals count, since inline assembly is one.
    """
    return hashlib.sha256(json.dumps([source, launch, variant.pass_configs, variant.env], sort_keys=True).encode()).hexdigest()
