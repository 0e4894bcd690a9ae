"""What makes a kernel of generated source on this machine: compilers and what the environment tells them. Part of an identity."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from runner.targets.vendor_tool import ask

OF_TILELANG = ("TILELANG_LAYOUT_COST_MODEL",)
"""Variables by which TileLang generates other code, on every target. TL_TEMPLATE_PATH is none: TileLang sets it when imported."""


def cplus_compiler() -> str | None:
    """The C++ compiler that TileLang calls (`tilelang.contrib.cc.get_cplus_compiler`); None where there is none."""
    return os.environ.get("CXX") or os.environ.get("CC") or next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def nvcc() -> str | None:
    """The nvcc that TileLang calls (`tilelang.env._find_cuda_home`); None where there is none."""
    if home := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return f"{home}/bin/nvcc" if Path(home, "bin/nvcc").exists() else None
    usual = "/usr/local/cuda/bin/nvcc"
    return shutil.which("nvcc") or _nvcc_of_pip() or (usual if Path(usual).exists() else None)


def _nvcc_of_pip() -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        files = metadata.files("nvidia-cuda-nvcc") or ()
        return next((str(file.locate()) for file in files if file.name == "nvcc"), None)
    return None


def mxcc() -> str | None:
    """MetaX's compiler, in the toolkit that MACA_PATH names or on PATH; None where there is none."""
    home = os.environ.get("MACA_PATH", "/opt/maca")
    beside = f"{home}/mxgpu_llvm/bin/mxcc"
    return beside if Path(beside).exists() else shutil.which("mxcc")


def told(compiler: str | None) -> str:
    """What a compiler says to `--version`; empty where there is none, or it does not say."""
    try:
        return ask([compiler, "--version"]).stdout if compiler else ""
    except (OSError, subprocess.SubprocessError):
        return ""


def first_line(said: str) -> str:
    return next((line.strip() for line in said.splitlines() if line.strip()), "")


def settings(names: Iterable[str] = (), prefix: str = "") -> dict[str, str]:
    """Those of these environment variables, and of all that begin with `prefix`, which are set and not empty."""
    asked = {*OF_TILELANG, *names, *(name for name in os.environ if prefix and name.startswith(prefix))}
    return {name: os.environ[name] for name in sorted(asked) if os.environ.get(name)}
