"""The doctor's promises: real faults are found, named, and come with what to do; a sound machine passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from runner.doctor import devices, examine, installed, machine, trials
from runner.doctor.finding import Finding, guarded
from runner.executors.inline import InlineExecutor
from runner.records import Device, TargetKind
from runner.targets.base import backend
from tests import command
from tests.command import ROOT, ok
from tests.servers import free_port


def distribution(folder: Path, name: str, version: str, package: str = "") -> None:
    """A distribution as pip installs it: its metadata, and a package where one is named."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if package:
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").write_text("")
        (info / "top_level.txt").write_text(package + "\n")


def tool(folder: Path, name: str, *lines: str) -> Path:
    """A vendor's tool that prints these lines, whatever it is asked."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    script.chmod(0o755)
    return folder


NO_CARD = pytest.mark.skipif(bool(backend("cuda").devices() or backend("maca").devices()), reason="has an accelerator")
TWO_C500 = [f"GPU#{i}  MXC500  0000:0{i}:00.0  Available (UUID: GPU-0{i})" for i in range(2)]
TWO_H200 = [f"NVIDIA H200, GPU-0{i}" for i in range(2)]


@pytest.fixture
def metax_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder first on PATH, as MetaX's is: an mx-smi that lists two cards, and the nvcc of its bridge from CUDA."""
    tool(tmp_path / "bin", "nvcc", "Cuda compilation tools, release 11.6, V11.6.124")
    monkeypatch.setenv("PATH", str(tool(tmp_path / "bin", "mx-smi", *TWO_C500)), prepend=os.pathsep)
    for name in ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "bin"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """All that `runner doctor` prints, in an empty folder."""
    return ok(command.run("runner", "doctor", folder=tmp_path_factory.mktemp("doctor"))).splitlines()


class TestWholeMachine:
    def test_a_machine_that_runs_these_tests_passes_with_one_line_a_topic(self, said: list[str]) -> None:
        topics = [line[6:].partition(":")[0] for line in said]
        wanted = ["Python", *installed.TESTED, "names", "proxy", "cpu target", "Ray", "store", "disk"]
        assert set(wanted) <= set(topics)
        assert all(line.startswith(("ok ", "note ")) for line in said)

    def test_a_kernel_was_built_and_run_and_an_artifact_stored(self, said: list[str]) -> None:
        assert any("gemm of 64x64x64 float32 built, run and checked on" in line for line in said)
        assert any("mlflow.db: an artifact went there and back" in line for line in said)
        assert any("started one of our own" in line for line in said)
        assert any("free for" in line and "MLflow's artifacts (" in line for line in said)

    @NO_CARD
    def test_no_accelerator_is_no_fault(self, said: list[str]) -> None:
        assert any(line.startswith("note  devices: no accelerator here") for line in said)
        (cuda,) = (line for line in said if "cuda target" in line)
        assert (cuda.startswith("ok ") and "built for sm_80" in cuda) or "install the CUDA toolkit" in cuda

    def test_findings_come_as_they_are_found(self) -> None:
        before = set(sys.modules)
        assert next(examine()).topic == "Python"
        assert not {"torch", "ray", "mlflow", "tilelang"} & (set(sys.modules) - before)

    def test_a_check_that_breaks_is_a_fault_with_its_reason(self) -> None:
        def broken() -> Iterator[Finding]:
            yield Finding("one", "ok", "first")
            raise OSError("the disk\nis gone")

        first, second = guarded("two", broken())
        assert first.state == "ok"
        assert (second.topic, second.state) == ("two", "fault") and "OSError: the disk" in second.text


