"""What is installed: Python, the packages, and whether our own names still lead to us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

import runner
from runner.doctor.finding import PATIENCE, Finding, said
from runner.errors import JobFailed
from runner.process.child import Child

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "sweep-runner"

PYTHONS = ((3, 10), (3, 12))
"""The oldest and the newest Python that are supported."""

TESTED = {"tilelang": "0.1.15", "ray": "2.60.0", "mlflow": "3.17.2", "torch": "2.13.0", "click": "8.5.0"}

AGAIN = f"pip install --force-reinstall --no-deps {DISTRIBUTION}"

NAMES = ("runner", "kernels", "tracking")
"""Our top-level packages. Hugging Face's `kernels` is one distribution that wants a name of these too."""


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """Whether a Python is one of those supported."""
    oldest, newest = (".".join(map(str, v)) for v in PYTHONS)
    text = ".".join(map(str, version))
    if PYTHONS[0] <= version[:2] <= PYTHONS[1]:
        return Finding("Python", "ok", text)
    return Finding("Python", "fault", f"{text} is not supported", f"make an environment with Python {oldest} to {newest}")


def packages() -> Iterator[Finding]:
    """Every package that the installed distribution asks for, by its own metadata."""
    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in metadata.requires(DISTRIBUTION) or ()]
    except metadata.PackageNotFoundError:
        yield Finding(DISTRIBUTION, "note", "not installed, used from its folder: lower limits unknown", "pip install -e .")
        needed = [Requirement(name) for name in TESTED]
    for requirement in needed:
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield package(requirement)


def package(requirement: Requirement) -> Finding:
    """One package against what is required and what was tested. A vendor's `2.8.0+metax3.5` counts as 2.8.0."""
    from packaging.version import InvalidVersion, Version

    name, tested = requirement.name, TESTED.get(requirement.name)
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding(name, "fault", "not installed", f"pip install '{requirement}'")
    try:
        version = Version(installed)
    except InvalidVersion:
        return Finding(name, "note", f"{installed} is no version number that can be compared with {requirement.specifier}")
    if not requirement.specifier.contains(version.base_version, prereleases=True):
        return Finding(name, "fault", f"{installed} is not {requirement.specifier}", f"pip install '{requirement}'")
    if tested and version.public != tested:
        return Finding(name, "note", f"{installed}, tested with {tested}", "nothing to do while it works")
    return Finding(name, "ok", installed)


def names() -> Iterator[Finding]:
    """Whether our packages' names lead to our packages in the processes that jobs run in."""
    home = Path(runner.__file__).resolve().parents[1]
    child = Child()
    try:
        found = child.run(_locate, deadline=PATIENCE)
    except JobFailed as failure:
        yield Finding("names", "fault", f"a job's process in {Path.cwd()} does not find us: {said(failure)}", AGAIN)
        return
    finally:
        child.close()
    wrong = 0
    for name, folder in found.items():
        strangers = _strangers(name, Path(folder))
        if Path(folder) == home / name and not strangers:
            continue
        wrong += 1
        remove = f"pip uninstall {' '.join(strangers)}" if strangers else f"rename {folder}, or leave it out of PYTHONPATH"
        again = f", then {AGAIN}" if Path(folder) == home / name else ""
        owner = f", of the distribution {' and '.join(strangers)}" if strangers else ""
        yield Finding("names", "fault", f"`import {name}` gives {folder}{owner}, in the place of ours", remove + again)
    if not wrong:
        yield Finding("names", "ok", f"{', '.join(NAMES)} are those in {home}")


def _locate() -> dict[str, str]:
    """Where the import system finds our names, without importing them."""
    found = {}
    for name in NAMES:
        spec = util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"no package {name}")
        folder = next(iter(spec.submodule_search_locations or ()), spec.origin)
        found[name] = str(Path(folder or "").resolve())
    return found


def _strangers(name: str, folder: Path) -> list[str]:
    """The distributions other than ours that installed a package of this name into this folder."""
    from packaging.utils import canonicalize_name

    others = {d for d in metadata.packages_distributions().get(name, ()) if canonicalize_name(d) != DISTRIBUTION}
    return sorted(d for d in others if Path(str(metadata.distribution(d).locate_file(name))).resolve() == folder)
