"""A family's code is known by all that it comes from: whatever of that is edited, the hash is another one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from kernels.family import load_family
from kernels.sources import code_hash, sources

pytestmark = pytest.mark.usefixtures("imports_as_they_were")

FAMILY = """\
{imports}


class Mine{base}:
    name = doc = baseline_name = "mine"
    dims, dtypes, knobs = ("N",), ("float32",), ()

    def program(self, *_):
{body}

    unfit = inputs = output = pack = baseline = flops = program


MINE = Mine()
"""


def family(imports: str = "", body: str = "pass", base: str = "") -> str:
    return FAMILY.format(imports=imports, body=f"        {body}", base=base)


GEMM = "from kernels.gemm import Gemm\n\n\nclass Mine(Gemm):\n    name = 'mine'\n\n\nMINE = Mine()\n"
HIDDEN_BASE = "import importlib\nBase = importlib.import_module('ba' + 'se.plain').Base"

CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "the family's own file": ("mine:MINE", {"mine.py": family()}, "mine.py"),
    "a constant of another file": (
        "mine:MINE",
        {"mine.py": family("from helper import TILE"), "helper.py": "TILE = (16, 16)"},
        "helper.py",
    ),
    "imported inside a method": ("mine:MINE", {"mine.py": family(body="import deep"), "deep.py": "raise SystemExit"}, "deep.py"),
    "a module of a package, inside a method": (
        "mine:MINE",
        {"mine.py": family(body="from parts import inner"), "parts/inner.py": ""},
        "parts/inner.py",
    ),
    "a module by its whole name": ("mine:MINE", {"mine.py": family("import a.b.c"), "a/b/c.py": ""}, "a/b/c.py"),
    "the package above a module": (
        "mine:MINE",
        {"mine.py": family("import a.b.c"), "a/__init__.py": "", "a/b/__init__.py": "", "a/b/c.py": ""},
        "a/b/__init__.py",
    ),
    "all of a package": (
        "mine:MINE",
        {"mine.py": family("from parts import *"), "parts/__init__.py": "__all__ = ['inner']", "parts/inner.py": ""},
        "parts/inner.py",
    ),
    "what is imported by what is imported": (
        "mine:MINE",
        {"mine.py": family("import one"), "one.py": "def f():\n    import two", "two.py": "import one"},
        "two.py",
    ),
    "a file beside it, by a dot": (
        "mine.fam:MINE",
        {"mine/__init__.py": "", "mine/fam.py": family("from . import near"), "mine/near.py": ""},
        "mine/near.py",
    ),
    "a file above it, by two dots": (
        "mine.deep.fam:MINE",
        {"mine/deep/fam.py": family("from ..near import X"), "mine/near.py": "X = 1", "mine/deep/__init__.py": ""},
        "mine/near.py",
    ),
    "its own package's other file": (
        "mine:MINE",
        {"mine/__init__.py": family("from .near import X"), "mine/near.py": "X = 1"},
        "mine/near.py",
    ),
    "a base class in another folder": (
        "mine:MINE",
        {"mine.py": family("from base.plain import Base", base="(Base)"), "base/plain.py": "class Base:\n    pass"},
        "base/plain.py",
    ),
    "a base class that no import shows": (
        "mine:MINE",
        {"mine.py": family(HIDDEN_BASE, base="(Base)"), "base/plain.py": "class Base:\n    pass"},
        "base/plain.py",
    ),
    "the file of the instance": (
        "point:MINE",
        {"point.py": "from mine import Mine\nMINE = Mine()", "mine.py": family()},
        "point.py",
    ),
    "the file of the class": (
        "point:MINE",
        {"point.py": "import importlib\nMINE = importlib.import_module('mi' + 'ne').MINE", "mine.py": family()},
        "mine.py",
    ),
    "another of the user's folders": ("mine:MINE", {"mine.py": family("import far"), "second/far.py": ""}, "second/far.py"),
    "imported for the types alone": (
        "mine:MINE",
        {"mine.py": family("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import far"), "far.py": ""},
        "far.py",
    ),
    "a base class of ours": ("mine:MINE", {"mine.py": GEMM}, "mine.py"),
    "an installed family": (
        "vendor.fam:MINE",
        {"site-packages/vendor/fam.py": family("from .near import X"), "site-packages/vendor/near.py": "X = 1"},
        "site-packages/vendor/near.py",
    ),
}


def write(folder: Path, files: dict[str, str]) -> tuple[str, ...]:
    """The files, and the folders in which modules are then looked for."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tuple(str(folder / name) for name in ("", "second", "site-packages"))


