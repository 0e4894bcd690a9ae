"""Every target keeps the same small contract; what each reads from its vendor's tools is read right."""

from __future__ import annotations

import inspect
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from runner.errors import FailureKind, RequestError
from runner.process.lease import TAKES_TURNS
from runner.records import Device
from runner.targets import sass, toolchain
from runner.targets.base import BACKENDS, Backend, backend
from runner.targets.maca import parse_list, parse_monitor, parse_processes, parse_table, parse_throttle
from runner.targets.source import evidence, strip
from runner.targets.vendor_tool import User

KINDS = list(BACKENDS)
VISIBLE = ("CUDA_VISIBLE_DEVICES", "MACA_VISIBLE_DEVICES")
METHODS = [name for name, member in vars(Backend).items() if inspect.isfunction(member) and not name.startswith("_")]
ATTRIBUTES = [name for name in Backend.__annotations__ if not name.startswith("_")]

MESSAGES = [
    "",
    "CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: out of memory",
    "MACA error: memory fault at 0x0",
    "no device: \x00 ünïcode\n\n",
    "x" * 100_000,
]

Tools = Callable[..., None]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    """Puts a vendor tool of a given name on PATH that prints a text, and records how it was called."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def install(name: str, text: str, code: int = 0) -> None:
        (tmp_path / f"{name}.txt").write_text(text)
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/{name}.calls"\ncat "{tmp_path}/{name}.txt"\nexit {code}\n')
        script.chmod(0o755)

    return install


@pytest.fixture
def nvidia(tool: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an nvidia-smi on PATH that answers any `--query-gpu` from the cards given."""
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)

    def install(*cards: Mapping[str, str]) -> None:
        tool("nvidia-smi", "")
        (tmp_path / "nvidia-smi").write_text(
            f"#!{sys.executable}\nimport sys\n"
            "fields = next(a for a in sys.argv if a.startswith('--query-gpu=')).partition('=')[2].split(',')\n"
            f"for card in {list(map(dict, cards))!r}:\n    print(', '.join(card[field] for field in fields))\n"
        )

    return install


H200 = {"name": "NVIDIA H200", "uuid": "GPU-aa", "compute_cap": "9.0"}
UNKNOWN = {"name": "NVIDIA GeForce RTX 9999", "uuid": "GPU-bb", "compute_cap": "8.9"}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "uuid": "GPU-cc", "compute_cap": "8.0"}


@pytest.mark.parametrize("kind", KINDS)
class TestContract:
    def test_has_all_of_the_protocol(self, kind: str) -> None:
        target = backend(kind)
        assert target.kind == kind
        assert METHODS and ATTRIBUTES
        for name in ATTRIBUTES:
            assert isinstance(getattr(target, name), (str, bool, float, Mapping)), name
        for name in METHODS:
            promised, given = inspect.signature(getattr(Backend, name)), inspect.signature(getattr(type(target), name))
            assert list(promised.parameters) == list(given.parameters), name

    def test_limits_are_sane(self, kind: str) -> None:
        target = backend(kind)
        limits = target.limits(target.target())
        assert "float32" in limits.dtypes
        assert limits.max_threads is None or 64 <= limits.max_threads <= 4096
        assert limits.warp_size is None or limits.warp_size in (32, 64)
        assert limits.shared_memory_bytes is not None and limits.shared_memory_bytes >= 32 * 1024

    def test_the_architecture_asked_for_is_taken(self, kind: str) -> None:
        assert backend(kind).target("some_arch").arch == "some_arch"
        assert backend(kind).target().arch

    def test_devices_are_of_its_kind(self, kind: str) -> None:
        for index, device in enumerate(backend(kind).devices()):
            assert (device.kind, device.index) == (kind, index) and device.model and device.host

    def test_no_device_hides_them_all(self, kind: str) -> None:
        hidden = backend(kind).visible(None)
        set_here = [name for name in VISIBLE if name in hidden]
        assert set_here and all(hidden[name] == "" for name in set_here)

    def test_every_message_is_classified(self, kind: str) -> None:
        for message in MESSAGES:
            failure, sticky = backend(kind).classify(message)
            assert failure in (FailureKind.LAUNCH_ERROR, FailureKind.CRASH) and isinstance(sticky, bool)

    def test_what_needs_no_device_works_without_one(self, kind: str) -> None:
        target = backend(kind)
        assert isinstance(target.versions(), dict)
        assert target.resources("") == {}
        assert target.source_suffix.startswith(".")
        assert target.mma("") in (None, (0, ""))


