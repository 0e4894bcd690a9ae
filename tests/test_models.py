"""Which devices a sweep runs on where there are several models, and what code for them is generated for."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from runner.errors import RequestError
from runner.executors import ray_workers
from runner.planning import SOMEWHERE, Asked, read, toolchain
from runner.records import Device, TargetKind
from runner.targets.base import backend

H200 = tuple(Device("cuda", "NVIDIA H200", index, "one", arch="sm_90a") for index in range(2))
A100 = Device("cuda", "NVIDIA A100-SXM4-80GB", 0, "two", arch="sm_80")

FILE = """\
name: models
kernel: gemm
workload: {{M: 512, N: 512, K: 512, dtype: float16}}
target: cuda
base: {{block_M: 64, block_N: 64, block_K: 32, threads: 128}}
{devices}
"""


def mixed(kind: TargetKind) -> tuple[Device, ...]:
    return (*H200, A100) if kind == "cuda" else ()


def asked(folder: Path, devices: str = "", find: object = mixed, **options: object) -> Asked:
    file = folder / "models.yaml"
    file.write_text(FILE.format(devices=devices))
    return read(str(file), None, (), find, **options)  # type: ignore[arg-type]


def test_one_model_and_the_others_are_named(tmp_path: Path) -> None:
    found = asked(tmp_path)
    assert found.devices == H200 and found.more == ()
    assert "left out, being another model than NVIDIA H200: NVIDIA A100-SXM4-80GB" in found.notes


def test_the_model_that_the_file_names_and_code_for_it(tmp_path: Path) -> None:
    found = asked(tmp_path, f"devices: {A100.model}")
    assert found.devices == (A100,) and found.more == ()
    assert found.expansion.base.target.arch == "sm_80"


def test_each_model_in_a_sweep_of_its_own(tmp_path: Path) -> None:
    first = asked(tmp_path, "devices: all")
    assert first.devices == H200 and first.more == (A100.model,)
    assert not any("left out" in note for note in first.notes)
    second = asked(tmp_path, "devices: all", model=A100.model)
    assert second.devices == (A100,) and second.more == ()
    targets = [found.expansion.base.target.arch for found in (first, second)]
    assert targets == ["sm_90a", "sm_80"]


def test_a_variant_is_known_by_the_tilelang_of_the_nodes_that_build_it(tmp_path: Path) -> None:
    """A C500's port need not be what is installed where the sweep is planned."""
    ports = tuple(replace(A100, tilelang=version) for version in ("", "0.1.9+port", "0.1.10+port"))
    here, old, new = (asked(tmp_path, find=lambda kind, port=port: (port,)).expansion.base for port in ports)
    assert here.toolchain == {"tilelang": metadata.version("tilelang"), **backend("cuda").toolchain()}
    assert old.toolchain == {"tilelang": "0.1.9+port"} and len({here.id, old.id, new.id}) == 3


def test_a_variant_is_known_by_the_compiler_of_the_nodes_that_build_it(tmp_path: Path) -> None:
    nodes = tuple(replace(A100, tilelang="0.1.15", toolchain={"nvcc": version}) for version in ("12.4.99", "13.0.88"))
    old, new = (asked(tmp_path, find=lambda kind, node=node: (node,)).expansion.base for node in nodes)
    assert old.toolchain == {"tilelang": "0.1.15", "nvcc": "12.4.99"} and old.id != new.id


def test_a_node_tells_what_builds_there() -> None:
    """As Ray calls it on each node."""
    for device in ray_workers.devices._function("cpu"):
        assert device.toolchain == backend("cpu").toolchain() and "compiler" in device.toolchain
        assert toolchain("cpu", (device,)) == toolchain("cpu"), "a sweep has one identity, whoever asks"


def test_flags_of_the_environment_are_part_of_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked(tmp_path).expansion.base
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "--maxrregcount=64")
    after = asked(tmp_path).expansion.base
    assert after.toolchain["NVCC_APPEND_FLAGS"] == "--maxrregcount=64" and after.id != before.id


def test_a_plan_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvcc").touch()  # one that cannot be run is none
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    assert "nvcc" not in asked(tmp_path).expansion.base.toolchain


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="devices: there is no NVIDIA H100 here: did you mean 'NVIDIA H200'"):
        asked(tmp_path, "devices: NVIDIA H100")


def test_what_only_the_cluster_knows_is_not_refused_here(tmp_path: Path) -> None:
    found = asked(tmp_path, "devices: NVIDIA H100", find=lambda kind: (Device(kind, SOMEWHERE),))
    assert len(found.devices) == 1


def test_devices_can_be_set_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    file.write_text(FILE.format(devices=""))
    found = read(str(file), None, (f"devices={A100.model}",), mixed)
    assert found.devices == (A100,)
