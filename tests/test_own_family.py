"""A family of a user's own works as the documentation shows it, and faults in one cost one line."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from kernels.family import Family, load_family
from kernels.finding import OURS
from kernels.gemm import GEMM
from kernels.sources import code_hash
from runner.build import BuildJob
from runner.errors import RequestError
from runner.executors.inline import InlineExecutor
from runner.expand import Expansion, expand
from runner.jobs.requests import BaselineJob, BenchJob
from runner.prune import prune
from runner.records import Measurement, Variant
from runner.spec import SweepSpec, load_spec
from runner.targets.base import backend
from tests import command

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs/examples"
PAGE = (ROOT / "docs/own-family.md").read_text()


pytestmark = pytest.mark.usefixtures("imports_as_they_were")


@pytest.fixture
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page says: `cd docs/examples`."""
    monkeypatch.chdir(EXAMPLES)


@pytest.mark.parametrize("language, file", [("python", "scaled_add.py"), ("yaml", "scaled_add.yaml")])
def test_the_page_shows_the_very_files_that_run(language: str, file: str) -> None:
    (block,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert block == (EXAMPLES / file).read_text()


def test_the_page_lists_every_member_of_the_protocol() -> None:
    table = PAGE.split("| member | meaning |")[1].split("\n\n")[0]
    first_cells = " ".join(re.findall(r"^\| (.+?) \|", table, re.MULTILINE))
    named = set(re.findall(r"`(\w+)", first_cells))
    members = {n for n in {*Family.__annotations__, *vars(Family)} if not n.startswith("_")}
    assert named == members


def plan() -> tuple[SweepSpec, Family, Expansion, dict[str, str]]:
    spec = load_spec("scaled_add.yaml", lambda asked: "cpu", load_family)
    family, target = load_family(spec.family), backend("cpu").target()
    expansion = expand(spec, family, target, "code", {})
    return spec, family, expansion, prune(expansion, family, backend("cpu").limits(target))


@pytest.mark.usefixtures("in_examples")
def test_the_example_is_planned_as_the_page_says() -> None:
    _, family, expansion, pruned = plan()
    assert isinstance(family, Family)
    assert [v.config["block_N"] for v in expansion.variants] == [64, 16, 256, 512, 768]
    assert all(v.config["threads"] is None for v in expansion.variants)
    (reason,) = pruned.values()
    assert reason == "N=1024 is not divisible by block_N=768"


@pytest.mark.usefixtures("in_examples")
def test_the_example_is_built_checked_and_timed() -> None:
    spec, _, expansion, pruned = plan()
    executor, search = InlineExecutor(), (str(Path.cwd()),)
    (device,) = executor.devices("cpu")
    variants = [v for v in expansion.variants if v.id not in pruned][:2]
    try:
        executor.submit(BaselineJob(spec.workload, device, spec.protocol, search), 120)
        baseline = executor.next()
        assert baseline.failure is None and len(baseline.value.before_ms) == spec.protocol.repeat
        for variant in variants:
            measured = measure(executor, variant, spec, search)
            assert measured.max_abs_error <= spec.acceptance.max_abs_error and min(measured.samples_ms) > 0
    finally:
        executor.close()


def measure(executor: InlineExecutor, variant: Variant, spec: SweepSpec, search: tuple[str, ...]) -> Measurement:
    executor.submit(BuildJob(variant, search), 120)
    built = executor.next()
    assert built.failure is None, f"{built.failure}\n{built.output}"
    executor.submit(BenchJob(variant, built.value, executor.devices("cpu")[0], spec.protocol, search), 120)
    done = executor.next()
    assert done.failure is None, f"{done.failure}\n{done.output}"
    measured: Measurement = done.value
    return measured


@pytest.mark.usefixtures("in_examples")
def test_the_example_is_generated_for_a_gpu_too() -> None:
    import tilelang
    from tilelang import tvm

    spec = load_spec("scaled_add.yaml", lambda asked: "cuda", load_family)
    family, target = load_family(spec.family), tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    with target:
        program = family.program(spec.workload, spec.base, backend("cuda").target("sm_80"))
        source = tilelang.lower(program, target=target).kernel_source
    assert "__launch_bounds__(128" in source and "scaled_add_kernel" in source


ARGUMENTS = "import argparse\nprint('mine')\nargparse.ArgumentParser().parse_args(['plan', 's.yaml'])"

FAULTS = {
    "no such module": ("nowhere:FAMILY", "", "cannot import 'nowhere'"),
    "no such attribute": ("mine:FAMLY", "FAMILY = 1", "has no 'FAMLY': did you mean 'FAMILY'"),
    "not a family": ("mine:FAMILY", "FAMILY = object()", "is not a Family"),
    "fails to import": ("mine:FAMILY", "1 / 0", "division by zero"),
    "is no Python": ("mine:FAMILY", "def", "invalid syntax"),
    "parses arguments": (
        "mine:FAMILY",
        ARGUMENTS,
        "to import 'mine' ends the process: put what parses arguments, or runs, under",
    ),
    "raises what is no Exception": (
        "mine:FAMILY",
        "raise GeneratorExit('enough')",
        "cannot import 'mine': GeneratorExit: enough",
    ),
    "raises with an empty first line": ("mine:FAMILY", "raise ValueError('\\nsecond')", "ValueError: second"),
    "hidden by the standard library": ("code:FAMILY", "", "is hidden by another 'code'"),
    "a path": ("folder/mine:FAMILY", "", "write it as module:attribute"),
    "lacks its module": ("scaledadd", "", "a family of your own is named module:attribute"),
    "a name of ours, misspelt": ("gem", "", "did you mean 'gemm'"),
}


@pytest.mark.parametrize("name, code, said", FAULTS.values(), ids=FAULTS)
def test_a_faulty_family_costs_one_line(tmp_path: Path, name: str, code: str, said: str) -> None:
    for module in ("mine", "code"):
        (tmp_path / f"{module}.py").write_text(code)
    with pytest.raises(RequestError) as raised:
        load_family(name, (str(tmp_path),))
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_ctrl_c_while_a_family_is_imported_is_no_fault_of_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_family("mine:FAMILY", (str(tmp_path),))


def test_what_a_module_prints_or_says_of_our_arguments_comes_before_our_line(tmp_path: Path) -> None:
    """As a user runs it: the module sees the arguments of `sweep`, and ends the process."""
    (tmp_path / "mine.py").write_text("import argparse\nprint('mine')\nargparse.ArgumentParser().parse_args()\n")
    (tmp_path / "s.yaml").write_text("name: mine\nkernel: mine:FAMILY\nworkload: {N: 1, dtype: float32}\n")
    done = command.alone("sweep", "plan", "s.yaml", folder=tmp_path)
    *theirs, ours = done.stderr.strip().splitlines()
    assert done.returncode == 2 and done.stdout == "" and "mine" in theirs
    assert ours.startswith("error: s.yaml:2: kernel family 'mine:FAMILY': to import 'mine' ends the process")


@pytest.mark.parametrize("package", OURS)
@pytest.mark.parametrize("init", ["", "raise RuntimeError"], ids=["a package", "one that does something"])
def test_a_project_may_have_folders_named_like_ours(tmp_path: Path, package: str, init: str) -> None:
    folder = tmp_path / package
    folder.mkdir()
    (folder / "__init__.py").write_text(init)
    (folder / "helper.py").write_text("SCALE = 2")
    (folder / "mine.py").write_text(f"from {package}.helper import SCALE\n" + (EXAMPLES / "scaled_add.py").read_text())
    name = f"{package}.mine:SCALED_ADD"
    assert load_family(name, (str(tmp_path),)).name == "scaled_add"
    before = code_hash(name, (str(tmp_path),))
    (folder / "helper.py").write_text("SCALE = 3")
    assert code_hash(name, (str(tmp_path),)) != before


def test_a_file_named_like_one_of_ours_is_never_passed_over_silently(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    shutil.copy(ROOT / "kernels/gemm.py", tmp_path / "kernels")
    assert load_family("kernels.gemm:GEMM", (str(tmp_path),)) is GEMM  # it is the same code
    with (tmp_path / "kernels/gemm.py").open("a") as file:
        file.write("GEMM.name = 'changed'\n")
    with pytest.raises(RequestError, match=r"kernels/gemm\.py is hidden by another 'kernels\.gemm' .*another name"):
        load_family("kernels.gemm:GEMM", (str(tmp_path),))
    assert load_family("gemm", (str(tmp_path),)) is GEMM


def test_a_family_in_a_folder_named_like_ours_is_measured_on_ray(tmp_path: Path) -> None:
    """Ray puts no folder before ours on its workers' path."""
    for package in OURS:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise RuntimeError('the user's {package}')")
    shutil.copy(EXAMPLES / "scaled_add.py", tmp_path / "kernels/mine.py")
    text = (EXAMPLES / "scaled_add.yaml").read_text().replace("scaled_add:", "kernels.mine:")
    (tmp_path / "s.yaml").write_text(text)
    quick = [f"--set={s}" for s in ("sweep.block_N=[16]", "measure.finals=0", "accept.alone=none")]
    done = command.alone("sweep", "submit", "s.yaml", "--target", "cpu", *quick, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.count("measured  block_N=") == 2, done.stdout + done.stderr


NAMES: dict[str, tuple[str, str]] = {
    "a knob with a bracket": (
        "knobs = (Knob('BLOCK(M)', 1, ''),)",
        "the knob 'BLOCK(M)', which cannot be recorded by that name: write letters",
    ),
    "a knob with a space": ("knobs = (Knob('block M', 1, ''),)", "the knob 'block M', which cannot be recorded"),
    "a knob as a folder": ("knobs = (Knob('block/M', 1, ''),)", "the knob 'block/M'"),
    "a knob of two lines": ("knobs = (Knob('a\\n', 1, ''),)", "the knob"),
    "no name": ("knobs = (Knob('', 1, ''),)", "the knob ''"),
    "a long knob": ("knobs = (Knob('b' * 251, 1, ''),)", "is 251 bytes long: the record holds 250"),
    "a knob like a pass config": (
        "knobs = (Knob('pass.fast', 1, ''),)",
        "'pass.fast': what begins so is a setting of TileLang's",
    ),
    "a knob like a dimension": ("knobs = (Knob('N', 1, ''),)", "uses the name 'N' twice"),
    "a knob twice": ("knobs = (Knob('a', 1, ''), Knob('a', 2, ''))", "uses the name 'a' twice"),
    "a knob called dtype": ("knobs = (Knob('dtype', 1, ''),)", "uses the name 'dtype' twice"),
    "a dimension called moe": ("dims = ('M', 'N', 'moe')", "uses the name 'moe' twice"),
    "a dimension": ("dims = ('rows (M)', 'N')", "the dimension 'rows (M)', which cannot be recorded"),
    "a dtype that is an object": ("dtypes = (float,)", "the dtype <class 'float'>, which is no text"),
    "a dtype": ("dtypes = ('int:8',)", "the dtype 'int:8', which cannot be recorded"),
    "a name of two lines": ("name = 'a\\nb'", "has a name that takes one line"),
    "a baseline without a name": ("baseline_name = ''", "has a baseline_name that is no text"),
    "no tuple": ("knobs = Knob('a', 1, '')", "has knobs that are no tuple"),
    "no knob": ("knobs = ('a',)", "has knobs that are no Knob"),
}


@pytest.mark.parametrize("line, said", NAMES.values(), ids=NAMES)
def test_a_name_that_the_record_cannot_hold_is_refused_when_the_family_is_read(tmp_path: Path, line: str, said: str) -> None:
    changed = f"\n\nclass Mine(ScaledAdd):\n    {line}\n\n\nMINE = Mine()\n"
    (tmp_path / "mine.py").write_text((EXAMPLES / "scaled_add.py").read_text() + changed)
    with pytest.raises(RequestError) as raised:
        load_family("mine:MINE", (str(tmp_path),))
    assert str(raised.value).startswith("kernel family 'mine:MINE' ") and said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_program_that_raises_is_a_compile_error_with_its_reason() -> None:
    from tests.workbench import Workbench, variant

    bench = Workbench()
    done = bench.do(BuildJob(variant("tests.broken_families:NO_PROGRAM", {"M": 8, "N": 8})))
    bench.close()
    assert done.failure is not None and done.failure.detail == "ValueError: the family's own fault"
