"""The house rules that a machine can check: format, lint, types, layers, and that the documents say what runs."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.command import ROOT

CHECKS = {
    "format": ("-m", "ruff", "format", "--check", "."),
    "lint": ("-m", "ruff", "check", "."),
    "types": ("-m", "mypy"),
    "layers": ("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_code_passes(name: str) -> None:
    done = subprocess.run([sys.executable, *CHECKS[name]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ci_runs_the_line_that_the_readme_gives() -> None:
    line = (ROOT / ".ci" / "run").read_text().strip().splitlines()[-1]
    assert line in (ROOT / "README.md").read_text()


def test_what_is_pinned_is_what_the_project_asks_for() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    asked = {name.lower() for name in re.findall(r'^    "([A-Za-z0-9-]+)(?:\[\w+\])?[">]', project, re.MULTILINE)}
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    assert asked <= pinned, f"not pinned: {sorted(asked - pinned)}"


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))
def test_links_between_documents_lead_somewhere(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{page} links to {target}"


def test_every_sweep_can_be_planned_where_its_question_means_something() -> None:
    from kernels.family import load_family
    from runner.errors import SpecError
    from runner.spec import load_spec
    from runner.targets.base import BACKENDS, backend

    planned: dict[str, set[str]] = {kind: set() for kind in BACKENDS}
    paths = sorted((ROOT / "sweeps").glob("*.yaml"))
    for path in paths:
        for kind in BACKENDS:
            try:
                spec = load_spec(path, lambda _, kind=kind: backend(kind).kind, load_family)
            except SpecError as error:
                assert f"means nothing on the {kind} target" in str(error)
                continue
            planned[kind].add(path.stem)
            assert spec.question, f"{path.name} says what it asks"
    assert planned["cuda"] == {path.stem for path in paths}
    assert planned["cuda"] - planned["maca"] == {"hopper"}, "it asks about blocks that stay, which only Hopper has use for"
    assert planned["cpu"] == {"interleave", "blocks_and_stages", "stage04"}