class TestVersions:
    @pytest.mark.parametrize(
        ("version", "state"), [((3, 9, 19), "fault"), ((3, 10, 0), "ok"), ((3, 12, 9), "ok"), ((3, 13, 0), "fault")]
    )
    def test_python(self, version: tuple[int, ...], state: str) -> None:
        found = installed.python(version)
        assert found.state == state
        assert found.remedy == ("make an environment with Python 3.10 to 3.12" if state == "fault" else "")

    def test_python_is_what_the_package_says(self) -> None:
        line = next(x for x in (ROOT / "pyproject.toml").read_text().splitlines() if x.startswith("requires-python"))
        supported = SpecifierSet(line.partition("=")[2].strip().strip('"'))
        for minor in range(8, 16):
            assert (installed.python((3, minor, 1)).state == "ok") == supported.contains(f"3.{minor}.1")

    def test_tested_is_what_the_constraints_pin(self) -> None:
        pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
        pinned = {pin.name: str(pin.specifier) for pin in pins}
        assert {name: f"=={version}" for name, version in installed.TESTED.items()}.items() <= pinned.items()

    def test_too_old_names_what_to_install(self) -> None:
        found = installed.package(Requirement("click>=99"))
        assert found == Finding("click", "fault", f"{metadata.version('click')} is not >=99", "pip install 'click>=99'")

    def test_missing_names_what_to_install(self) -> None:
        found = installed.package(Requirement("sweep-runner-needs-this>=2"))
        assert (found.state, found.remedy) == ("fault", "pip install 'sweep-runner-needs-this>=2'")

    @pytest.mark.parametrize(
        ("version", "state"),
        [
            (installed.TESTED["torch"], "ok"),
            (installed.TESTED["torch"] + "+cpu", "ok"),
            ("2.8.0+metax3.5.3.9", "note"),
            ("2.4.0.dev20260101+metax", "note"),
            ("2.1.0+metax3.1", "fault"),
            ("MACA-3.5", "note"),
        ],
    )
    def test_a_vendors_build(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
        distribution(tmp_path, "torch", version)
        monkeypatch.syspath_prepend(tmp_path)
        found = installed.package(Requirement("torch>=2.4"))
        assert found.state == state and version in found.text

    def test_every_requirement_is_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        info = tmp_path / "sweep_runner-9.dist-info"
        info.mkdir()
        needs = ["click>=8", "no-such-thing>=1", 'left-out; extra == "test"', 'other-system; sys_platform == "never"']
        lines = "".join(f"Requires-Dist: {n}\n" for n in needs)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sweep-runner\nVersion: 9\n{lines}")
        monkeypatch.syspath_prepend(tmp_path)
        assert [(f.topic, f.state) for f in installed.packages()] == [("click", "ok"), ("no-such-thing", "fault")]


class TestNames:
    def run(self, *paths: Path, folder: Path) -> list[Finding]:
        """The check in a process with these folders first on its path, as PYTHONPATH or an environment puts them."""
        script = (
            "import dataclasses, json; from runner.doctor.installed import names;"
            "print(json.dumps([dataclasses.asdict(f) for f in names()]))"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        done = subprocess.run([sys.executable, "-c", script], cwd=folder, env=environment, capture_output=True, text=True)
        return [Finding(**f) for f in json.loads(done.stdout)]

    def test_ours(self, tmp_path: Path) -> None:
        (found,) = self.run(ROOT, folder=tmp_path)
        assert found.state == "ok" and str(ROOT) in found.text

    def test_another_distribution_before_ours(self, tmp_path: Path) -> None:
        distribution(tmp_path / "site", "kernels", "0.9.0", package="kernels")
        (found,) = self.run(tmp_path / "site", ROOT, folder=tmp_path)
        assert found.state == "fault" and str(tmp_path / "site/kernels") in found.text
        assert found.remedy == "pip uninstall kernels"

    def test_a_folder_before_ours(self, tmp_path: Path) -> None:
        (tmp_path / "mine/tracking").mkdir(parents=True)
        (tmp_path / "mine/tracking/__init__.py").touch()
        (found,) = self.run(tmp_path / "mine", ROOT, folder=tmp_path)
        assert found.state == "fault" and found.remedy.startswith(f"rename {tmp_path / 'mine/tracking'}")

    def test_another_distribution_installed_over_ours(self, tmp_path: Path) -> None:
        site = tmp_path / "site"
        for name in installed.NAMES:
            shutil.copytree(ROOT / name, site / name)
        assert [f.state for f in self.run(site, folder=tmp_path)] == ["ok"]
        distribution(site, "kernels", "0.9.0", package="kernels")
        (found,) = self.run(site, folder=tmp_path)
        assert found.state == "fault"
        assert found.remedy == "pip uninstall kernels, then pip install --force-reinstall --no-deps sweep-runner"


class TestCompilers:
    def test_no_compiler_on_path(self, tmp_path: Path) -> None:
        script = "from runner.doctor.trials import cpu_target; print(cpu_target(None))"
        environment = {k: v for k, v in command.clean_environment().items() if k not in ("CXX", "CC")}
        environment["PATH"] = str(tmp_path)
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert "state='fault'" in done.stdout and "apt-get install g++" in done.stdout, done.stderr

    def test_a_compiler_that_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CXX", shutil.which("false") or "")
        executor = InlineExecutor()
        try:
            found = trials.cpu_target(executor)
        finally:
            executor.close()
        assert found.state == "fault" and "cannot be built" in found.text and "false" in found.remedy


class TestDevices:
    @NO_CARD
    def test_a_card_that_torch_does_not_see(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tool(tmp_path / "bin", "nvidia-smi", *TWO_H200)), prepend=os.pathsep)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        cards: list[Device] = []
        (listed,) = devices.vendor_tool(backend("cuda"), cards)
        assert listed == Finding("nvidia-smi", "ok", "lists 2 x NVIDIA H200")
        (found,) = devices.torch_devices(cards)
        assert found.state == "fault" and "nvidia-smi lists 2" in found.text and found.remedy

    @pytest.mark.parametrize(
        ("version", "state", "said"),
        [
            ("maca = '3.5.3.9'; cuda = '11.6'", "ok", "2, built for MACA 3.5.3.9"),
            ("maca = None; cuda = '11.6'", "fault", "torch (built for CUDA 11.6) sees 2"),
            ("cuda = '13.0'", "fault", "torch (built for CUDA 13.0) sees 2"),
        ],
    )
    def test_a_metax_node_is_told_by_torchs_maca_version(
        self, metax_node: Path, monkeypatch: pytest.MonkeyPatch, version: str, state: str, said: str
    ) -> None:
        """Not by its CUDA version, nor by what it calls its devices."""
        (metax_node / "torch.py").write_text(
            f"class version:\n    hip = None; {version}\nclass cuda:\n    device_count = staticmethod(lambda: 2)\n"
        )
        monkeypatch.syspath_prepend(metax_node)
        cards: list[Device] = []
        (listed,) = devices.vendor_tool(backend("maca"), cards)
        assert listed == Finding("mx-smi", "ok", "lists 2 x MetaX C500")
        (found,) = devices.torch_devices(cards)
        assert found.state == state and said in found.text
        assert found.remedy == ("install MetaX's own build of torch" if state == "fault" else "")

    @pytest.mark.usefixtures("metax_node")
    def test_auto_takes_maca_on_a_metax_node(self, tmp_path: Path) -> None:
        said = ok(command.run("sweep", "plan", str(ROOT / "sweeps/interleave.yaml"), folder=tmp_path, PATH=os.environ["PATH"]))
        assert "target auto: maca, on MetaX C500" in said
        assert "gemm 131072x2048x7168 float16 on MetaX C500" in said

    def test_cards_hidden_on_purpose_are_no_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        found = devices.torch_disagrees([Device("cuda", "NVIDIA H200", i) for i in range(2)], 1, "CUDA 13.0", "")
        assert (found.state, found.remedy) == ("note", "unset CUDA_VISIBLE_DEVICES to use all of them")

    @pytest.mark.parametrize(
        ("kind", "listed", "built_for", "count", "remedy"),
        [
            ("maca", 2, "CUDA 13.0", 0, "MetaX's own build of torch"),
            ("cuda", 2, "the CPU alone", 0, "a torch built for CUDA"),
            ("cuda", 2, "CUDA 13.0", 0, "match the driver to torch"),
            ("cuda", 0, "CUDA 13.0", 2, "put nvidia-smi on PATH"),
            ("maca", 0, "MACA 3.5.3", 2, "put mx-smi on PATH"),
        ],
    )
    def test_what_a_disagreement_means(
        self, monkeypatch: pytest.MonkeyPatch, kind: TargetKind, listed: int, built_for: str, count: int, remedy: str
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("MACA_VISIBLE_DEVICES", raising=False)
        found = devices.torch_disagrees([Device(kind, "a card", i) for i in range(listed)], count, built_for, "")
        assert found.state == "fault" and remedy in found.remedy
        assert f"lists {listed}" in found.text and f"sees {count}" in found.text

    @NO_CARD
    def test_cards_that_ray_does_not_count(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cards: list[Device] = []
        with monkeypatch.context() as context:
            context.setenv("PATH", str(tool(tmp_path / "bin", "nvidia-smi", *TWO_H200)), prepend=os.pathsep)
            list(devices.vendor_tool(backend("cuda"), cards))
        started, found = devices.cluster(None, cards)
        assert started.state == "ok" and started.text.endswith(" 0 GPUs")
        assert found.state == "fault" and "nvidia-smi lists 2" in found.text and "counts 0 GPUs" in found.text
        assert found.remedy == "start Ray with `ray start --num-gpus=2`"

    def test_metax_cards_are_counted_with_pymxsml(self) -> None:
        (found,) = devices.ray_devices([Device("maca", "MetaX C500", i, host=h) for h in "ab" for i in range(4)], 0)
        assert "pymxsml" in found.remedy and "--num-gpus=4" in found.remedy

    def test_agreement_needs_no_line(self) -> None:
        assert not list(devices.ray_devices([Device("cuda", "NVIDIA H200")], 1))

    def test_a_cluster_that_wants_a_token(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
        (found,) = devices.cluster("http://127.0.0.1", [])
        assert found.state == "fault" and "set RAY_AUTH_MODE=token" in found.remedy

    def test_a_dead_cluster_is_told_at_once(self) -> None:
        address = f"127.0.0.1:{free_port()}"
        (found,) = devices.cluster(address, [])
        assert (found.state, found.text) == ("fault", f"nothing answers at {address}") and "ray start --head" in found.remedy


class TestStore:
    def test_a_dead_port_without_its_password(self, monkeypatch: pytest.MonkeyPatch) -> None:
        uri = f"http://ann:secret@127.0.0.1:{free_port()}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        found = list(trials.store(None))
        assert [f.topic for f in found][:2] == ["store", "disk"]
        assert found[0].state == "fault" and "nothing answers there: start it with `mlflow server`" in found[0].text
        assert "MLFLOW_TRACKING_URI" in found[0].text and "ann:***@" in found[0].text and "secret" not in found[0].text


class TestSurroundings:
    @pytest.mark.parametrize(
        ("settings", "state"),
        [
            ({}, "ok"),
            ({"http_proxy": "http://user:secret@proxy:3128"}, "note"),
            ({"all_proxy": "http://proxy:3128"}, "note"),
            ({"http_proxy": "http://proxy:3128", "no_proxy": "127.0.0.1"}, "note"),
            ({"http_proxy": "http://proxy:3128", "no_proxy": "127.0.0.1,localhost"}, "ok"),
            ({"http_proxy": "http://proxy:3128", "no_proxy": "127.0.0.0/8,localhost"}, "ok"),
            ({"https_proxy": "http://proxy:3128"}, "ok"),
        ],
    )
    def test_proxies(self, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], state: str) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        (found,) = machine.proxies()
        assert found.state == state and "secret" not in found.text
        assert ("no_proxy" in found.remedy) == (state == "note")

    @pytest.mark.parametrize(("free", "state"), [(0, "fault"), (999_999_999, "fault"), (10**9, "note"), (10**10, "ok")])
    def test_room(self, free: int, state: str) -> None:
        found = machine.room(free, "temporary files")
        assert found.state == state and bool(found.remedy) == (state != "ok")

    def test_one_line_a_disk_and_folders_yet_to_be_made(self, tmp_path: Path) -> None:
        (found,) = machine.disks({"here": tmp_path, "there": tmp_path / "not/yet"})
        assert f"here ({tmp_path}) and there ({tmp_path})" in found.text
        assert f"{shutil.disk_usage(tmp_path).free / 1e9:.0f}"[:1] in found.text

    def test_shared_memory_of_a_machine_without_any(self, tmp_path: Path) -> None:
        assert not list(machine.shared_memory(tmp_path / "none"))
        assert len(list(machine.shared_memory(tmp_path))) == 1
