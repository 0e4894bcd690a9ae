"""A family of a user's own works as the documentation shows it, and faults in one cost one line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.family import Family, load_family
from runner.build import BuildJob
from runner.errors import RequestError
from runner.executors.inline import InlineExecutor
from runner.expand import Expansion, expand
from runner.jobs.requests import BaselineJob, BenchJob
from runner.prune import prune
from runner.records import Measurement, Variant
from runner.spec import SweepSpec, load_spec
from runner.targets.base import backend

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "docs/examples"
PAGE = (ROOT / "docs/own-family.md").read_text()


@pytest.fixture(autouse=True)
def imports_as_they_were() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name in ("scaled_add", "mine"):
            del sys.modules[name]


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


FAULTS = {
    "no such module": ("nowhere:FAMILY", "", "cannot import 'nowhere'"),
    "no such attribute": ("mine:FAMLY", "FAMILY = 1", "has no 'FAMLY': did you mean 'FAMILY'"),
    "not a family": ("mine:FAMILY", "FAMILY = object()", "is not a Family"),
    "fails to import": ("mine:FAMILY", "1 / 0", "division by zero"),
    "is no Python": ("mine:FAMILY", "def", "invalid syntax"),
    "lacks its module": ("scaledadd", "", "a family of your own is named module:attribute"),
    "a name of ours, misspelt": ("gem", "", "did you mean 'gemm'"),
}


@pytest.mark.parametrize("name, code, said", FAULTS.values(), ids=FAULTS)
def test_a_faulty_family_costs_one_line(tmp_path: Path, name: str, code: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(RequestError) as raised:
        load_family(name, (str(tmp_path),))
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_program_that_raises_is_a_compile_error_with_its_reason() -> None:
    from tests.workbench import Workbench, variant

    bench = Workbench()
    done = bench.do(BuildJob(variant("tests.broken_families:NO_PROGRAM", {"M": 8, "N": 8})))
    bench.close()
    assert done.failure is not None and done.failure.detail == "ValueError: the family's own fault"