NVCC = (
    "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 13.0, V13.0.48\nBuild cuda_13.0.r13.0/compiler.1_0\n"
)


def test_the_compilers_are_those_that_tilelang_calls() -> None:
    from tilelang.contrib.cc import get_cplus_compiler
    from tilelang.env import CUDA_HOME

    assert toolchain.told(toolchain.cplus_compiler()) == toolchain.told(get_cplus_compiler()) != ""
    assert toolchain.told(toolchain.nvcc()) == toolchain.told(f"{CUDA_HOME}/bin/nvcc")


def test_toolchain_of_cuda(tool: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    tool("nvcc", NVCC)
    assert backend("cuda").toolchain() == {"execution_backend": "tvm_ffi", "nvcc": "13.0.48"}
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "-G")
    monkeypatch.setenv("TILELANG_LAYOUT_COST_MODEL", "simple")
    assert backend("cuda").toolchain() == {
        "execution_backend": "tvm_ffi",
        "nvcc": "13.0.48",
        "NVCC_PREPEND_FLAGS": "-G",
        "TILELANG_LAYOUT_COST_MODEL": "simple",
    }
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvcc").write_text("#!/bin/sh\necho release 12.4, V12.4.99\n")
    (tmp_path / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert backend("cuda").toolchain()["nvcc"] == "12.4.99", "what TileLang takes is of CUDA_HOME, not of PATH"


def test_toolchain_of_the_cpu(tool: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    tool("g++", "g++ (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022\n")
    assert backend("cpu").toolchain() == {"execution_backend": "cython", "compiler": "g++ (Debian 12.2.0-14) 12.2.0"}
    tool("clang", "clang version 19.1\n")
    monkeypatch.setenv("CXX", "clang")
    assert backend("cpu").toolchain()["compiler"] == "clang version 19.1"


def test_toolchain_of_maca(tool: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACA_PATH", str(tmp_path / "nowhere"))
    assert backend("maca").toolchain() == {"execution_backend": "tvm_ffi"}
    tool("mxcc", "mxcc version 1.0.0 (d9102a1572)\nTarget: x86_64\n")
    monkeypatch.setenv("TILELANG_MACA_GEMM_K_PACK", "2")
    assert backend("maca").toolchain() == {
        "execution_backend": "tvm_ffi",
        "mxcc": "mxcc version 1.0.0 (d9102a1572)",
        "TILELANG_MACA_GEMM_K_PACK": "2",
    }


def test_one_device_is_shown_and_no_other() -> None:
    shown = {kind: backend(kind).visible(Device(kind, "X", index=3, uuid="GPU-3")) for kind in ("cuda", "maca")}
    assert shown["cuda"]["CUDA_VISIBLE_DEVICES"] == "GPU-3"
    assert shown["maca"]["CUDA_VISIBLE_DEVICES"] == shown["maca"]["MACA_VISIBLE_DEVICES"] == "3"


def test_an_unknown_target_is_answered_with_the_choices() -> None:
    with pytest.raises(RequestError, match="did you mean 'cuda'"):
        backend("cudda")


SOURCES = {
    "line comment": ("a // tl::mma_sync<\nb", "a  \nb"),
    "block comment": ("a /* tl::mma_sync< \n */ b", "a   b"),
    "string": ('f("tl::mma_sync<")', 'f("")'),
    "escaped quote": (r'f("\"tl::mma_sync<", x)', 'f("", x)'),
    "comment in a string": ('f("// no comment"); g()', 'f(""); g()'),
    "quote in a comment": ("a // it's \"\nb", "a  \nb"),
    "character": ("f('\"', tl)", 'f("", tl)'),
    "division": ("a / b / c", "a / b / c"),
    "unclosed quote": ('a " b\nc', 'a " b\nc'),
}


@pytest.mark.parametrize("source, stripped", SOURCES.values(), ids=SOURCES)
def test_strip_leaves_code_alone(source: str, stripped: str) -> None:
    assert strip(source) == stripped


CUDA_SOURCE = """
// tl::mma_sync<tl::DataType::kFloat16>(a comment);
/* tl::wgmma_ss<another>(
   one); */
extern "C" __global__ void __launch_bounds__(256, 1) gemm(half_t* A) {
  for (int ki = 0; ki < 4; ++ki) { %s }
  printf("tl::mma_sync<%%d>", 3);
}
"""


@pytest.mark.parametrize(
    "code, count, name",
    [
        ("tl::mma_sync<tl::DataType::kFloat16, 16, 8, 16>(C, A, B);", 1, "mma_sync"),
        ("tl::mma_sync<A>(x); tl::mma_sync <B>(y);", 2, "mma_sync"),
        ("tl::wgmma_ss<tl::DataType::kFloat16, 64, 256, 16>(a, b, c);", 1, "wgmma_ss"),
        ("tl::wgmma_rs<x>(a); tl::wgmma_rs<x>(a); tl::wgmma_ss<x>(a);", 3, "wgmma_rs"),
        ("tl::tcgen05mma_ss<x>(a);", 1, "tcgen05mma_ss"),
        ("tl::gemm_ss<128, 128, 32, 2, 2, 0, 0>(a, b, c);", 1, "gemm_ss"),
        ("C[0] += A[0] * B[0];", 0, ""),
        ("my_tl::mma_sync_like(a); mma_sync(b);", 0, ""),
        ("// tl::mma_sync<x>(a);", 0, ""),
    ],
)
def test_matrix_instructions_of_cuda(code: str, count: int, name: str) -> None:
    found = backend("cuda").mma(CUDA_SOURCE % (code + "\n"))
    assert found is not None and found[0] == count and name in found[1]


MMA_MACA = "__builtin_mxc_mma_16x16x16f16(*(((float16x4*)B) + 0), *(((float16x4*)A) + 0), *(((float32x4*)C) + 0));"


@pytest.mark.parametrize(
    "code, count, name",
    [
        (f"*C = {MMA_MACA} *C1 = {MMA_MACA}", 2, "__builtin_mxc_mma_16x16x16f16"),
        (MMA_MACA.replace("f16(", "bf16("), 1, "__builtin_mxc_mma_16x16x16bf16"),
        (MMA_MACA.replace("f16(", "i8("), 1, "__builtin_mxc_mma_16x16x16i8"),
        (MMA_MACA.replace("16f16(", "8tf32("), 1, "__builtin_mxc_mma_16x16x8tf32"),
        (MMA_MACA.replace("f16(", "bf16(") + MMA_MACA * 2, 3, "__builtin_mxc_mma_16x16x16f16"),
        (f"// {MMA_MACA}\n", 0, ""),
        (f"/* {MMA_MACA}\n{MMA_MACA} */", 0, ""),
        (f'printf("{MMA_MACA}");', 0, ""),
        ("tl::gemm_ss<128, 128, 64, 4, 2, 0, 0>(A, B, C);", 1, "gemm_ss"),
        ("tl::gemm_ss_wsm<128, 128, 64>(A, B, C);", 1, "gemm_ss_wsm"),
        ("my__builtin_mxc_mma_16x16x16f16(a, b, c);", 0, ""),
        ("__builtin_mxc_mma_16x16x16f16_of(a); auto f = __builtin_mxc_mma_16x16x16f16;", 0, ""),
        ("__builtin_mxc_load_global_async128(a); __builtin_mxc_byte_perm(a, b, c);", 0, ""),
        ("tl::gemm_ss_count(a); tl::mma_sync<x>(a); tl::tvm_mfma(a);", 0, ""),
    ],
)
def test_matrix_instructions_of_maca(code: str, count: int, name: str) -> None:
    found = backend("maca").mma(code)
    assert found is not None and found[0] == count and name in found[1]


def test_the_cpu_has_no_matrix_instruction() -> None:
    assert backend("cpu").mma("tl::mma_sync<x>(a);") is None


LISTINGS = {
    "MXC500": ("GPU#0  MXC500  0000:06:00.0  Available (UUID: GPU-1a2b-3c)", [(0, "MetaX C500", "GPU-1a2b-3c")]),
    "MetaX C500": ("GPU#1  MetaX C500  0000:0e:00.0  Available (UUID: GPU-9)", [(1, "MetaX C500", "GPU-9")]),
    "C600": ("GPU#0  MXC600-AL  0000:06:00.0  Available (UUID: GPU-x)", [(0, "MetaX C600-AL", "GPU-x")]),
    "no UUID": ("GPU#7  MXC500  0000:06:00.0  Available", [(7, "MetaX C500", "")]),
    "heading": (
        "mx-smi  version: 2.3.1\n=========\n\nGPU#0  MXC500  0000:06:00.0  (UUID: GPU-1)\nEnd of Log",
        [(0, "MetaX C500", "GPU-1")],
    ),
    "none": ("No devices found", []),
    "nothing": ("", []),
}


@pytest.mark.parametrize("said, cards", LISTINGS.values(), ids=LISTINGS)
def test_the_cards_that_mx_smi_lists(said: str, cards: list[tuple[int, str, str]]) -> None:
    assert parse_list(said) == cards


def test_devices_of_maca_have_their_peak(tool: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)
    tool(
        "mx-smi",
        "GPU#0  MXC500  0000:06:00.0  Available (UUID: GPU-a)\nGPU#1  MXC600-AL  0000:07:00.0  Available (UUID: GPU-b)\n",
    )
    first, second = backend("maca").devices()
    assert (first.model, first.index, first.uuid) == ("MetaX C500", 0, "GPU-a")
    assert 200 < first.peak_tflops["float16"] < 300
    assert (second.model, second.peak_tflops) == ("MetaX C600-AL", {})


@pytest.mark.parametrize(
    "shown, indices",
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"MACA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0", "MACA_VISIBLE_DEVICES": "0"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b", "MACA_VISIBLE_DEVICES": "0,1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0", "MACA_VISIBLE_DEVICES": "1"}, []),
    ],
)
def test_either_variable_hides_a_metax_card(
    tool: Tools, monkeypatch: pytest.MonkeyPatch, shown: dict[str, str], indices: list[int]
) -> None:
    tool("mx-smi", "GPU#0  MXC500  0000:06:00.0  (UUID: GPU-a)\nGPU#1  MetaX C500  0000:07:00.0  (UUID: GPU-b)\n")
    for name in VISIBLE:
        monkeypatch.delenv(name, raising=False)
    for name, value in shown.items():
        monkeypatch.setenv(name, value)
    found = backend("maca").devices()
    assert [card.index for card in found] == indices and {card.model for card in found} <= {"MetaX C500"}


# Two cards each, in the layouts of three versions of mx-smi's table. In 2.1 temperature is before power, in 2.3 after it.
TABLES = {
    "2.1.6": """| MX-SMI 2.1.6                       Kernel Mode Driver Version: 2.5.014          |
| GPU         NAME                   | Bus-id              | GPU-Util             |
| Temp        Power                  | Memory-Usage        |                      |
|====================================+=====================+======================|
| 0           MXC500                 | 0000:0c:00.0        | 0%                   |
| 51C         71W                    | 914/65536 MiB       |                      |
+------------------------------------+---------------------+----------------------+
| 1           MXC500                 | 0000:1C:00.0        | 97%                  |
| 64C         215.5W                 | 60314/65536 MiB     |                      |
""",
    "2.1.12": """| MX-SMI 2.1.12                      Kernel Mode Driver Version: 2.14.6           |
| 0           MetaX C500             | 0000:0e:00.0        | 0%                   |
| 51C         71W / 350W             | 5680/65536 MiB      |                      |
+------------------------------------+---------------------+----------------------+
| 1           MetaX C500             | 0000:0f:00.0        | 97%                  |
| 64C         215.5W / 350W          | 5680/65536 MiB      |                      |
""",
    "2.3.1": """| MX-SMI 2.3.1                       Kernel Mode Driver Version: 3.8.30           |
| 0     MetaX C500 | 0           Off | 0000:12:00.0        | 0%          Disabled |
| 71W / 350W       | 51C          P0 | 826/65536 MiB       | Available            |
+------------------+-----------------+---------------------+----------------------+
| 1     MetaX C500 | 1           Off | 0000:5C:00.0        | 97%         Disabled |
| 215.5W / 350W    | 64C          P0 | 60314/65536 MiB     | Available            |
""",
}
"""Built after the fields and units that public logs of these versions show; none was taken from a card of ours."""


@pytest.mark.parametrize("said", TABLES.values(), ids=TABLES)
def test_power_and_temperature_are_read_by_unit_not_by_column(said: str) -> None:
    said += PROCESSES.format(rows="|  0                  4242         train 99W 99C                1234           |\n")
    assert parse_table(said, 0) == {"power_w": 71.0, "temperature_c": 51.0}
    assert parse_table(said, 1) == {"power_w": 215.5, "temperature_c": 64.0}
    assert parse_table(said, 2) == {}


@pytest.mark.parametrize(
    "row, expected",
    [
        ("| 37W / 350W       | 32C          P0 | 826/65536 MiB  |", {"power_w": 37.0, "temperature_c": 32.0}),
        ("| N/A / 350W       | N/A          P0 | 826/65536 MiB  |", {}),
        ("| -W/350W          | 826/65536 MiB   | 0000:32C:00.0  |", {}),
        ("| 37 W / 350 W     | 32.5 C       P0 | C500 0C:00.0   |", {"power_w": 37.0, "temperature_c": 32.5}),
    ],
)
def test_a_limit_an_address_and_a_memory_size_are_no_state(row: str, expected: dict[str, float]) -> None:
    assert (
        parse_table(f"| 0     MetaX C500 | 0           Off | 0000:0C:00.0        | 0%          Disabled |\n{row}\n", 0)
        == expected
    )


MONITORS_OF_MACA = {
    "temperature first": """dev, die, hottemp, soctemp, coretemp, power, gpu, vram, xcoreclk, mcclk, bdfid
Idx, Idx, C, C, C, W, %, %, MHz, MHz, N/A
0, 0, 45, 31, 40, 159, 71, 83, 1125, 1800, 0000:08:00.0
1, 0, 71, 50, 66, 320.5, 99, 83, 450, 1800, 0000:09:00.0
""",
    "clocks first, a banner, other units": """mx-smi  version: 2.2.9

dev, die, mcclk, xcoreclk, power, coretemp, hottemp
-, -, kHz, MHz, mW, C, C
0, 0, 1800000, 1125, 159000, 40, 45
1, 0, 1800000, 450, 320500, 66, 71
1, 1, 1700000, 500, 330000, 67, 72
""",
}


@pytest.mark.parametrize("said", MONITORS_OF_MACA.values(), ids=MONITORS_OF_MACA)
def test_the_monitor_is_read_by_the_names_of_its_columns(said: str) -> None:
    assert parse_monitor(said, 0) == pytest.approx(
        {"clock_mhz": 1125.0, "memory_clock_mhz": 1800.0, "power_w": 159.0, "temperature_c": 45.0}
    )
    assert parse_monitor(said, 1)["clock_mhz"] == 450.0 and parse_monitor(said, 1)["power_w"] == pytest.approx(320.5)
    assert parse_monitor(said, 2) == {}


@pytest.mark.parametrize(
    "said, expected",
    [
        ("dev, die, hottemp, soctemp, power\nIdx, Idx, C, C, W\n0, 0, N/A, 31, 159\n", {"power_w": 159.0}),
        ("dev, die, gpu\nIdx, Idx, %\n0, 0, 71\n", {}),
        ("dev, power\n0, 159\n", {"power_w": 159.0}),
        ("dev, die, power\n", {}),
        ("dev, die, power\n0, 159\n", {}),
        ("mx-smi: unknown option dmon\nusage: mx-smi [-i ID], [-L]\n", {}),
        ("", {}),
    ],
)
def test_a_monitor_that_leaves_things_out(said: str, expected: dict[str, float]) -> None:
    assert parse_monitor(said, 0) == expected


@pytest.mark.parametrize(
    "said, expected",
    [
        ("GPU#0  MXC500\n  idle          : Not Active\n  power cap     : Active\n  thermal : Active\n", "power cap, thermal"),
        ("| idle | Not Active |\n| thermal | Not Active |\n", "none"),
        ("unknown option --show-clk-tr", None),
        ("", None),
    ],
)
def test_why_a_metax_card_is_slowed_down(said: str, expected: str | None) -> None:
    assert parse_throttle(said) == expected


def mx_smi(folder: Path, **answers: str) -> None:
    """An mx-smi in a folder that answers by the first of these words in its arguments, and else with `table`."""
    script = '#!/bin/sh\ncase "$*" in\n'
    for number, (word, text) in enumerate(answers.items()):
        (folder / f"mx-smi.{number}").write_text(text)
        script += f"  *{'' if word == 'table' else word.replace('_', '-')}*) cat {folder}/mx-smi.{number} ;;\n"
    (folder / "mx-smi").write_text(f"{script}esac\n")
    (folder / "mx-smi").chmod(0o755)


def test_state_of_maca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    reasons = "power cap : Active\nthermal : Not Active\n"
    mx_smi(tmp_path, dmon=MONITORS_OF_MACA["temperature first"], show_clk_tr=reasons, table=TABLES["2.3.1"])
    assert backend("maca").state(Device("maca", "MetaX C500", 1)) == {
        "clock_mhz": 450.0,
        "memory_clock_mhz": 1800.0,
        "power_w": 320.5,
        "temperature_c": 71.0,
        "throttle": "power cap",
    }


def test_state_of_maca_where_the_tool_has_no_monitor(tool: Tools) -> None:
    tool("mx-smi", TABLES["2.1.6"])  # whatever it is asked
    assert backend("maca").state(Device("maca", "MetaX C500", 1)) == {"power_w": 215.5, "temperature_c": 64.0}


def test_versions_of_maca(tool: Tools) -> None:
    tool("mx-smi", "MX-SMI 2.3.1 ... Kernel Mode Driver Version: 3.8.30\nMACA Version: 3.7.1.5   BIOS Version: 1.33.5.0\n")
    assert backend("maca").versions() == {"maca": "3.7.1.5", "driver": "3.8.30"}


def test_devices_of_cuda(nvidia: Callable[..., None]) -> None:
    nvidia(H200, UNKNOWN)
    first, second = backend("cuda").devices()
    assert (first.model, first.index, first.uuid) == ("NVIDIA H200", 0, "GPU-aa")
    assert first.peak_tflops["float16"] == pytest.approx(989.5)
    assert (second.index, second.peak_tflops) == (1, {})
    assert [d.arch for d in (first, second)] == ["sm_90a", "sm_89"], "each card's own"
    assert backend("cuda").target().arch == "sm_90a"


@pytest.mark.parametrize("shown, indices", [("", []), ("1", [1]), ("1,0", [0, 1]), ("GPU-bb", [1]), ("-1", [])])
def test_devices_are_those_that_the_user_left_visible(
    nvidia: Callable[..., None], monkeypatch: pytest.MonkeyPatch, shown: str, indices: list[int]
) -> None:
    nvidia(H200, UNKNOWN)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [d.index for d in backend("cuda").devices()] == indices


def test_an_older_card_has_no_suffix_in_its_architecture(nvidia: Callable[..., None]) -> None:
    nvidia(A100)
    target = backend("cuda").target()
    assert target.arch == "sm_80"
    assert backend("cuda").limits(target).shared_memory_bytes == 163 * 1024


@pytest.mark.parametrize("text, code", [("", 0), ("NVIDIA-SMI has failed because it couldn't communicate with the driver", 9)])
def test_a_driver_that_fails_is_a_machine_without_devices(tool: Tools, text: str, code: int) -> None:
    tool("nvidia-smi", text, code)
    assert backend("cuda").devices() == ()
    assert backend("cuda").target().arch == "sm_90a"  # the usual one: plans can be made anywhere


def test_state_of_cuda_leaves_out_what_the_card_does_not_tell(nvidia: Callable[..., None]) -> None:
    nvidia(
        {
            "clocks.sm": "1980",
            "clocks.mem": "3201",
            "power.draw": "455.12",
            "temperature.gpu": "[N/A]",
            "clocks_throttle_reasons.active": "0x0000000000000000",
        }
    )
    state = backend("cuda").state(Device("cuda", "NVIDIA H200", uuid="GPU-aa"))
    assert state == {"clock_mhz": 1980.0, "memory_clock_mhz": 3201.0, "power_w": 455.12, "throttle": "0x0000000000000000"}


# Of two versions of nvidia-smi, whose columns differ.
MONITORS = {
    "older": """# gpu         pid   type     sm    mem    enc    dec    command
# Idx           #    C/G      %      %      %      %    name
    0       {own}     C     97     40      -      -    python
    0       4242     C     37      4      -      -    python train.py
    0       4343     C      -      -      -      -    idle
    0       4444     G      0      0      -      -    Xorg
""",
    "newer": """# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    fb   ccpm    command
# Idx           #    C/G      %      %      %      %      %      %    MB     MB    name
    0       {own}     C     97     40      -      -      -      -   900      0    python
    0       4242     C     37      4      -      -      -      -   500      0    python train.py
    0       4343     C      -      -      -      -      -      -   500      0    idle
    0       4444     G      0      0      -      -      -      -    50      0    Xorg
""",
}
NOBODY = "# gpu   pid   type   sm   mem   command\n# Idx     #    C/G    %     %   name\n    0     -      -    -     -   -\n"


@pytest.mark.parametrize("said", MONITORS.values(), ids=MONITORS)
def test_others_on_an_nvidia_card_are_those_that_keep_it_busy(tool: Tools, said: str) -> None:
    tool("nvidia-smi", said.format(own=os.getpid()))
    found = backend("cuda").others(Device("cuda", "NVIDIA H200", uuid="GPU-aa"))()
    assert found == "on the device while this was timed: python train.py (pid 4242) at 37 %"


def test_an_nvidia_card_of_ones_own(tool: Tools) -> None:
    alone = [line for line in MONITORS["newer"].splitlines(keepends=True) if "4242" not in line]
    tool("nvidia-smi", "".join(alone).format(own=os.getpid()))
    assert backend("cuda").others(Device("cuda", "NVIDIA H200"))() == ""


@pytest.mark.parametrize("takes_turns", [True, False])
def test_who_takes_turns_with_us_is_no_stranger(tool: Tools, takes_turns: bool) -> None:
    """The tool tells of the last second, in which another sweep may have had its turn."""
    environment = {**os.environ, TAKES_TURNS: "1"} if takes_turns else None
    with subprocess.Popen(["sleep", "60"], env=environment, start_new_session=True) as other:
        try:
            tool("nvidia-smi", MONITORS["newer"].format(own=os.getpid()).replace("4242", str(other.pid)))
            found = backend("cuda").others(Device("cuda", "NVIDIA H200"))()
        finally:
            other.kill()
    assert found is not None
    assert (str(other.pid) in found) is not takes_turns


@pytest.mark.parametrize("said, code", [(MONITORS["newer"].format(own=1), 0), (NOBODY, 0), ("", 0), ("Not supported", 6)])
def test_a_tool_that_does_not_know_our_own_process_knows_nothing_of_others(tool: Tools, said: str, code: int) -> None:
    """In a container processes have other numbers than outside, where the tool has its own from."""
    tool("nvidia-smi", said, code)
    assert backend("cuda").others(Device("cuda", "NVIDIA H200"))() is None


PROCESSES = """| MX-SMI 2.2.9                        Kernel Mode Driver Version: 3.4.4           |
| 0           MetaX C500             | 0000:12:00.0        | 0%                   |
+------------------------------------+---------------------+----------------------+
| Process:                                                                        |
|  GPU                    PID         Process Name                 GPU Memory     |
|                                                                  Usage(MiB)     |
|=================================================================================|
{rows}+---------------------------------------------------------------------------------+
"""


@pytest.mark.parametrize(
    "row, users",
    [
        ("|  0                  4242         python train.py              1234           |", [User(4242, "python train.py")]),
        ("|  0        4242       python3.10            61440 MiB          |", [User(4242, "python3.10")]),
        ("|  1                  4242         python other card            1234           |", []),
        ("|  no process found                                                               |", []),
    ],
)
def test_the_processes_that_mx_smi_lists(row: str, users: list[User]) -> None:
    assert parse_processes(TABLES["2.3.1"] + PROCESSES.format(rows=row + "\n"), 0) == users


@pytest.mark.parametrize(
    "pids, expected",
    [
        (("own",), ""),
        (("own", "4242"), "on the device while this was timed: python train (pid 4242)"),
        (("4242",), None),
        ((), None),
    ],
)
def test_others_on_a_metax_card(tool: Tools, pids: tuple[str, ...], expected: str | None) -> None:
    owned = [pid.replace("own", str(os.getpid())) for pid in pids]
    rows = "".join(f"|  0                  {pid:>7}         python train                 1234           |\n" for pid in owned)
    rows += "|  1                  5555         python other card            1234           |\n"
    tool("mx-smi", PROCESSES.format(rows=rows))
    assert backend("maca").others(Device("maca", "MetaX C500"))() == expected


def test_others_where_there_is_no_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backend("cuda").others(Device("cuda", "X"))() is None
    assert backend("maca").others(Device("maca", "X"))() is None


def test_registers_and_spills_from_the_compilers_log() -> None:
    log = """ptxas info    : 0 bytes gmem
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 448 bytes cmem[0]
"""
    assert backend("cuda").resources(log) == {"registers": 168, "spill_bytes": 12}


@pytest.mark.parametrize(
    "kind, message, failure, sticky",
    [
        ("cuda", "CUDA error: an illegal memory access was encountered", FailureKind.CRASH, True),
        ("cuda", "CUDA error: misaligned address", FailureKind.CRASH, True),
        ("cuda", "CUDA: invalid configuration argument", FailureKind.LAUNCH_ERROR, True),
        ("cuda", "Failed to set the allowed dynamic shared memory size to 300000", FailureKind.LAUNCH_ERROR, False),
        ("maca", "MACA error: memory fault", FailureKind.CRASH, True),
        ("maca", "the kernel expects 3 arguments", FailureKind.LAUNCH_ERROR, False),
        ("cpu", "anything", FailureKind.LAUNCH_ERROR, False),
    ],
)
def test_sticky_errors(kind: str, message: str, failure: FailureKind, sticky: bool) -> None:
    assert backend(kind).classify(message) == (failure, sticky)


HOPPER = """extern "C" __global__ void __launch_bounds__(384, 1) gemm_kernel(__grid_constant__ const CUtensorMap A_desc,
    const half_t* __restrict__ B, half_t* __restrict__ C) {
  // tl::tma_load(A_desc) in a comment is none
  tl::prefetch_tma_descriptor(A_desc);
  tl::tma_load(A_desc, mbarrier[0], (&(((half_t*)A_tile)[0])), 0, 0);
  tl::cp_async_gs<16>((&(((half_t*)B_tile)[0])), (&(B[((int)threadIdx.x)])));
  *(uint4*)(C + 8) = *(uint4*)(C_tile + 8);
}
"""
C500 = """extern "C" __global__ void __launch_bounds__(512, 1) gemm_kernel(half_t* __restrict__ A, half_t* __restrict__ B,
    half_t* __restrict__ C) {
    *(uint2*)(A_tile + i) = *(uint2*)(A + i);
    *(uint2*)(B_tile + i) = tl::load_global_64(B + i);
    B_tile[j] = B[j];
}
extern "C" __global__ void __launch_bounds__(128) sum_kernel(float* __restrict__ Parts, half_t* __restrict__ C) {
    *(float4*)(Sum + i) = *(float4*)(Parts + i);
}
"""


def test_source_tells_how_its_inputs_are_read() -> None:
    assert evidence(HOPPER) == {
        "launch_bounds": "384, 1",
        "reads_A": "1 x tma_load",
        "reads_B": "1 x cp_async 16 B",
        "async_copies": 2,
    }
    assert evidence(C500) == {
        "launch_bounds": "512, 1",
        "reads_A": "1 x uint2",
        "reads_B": "1 x 64 bit, 1 x scalar",
        "launch_bounds_2": "128",
        "reads_Parts_2": "1 x float4",
        "async_copies": 0,
    }
    assert evidence("int main() {}") == {"async_copies": 0}


def elf(machine: int, size: int) -> bytes:
    """A 64-bit ELF file of that many bytes that says of itself what ours look at."""
    header = bytearray(size)
    header[:5] = b"\x7fELF\x02"
    struct.pack_into("<H", header, 18, machine)
    struct.pack_into("<Q", header, 40, size - 128)  # section headers: two of 64 bytes at the end
    struct.pack_into("<HHHH", header, 54, 56, 0, 64, 2)
    return bytes(header)


def test_cuda_binaries_are_found_within_a_host_library() -> None:
    cubin = elf(190, 512)
    assert list(sass.cubins(cubin)) == [cubin]
    assert list(sass.cubins(elf(62, 300) + b"padding" + cubin + b"\x7fELF" + elf(190, 256))) == [cubin, elf(190, 256)]
    assert list(sass.cubins(elf(62, 300))) == [] and list(sass.cubins(b"")) == []