@pytest.mark.parametrize("kernel, files, edited", CASES.values(), ids=CASES)
def test_whatever_a_family_comes_from_is_in_the_hash(tmp_path: Path, kernel: str, files: dict[str, str], edited: str) -> None:
    search = write(tmp_path, {**files, "unused.py": "X = 1"})
    before = code_hash(kernel, search)
    (tmp_path / "unused.py").write_text("X = 2")
    assert code_hash(kernel, search) == before
    with (tmp_path / edited).open("a") as file:
        file.write("\nEDITED = True\n")
    assert code_hash(kernel, search) != before
    assert len(before) == 12 and int(before, 16) >= 0


def test_nothing_is_imported_for_the_hash(tmp_path: Path) -> None:
    search = write(tmp_path, {"mine.py": family(body="import deep.inner"), "deep/__init__.py": "1 / 0", "deep/inner.py": "def"})
    assert code_hash("mine:MINE", search) and "deep" not in sys.modules


def test_the_hash_is_the_same_in_every_folder(tmp_path: Path) -> None:
    """A sweep is submitted here and runs on a cluster, where the folder is another one."""
    files = {"mine.py": family("import helper"), "helper.py": "X = 1"}
    found = set()
    for name in ("one", "two"):
        path = list(sys.path)
        found.add(code_hash("mine:MINE", write(tmp_path / name, files)))
        sys.path[:] = path
        del sys.modules["mine"], sys.modules["helper"]
    assert len(found) == 1


def test_gemm_comes_from_its_programs_and_layouts_and_from_no_part_of_the_engine() -> None:
    expected = {"kernels", "kernels.gemm", "kernels.gemm_program", "kernels.gemm_hopper", "kernels.layouts"}
    expected |= {"kernels.mm", "kernels.optional"}
    assert set(sources(["kernels.gemm"], "kernels.gemm")) == expected


def test_a_family_that_inherits_from_ours_follows_ours(tmp_path: Path) -> None:
    load_family("mine:MINE", write(tmp_path, {"mine.py": GEMM}))
    assert {"mine", "kernels.gemm", "kernels.gemm_program", "kernels.layouts"} <= set(sources(["mine"], "mine"))


def test_installed_packages_and_what_says_what_a_family_is_do_not_count(tmp_path: Path) -> None:
    used = "import json, yaml, vendor\nfrom kernels.family import Knob\nfrom runner.records import Target"
    search = write(tmp_path, {"mine.py": family(used), "site-packages/vendor.py": "X = 1"})
    before = code_hash("mine:MINE", search)
    assert set(sources(["mine"], "mine")) == {"mine"}
    (tmp_path / "site-packages/vendor.py").write_text("X = 2")
    assert code_hash("mine:MINE", search) == before


def test_a_copy_of_our_package_beside_the_family_is_not_what_it_imports(tmp_path: Path) -> None:
    """`from kernels.gemm import …` gives ours, whatever lies in the current folder."""
    search = write(tmp_path, {"mine.py": GEMM})
    before = code_hash("mine:MINE", search)
    shutil.copytree(Path(sys.modules["kernels"].__path__[0]), tmp_path / "kernels")
    (tmp_path / "kernels/layouts.py").write_text("X = 1")
    assert code_hash("mine:MINE", search) == before
