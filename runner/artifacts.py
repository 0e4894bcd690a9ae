"""A built kernel as bytes: TileLang's own cache entry, packed, so that it is built once and loaded anywhere."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kernels.family import load_family
from runner.errors import FailureKind, JobFailed
from runner.records import Artifact, Variant
from runner.targets.base import backend


def compile_kernel(variant: Variant, search: tuple[str, ...] = ()) -> Any:
    """TileLang's compiled kernel for a variant, from the cache folder in use where it is there.

    The variant's environment knobs are set meanwhile: some shape the code, some TileLang's cache key. `search` are
    folders in which a user's own family module is looked for.
    """
    import tilelang

    family = load_family(variant.workload.family, search)
    program = family.program(variant.workload, variant.config, variant.target)
    options = backend(variant.target.kind).compile_options(variant.target)
    with environment({**variant.env, "TILELANG_DISABLE_CACHE": "0"}):  # an artifact is a cache entry
        return tilelang.compile(program, pass_configs=dict(variant.pass_configs) or None, **options)


@contextmanager
def cache_in(folder: str) -> Iterator[None]:
    """Make TileLang keep its cache in `folder`, and in nothing else, while the block runs.

    Its cache in memory is emptied: the key there knows nothing of environment knobs, so in a warm process one variant
    would be given another's kernel.
    """
    import tilelang.cache
    from tilelang import env

    for cache in getattr(tilelang.cache, "_dispatch_map", {}).values():
        cache._memory_cache.clear()
    before = env.TILELANG_CACHE_DIR
    env.TILELANG_CACHE_DIR = folder
    try:
        yield
    finally:
        env.TILELANG_CACHE_DIR = before


def pack(root: Path) -> bytes:
    """The one entry of a cache folder as bytes, with its path below it. Raises JobFailed where there is none."""
    entries = _entries(root)
    if len(entries) != 1:
        raise JobFailed(FailureKind.COMPILE_ERROR, f"TileLang left {len(entries)} cache entries, so the build cannot be moved")
    entry = entries.pop()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        tar.add(entry, arcname=entry.relative_to(root))
    return buffer.getvalue()


def unpack(blob: bytes, root: Path) -> None:
    """The inverse of `pack`; refuses names that would leave `root`."""
    with tarfile.open(fileobj=io.BytesIO(blob), mode="r:gz") as tar:
        for member in tar.getmembers():
            path = Path(member.name)
            if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
                raise JobFailed(FailureKind.LAUNCH_ERROR, f"the artifact holds {member.name!r}, which does not belong in one")
        tar.extractall(root)


def load_kernel(variant: Variant, artifact: Artifact, search: tuple[str, ...] = ()) -> Any:
    """The kernel of an artifact, without compiling: TileLang finds it in a cache that holds this entry alone."""
    with tempfile.TemporaryDirectory(prefix="runner-load-") as folder, cache_in(folder):
        unpack(artifact.blob, Path(folder))
        before = _entries(Path(folder))
        kernel = compile_kernel(variant, search)
        if _entries(Path(folder)) != before:
            raise JobFailed(
                FailureKind.LAUNCH_ERROR,
                "TileLang did not recognise the built kernel and compiled it again:"
                " build and bench differ in TileLang's version or build",
            )
    return kernel


def _entries(root: Path) -> set[Path]:
    return {path.parent for path in root.rglob("params.*")}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
