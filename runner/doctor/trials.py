"""What a sweep does, done once and small: a kernel is built and run, an artifact is stored and read back."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runner.doctor.finding import PATIENCE, Finding, said
from runner.doctor.machine import disks
from runner.errors import InfrastructureLost
from runner.records import Device, Protocol, TargetKind, Variant, Workload
from runner.targets.base import backend
from runner.targets.toolchain import cplus_compiler

if TYPE_CHECKING:
    from runner.executors.inline import InlineExecutor
    from tracking.store import Store


def kernels(cards: Iterable[Device]) -> Iterator[Finding]:
    """A small gemm, built for every target that this machine may serve, and run wherever there is a device."""
    from runner.executors.inline import InlineExecutor

    first = {card.kind: card for card in reversed(list(cards))}
    executor = InlineExecutor()
    try:
        yield cpu_target(executor)
        for kind, card in first.items():
            remedy = "PyPI's TileLang has no maca target: install MetaX's" if kind == "maca" else "see that nvcc fits the driver"
            yield kernel(executor, kind, card, remedy=remedy)
        if not first:
            yield cuda_without_card(executor)
    finally:
        executor.close()


def cpu_target(executor: InlineExecutor) -> Finding:
    """The C++ compiler, wherever TileLang looks for it, and what it builds. The other targets' host code needs it as well."""
    compiler = cplus_compiler()
    if compiler is None:
        remedy = "apt-get install g++ (or dnf install gcc-c++)"
        return Finding("cpu target", "fault", "no C++ compiler on PATH: nothing can be built", remedy)
    device = backend("cpu").devices()[0]
    return kernel(executor, "cpu", device, remedy=f"see that `{compiler}` compiles C++17 for this machine")


def cuda_without_card(executor: InlineExecutor) -> Finding:
    """Generating CUDA needs nvcc and no card: enough to look at sources for a cluster."""
    found = kernel(executor, "cuda", None, arch="sm_80")
    if found.state == "ok":
        return found
    remedy = "only if you want CUDA sources here: install the CUDA toolkit, or set CUDA_HOME"
    return Finding(found.topic, "note", found.text, remedy)


def kernel(
    executor: InlineExecutor, kind: TargetKind, device: Device | None, arch: str | None = None, remedy: str = ""
) -> Finding:
    """Build a 64x64x64 gemm, and run and check it where a device is given, as a sweep would."""
    from kernels.family import defaults, load_family
    from kernels.sources import code_hash
    from runner.build import BuildJob
    from runner.executors.base import run_one
    from runner.jobs.requests import BenchJob

    family, cpu = load_family("gemm"), kind == "cpu"
    workload = Workload(family.name, dict.fromkeys(family.dims, 64), "float32" if cpu else "float16")
    tile = {"block_M": 64, "block_N": 64, "block_K": 32, "threads": None if cpu else 128}
    protocol, target = Protocol(warmup=1, repeat=3), backend(kind).target(arch)
    toolchain = {"tilelang": metadata.version("tilelang")}
    variant = Variant(workload, {**defaults(family.knobs, kind), **tile}, target, code_hash(family.name), toolchain, protocol.key)
    what, started = f"a gemm of 64x64x64 {workload.dtype}", time.monotonic()
    done = run_one(executor, BuildJob(variant), PATIENCE)
    if done.failure is not None:
        return Finding(f"{kind} target", "fault", f"{what} cannot be built: {said(done.failure)}", remedy)
    if device is None:
        return Finding(f"{kind} target", "ok", f"{what} built for {target.arch} in {time.monotonic() - started:.1f} s")
    done = run_one(executor, BenchJob(variant, done.value, device, protocol), PATIENCE)
    if done.failure is not None:
        text = f"{what} was built, and cannot run on {device.model}: {said(done.failure)}"
        return Finding(f"{kind} target", "fault", text, "see that the driver, torch and TileLang are made for each other")
    text = f"{what} built, run and checked on {device.model} in {time.monotonic() - started:.1f} s"
    return Finding(f"{kind} target", "ok", text)


def store(uri: str | None) -> Iterator[Finding]:
    """MLflow reached and an artifact there and back; then the room on every disk that a sweep writes to."""
    from tracking.connection import without_password
    from tracking.store import Store

    places = {"the current folder": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    asked = "" if uri or "MLFLOW_TRACKING_URI" not in os.environ else " (from MLFLOW_TRACKING_URI)"
    found = Store(uri)
    started = time.monotonic()
    try:
        found.check()
    except InfrastructureLost as error:
        yield Finding("store", "fault", str(error) if "MLFLOW_TRACKING_URI" in str(error) else f"{error}{asked}")
    else:
        text = f"{without_password(found.uri)}{asked}: an artifact went there and back in {time.monotonic() - started:.1f} s"
        yield Finding("store", "ok", text)
        if folder := _artifact_folder(found):
            places["MLflow's artifacts"] = folder
    yield from disks(places)


def _artifact_folder(checked: Store) -> Path | None:
    """Where a store that was checked keeps artifacts, if that is a folder here."""
    from mlflow.entities import ViewType

    experiment = checked.client.search_experiments(ViewType.ALL, max_results=1)[0]
    location = urlsplit(experiment.artifact_location)
    return Path(location.path) if location.scheme in ("", "file") else None
