"""Sweep files: what a good one becomes, and the one line that each bad one gets."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.family import load_family
from runner.errors import RequestError, SpecError, nearest
from runner.records import Acceptance, Allowance, Protocol, TargetKind
from runner.spec import SweepSpec, load_spec
from tests import families

INTERLEAVE = Path(__file__).parent.parent / "sweeps" / "interleave.yaml"

GOOD = """\
name: blocks
question: Which block is best?
kernel: gemm
workload: {M: 1024, N: 1024, K: 512, dtype: float16}
target: cuda
base:
  threads: 128
sweep:
  block_M: [64, 128]
  b_interleave:
    - 1
    - 2
strategy: grid
where:
  - block_K % b_interleave == 0
measure: {warmup: 1, repeat: 5}
accept: {max_abs_error: 0.5}
on:
  cpu:
    workload: {M: 64}
    base: {threads: null}
    accept:
      mma: none
"""


def choose(target: str) -> TargetKind:
    kinds: dict[str, TargetKind] = {"cpu": "cpu", "cuda": "cuda", "maca": "maca", "auto": "cuda"}
    if target not in kinds:
        raise RequestError(f"no target {target!r}: {nearest(target, kinds)}")
    return kinds[target]


def read(folder: Path, text: str, *settings: str, kind: TargetKind | None = None) -> SweepSpec:
    file = folder / "sweep.yaml"
    file.write_text(text, encoding="utf-8")
    return load_spec(file, (lambda _: kind) if kind else choose, families.load, settings)


def refusal(folder: Path, text: str, *settings: str, kind: TargetKind | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(folder, text, *settings, kind=kind)
    assert "\n" not in str(caught.value)
    return caught.value


def edited(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, f"{old!r} must be in the good file once"
    return GOOD.replace(old, new)


def test_a_good_file(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD)
    assert (spec.name, spec.question, spec.family, spec.kind, spec.arch) == (
        "blocks",
        "Which block is best?",
        "gemm",
        "cuda",
        None,
    )
    assert spec.workload.name == "gemm 1024x1024x512 float16"
    assert spec.base == {"block_M": 128, "block_K": 64, "num_stages": 1, "threads": 128, "b_interleave": 1}
    assert spec.sweep == {"block_M": (64, 128), "b_interleave": (1, 2)}
    assert spec.swept == ("block_M", "b_interleave")
    assert spec.where == ("block_K % b_interleave == 0",)
    assert (spec.protocol, spec.finals, spec.sessions) == (Protocol(1, 5), 4, 3)
    assert spec.acceptance == Acceptance(max_abs_error=0.5)
    assert spec.text == GOOD
    assert (spec.notes, spec.workload.origin) == ((), "")
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_a_minimal_file_has_defaults(tmp_path: Path) -> None:
    spec = read(tmp_path, "name: one\nkernel: gemm\nworkload: {M: 1, N: 1, K: 1, dtype: float32}\n")
    assert (spec.kind, spec.strategy, spec.sweep, spec.where, spec.finals, spec.sessions) == ("cuda", "grid", {}, (), 4, 3)
    assert (spec.protocol, spec.acceptance, spec.allowance) == (Protocol(), Acceptance(), Allowance())
    assert spec.base["threads"] == 256


def test_what_the_finals_and_the_gate_may_be_asked(tmp_path: Path) -> None:
    text = edited("accept: {max_abs_error: 0.5}", "accept: {max_abs_error: null, deterministic: none, max_error_ratio: 2}")
    spec = read(tmp_path, text, "measure.sessions=5")
    assert spec.acceptance == Acceptance(max_abs_error=None, deterministic="none", max_error_ratio=2.0)
    assert spec.sessions == 5 and "--set: sessions 3 -> 5" in spec.notes
    assert spec.protocol == read(tmp_path, text).protocol, "how many sessions there are is no part of a variant's identity"


def test_what_a_job_may_use(tmp_path: Path) -> None:
    text = edited("repeat: 5", "repeat: 5, deadline: [30, 90.5], compile_deadline: [5, 5], memory_gb: 1.5")
    assert read(tmp_path, text).allowance == Allowance((30.0, 90.5), (5.0, 5.0), 1.5)
    changed = read(tmp_path, text, "measure.deadline=[1, 2]", "measure.memory_gb=null")
    assert changed.allowance == Allowance((1.0, 2.0), (5.0, 5.0), None)
    assert "--set: deadline [30.0, 90.5] -> [1.0, 2.0]" in changed.notes
    assert changed.protocol.key == read(tmp_path, text).protocol.key, "it is no part of a variant's identity"


BAD = [
    # what is written instead of what, the line it stands on, and how the error ends
    ("question: Which", "qestion: Which", 2, "unknown key 'qestion' in a sweep file: did you mean 'question'?"),
    ("question: Which block is best?", "question: [a]", 2, "question takes text, not [a]: put it in quotes"),
    ("name: blocks", "name: 3", 1, "name takes text, not 3: put it in quotes"),
    ("name: blocks\n", "", 1, "name is missing: write 'name: my-sweep'"),
    ("kernel: gemm", "kernel: gem", 3, "no kernel family 'gem': did you mean 'gemm'?"),
    ("kernel: gemm\n", "", 1, "kernel is missing: write 'kernel: gemm'"),
    ("target: cuda", "target: cudda", 5, "no target 'cudda': did you mean 'cuda'?"),
    ("target: cuda", "target: auto/sm_90a", 5, "write it as cuda/sm_90a"),
    ("max_abs_error: 0.5", "deterministic: maybe", 17, "deterministic cannot be maybe: choose from: none, required"),
    ("max_abs_error: 0.5", "max_error_ratio: 0", 17, "max_error_ratio takes a number above 0, not 0"),
    ("repeat: 5", "repeat: 5, sessions: 0", 16, "sessions takes an integer of at least 1, not 0"),
    ("M: 1024", "m: 1024", 4, "unknown key 'm' in workload: "),
    ("M: 1024", "M: 0", 4, "M takes an integer of at least 1, not 0"),
    ("M: 1024", "M: -1", 4, "M takes an integer of at least 1, not -1"),
    ("M: 1024", "M: true", 4, "M takes an integer of at least 1, not true"),
    ("M: 1024", "M: 1024.0", 4, "M takes an integer of at least 1, not 1024.0"),
    ("M: 1024", "M: 4294967296", 4, "M takes an integer of at most 2147483647, not 4294967296"),
    ("M: 1024, ", "", 4, "workload lacks M: give all of M, N, K (or moe)"),
    ("M: 1024, ", "moe: {batch_size: 1}, ", 4, "workload gives both moe and N: keep one of them"),
    (
        "{M: 1024, N: 1024, K: 512, dtype: float16}",
        "\n  dtype: float16\n  moe:\n    batch_sise: 4",
        7,
        "unknown key 'batch_sise' in moe: did you mean 'batch_size'?",
    ),
    (
        "{M: 1024, N: 1024, K: 512, dtype: float16}",
        "\n  dtype: float16\n  moe: {batch_size: 1, seq_len: 1, top_k: 1, hidden_size: 1}",
        6,
        "moe lacks intermediate_size: give all of batch_size, seq_len, top_k, hidden_size, intermediate_size",
    ),
    ("dtype: float16", "dtype: float61", 4, "did you mean 'float16'?"),
    ("dtype: float16", "dtype: 16", 4, "choose from: float16, float32"),
    (", dtype: float16", "", 4, "workload lacks dtype: choose from float16, float32"),
    ("  threads: 128", "  thread: 128", 7, "gemm has no knob 'thread': did you mean 'threads'?"),
    ("  threads: 128", "  threads: true", 7, "threads takes a positive integer, not true"),
    ("  threads: 128", "  block_K: null", 7, "block_K takes a positive integer, not null"),
    ("  threads: 128", "  threads: '128\n\n    129'", 7, "threads takes a positive integer, not 128 129"),
    ("  threads: 128", "  threads: [128, 256]", 7, "several values belong under 'sweep: threads:'"),
    ("  threads: 128", "  threads: .inf", 7, "write a finite number, true, false, null or text"),
    ("  threads: 128", "  threads: 1e999", 7, "write a finite number, true, false, null or text"),
    ("  threads: 128", "  threads: !!python/name:os.system 1", 7, "write a finite number, true, false, null or text"),
    (
        "  threads: 128",
        "  threads: 128\n  block_K: 1\n  threads: 64",
        9,
        "'threads' is written twice (first on line 7): keep one of them",
    ),
    ("  threads: 128", "  pass.: 1", 7, "write it as pass.tl.enable_fast_math"),
    ("  threads: 128", "  env.LD_PRELOAD: x.so", 7, "only env.TILELANG_* and env.MACA_* can, in capitals"),
    ("  threads: 128", "  env.tilelang_x: 1", 7, "only env.TILELANG_* and env.MACA_* can, in capitals"),
    ("  threads: 128", "  env.TILELANG_X: true", 7, "write 1 or 0"),
    ("  threads: 128", "\tthreads: 128", 7, "a tab where YAML allows none: indent with spaces"),
    ("base:\n  threads: 128", "base: 128", 6, "base takes `key: value` lines, not 128"),
    ("[64, 128]", "[64, 0]", 9, "block_M takes a positive integer, not 0"),
    ("[64, 128]", "[64, 64]", 9, "block_M lists 64 twice: remove one of them"),
    ("[64, 128]", "[]", 9, "block_M is an empty list: give it a value, or leave it out"),
    ("[64, 128]", "64", 9, "block_M takes a list, not 64: write it in brackets, as [1, 2]"),
    ("[64, 128]", "[64, [1]]", 9, "block_M takes one value, not [1]: write each value on its own"),
    ("[64, 128]", "[64, 128", 10, "check indentation, colons, quotes and brackets"),
    ("block_M:", "blockM:", 9, "gemm has no knob 'blockM': did you mean 'block_M'?"),
    ("    - 2\n", "    - 3\n", 12, "b_interleave takes one of 1, 2, 4, 8, 16, not 3"),
    ("strategy: grid", "strategy: gird", 13, "strategy cannot be gird: did you mean 'grid'?"),
    ("strategy: grid", "strategy: list", 13, "need each other: write both or neither"),
    ("strategy: grid", "configs: [{block_M: 1}]", 13, "need each other: write both or neither"),
    ("strategy: grid", "configs: [{block_M: 1}]\nstrategy: list", 8, "remove 'sweep'"),
    ("  - block_K %", "  - blockK %", 15, "unknown name 'blockK': did you mean 'block_K'?"),
    ("b_interleave == 0", "b_interleave ==", 15, "and, or, not, min, max and abs"),
    ("  - block_K % b_interleave == 0", "  - 3", 15, "a condition of where takes text, not 3: put it in quotes"),
    ("warmup: 1", "warmup: -1", 16, "warmup takes an integer of at least 0, not -1"),
    ("repeat: 5", "repeat: 0", 16, "repeat takes an integer of at least 1, not 0"),
    ("repeat: 5", "finals: -1", 16, "finals takes an integer of at least 0, not -1"),
    ("repeat: 5", "repeats: 5", 16, "unknown key 'repeats' in measure: did you mean 'repeat'?"),
    ("max_abs_error: 0.5", "alone: maybe", 17, "alone cannot be maybe: choose from: none, required"),
    ("repeat: 5", "deadline: 60", 16, "deadline takes its least and its most seconds, as [60, 600], not 60"),
    ("repeat: 5", "compile_deadline: [9]", 16, "compile_deadline takes its least and its most seconds, as [60, 300], not [9]"),
    ("repeat: 5", "deadline: [60, long]", 16, "deadline's most takes a number above 0, not long"),
    ("repeat: 5", "deadline: [0, 60]", 16, "deadline's least takes a number above 0, not 0"),
    ("repeat: 5", "deadline: [60, 5]", 16, "deadline has its least seconds above its most, 60 and 5: swap them"),
    ("repeat: 5", "memory_gb: 0", 16, "memory_gb takes a number above 0, not 0"),
    ("repeat: 5", "memory_gb: lots", 16, "memory_gb takes a number above 0, not lots"),
    ("max_abs_error: 0.5", "max_abs_error: -0.5", 17, "max_abs_error takes a number of at least 0, not -0.5"),
    ("max_abs_error: 0.5", "max_abs_error: true", 17, "max_abs_error takes a number of at least 0, not true"),
    ("max_abs_error: 0.5", "min_speedup: 0", 17, "min_speedup takes a number above 0, not 0"),
    ("max_abs_error: 0.5", "mma: yes", 17, "mma cannot be yes: choose from: none, required"),
    ("  cpu:\n", "  gpu:\n", 19, "unknown key 'gpu' in on: did you mean 'cpu'?"),
    ("    workload: {M: 64}", "    workloads: {M: 64}", 20, "unknown key 'workloads' in on: cpu: did you mean 'workload'?"),
    ("    workload: {M: 64}", "    workload: {M: 0}", 20, "M takes an integer of at least 1, not 0"),
    ("    workload: {M: 64}", "    name: other", 20, "unknown key 'name' in on: cpu: choose from"),
    ("    base: {threads: null}", "    base: {thread: null}", 21, "gemm has no knob 'thread': did you mean 'threads'?"),
    (
        "    base: {threads: null}",
        "    sweep: {b_interleav: null}",
        21,
        "gemm has no knob 'b_interleav': did you mean 'b_interleave'?",
    ),
    ("    base: {threads: null}\n", "", 7, "means nothing on the cpu target: write 'threads: null' under 'on: cpu: base:'"),
    ("      mma: none", "      mma: nine", 23, "mma cannot be nine: did you mean 'none'?"),
]


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize(("old", "new", "line", "end"), BAD, ids=[f"{new[:30]!r}" for _, new, _, _ in BAD])
def test_a_bad_file_gets_one_line_with_the_fix(tmp_path: Path, kind: TargetKind, old: str, new: str, line: int, end: str) -> None:
    """Also on the target that the faulty part is not for: it would be found too late there."""
    text = edited(old, new)
    resolve = choose if "target: cudda" in text else lambda _: kind
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(file, resolve, families.load)
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: "), message
    assert end in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "line", "end"),
    [
        ("", None, "the file is empty"),
        ("# only a comment\n", None, "the file is empty"),
        ("- a\n- b\n", 1, "a sweep file takes `key: value` lines, not [a, b]"),
        ("just words\n", 1, "a sweep file takes `key: value` lines"),
        ("name: a\n---\nname: b\n", 2, "check indentation"),
        ("name: 'open\n", 2, "while scanning a quoted scalar that begins on line 1"),
        ("name: a\n[x]: b\n", 2, "a key must be one word"),
        ("name: *nowhere\n", 1, "undefined alias"),
        ("name: &a [*a]\n", 1, "an alias stands inside what it refers to"),
        ("name: a\x07b\n", 1, "remove it"),
        ("name: " + "[" * 2000 + "\n", None, "nested too deeply"),
        ("name: a\nkernel: scan\nworkload: {moe: {}, dtype: float16}\n", 3, "scan has rows, columns: give those"),
    ],
)
def test_a_file_that_is_no_sweep(tmp_path: Path, text: str, line: int | None, end: str) -> None:
    error = refusal(tmp_path, text)
    assert isinstance(error, SpecError)
    assert end in str(error)
    if line:
        assert error.line == line


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="save it as UTF-8"):
        load_spec(tmp_path / "a.yaml", choose, families.load)
    with pytest.raises(SpecError, match="name a sweep file"):
        load_spec(tmp_path, choose, families.load)


def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"there is no \.yaml file in"):
        load_spec(tmp_path / "none" / "a.yaml", choose, families.load)
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "interleave.yaml").touch()
    for wrong in ("sweeps/interlaeve.yaml", "sweeps/interleave", "interleave.yaml"):
        with pytest.raises(SpecError) as caught:
            load_spec(wrong, choose, families.load)
        assert str(caught.value) == f"{wrong}: there is no such file: did you mean 'sweeps/interleave.yaml'?"


@given(
    st.integers(0, len(GOOD)),
    st.integers(0, 12),
    st.text(alphabet="\n\t :-[]{},&*!|>'\"%#?null01xM\0é", max_size=12),
    st.sampled_from(["cpu", "cuda"]),
)
def test_no_slip_of_the_keyboard_is_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, at: int, cut: int, typed: str, kind: TargetKind
) -> None:
    text = GOOD[:at] + typed + GOOD[at + cut :]
    try:
        spec = read(tmp_path_factory.getbasetemp(), text, kind=kind)
    except RequestError as error:
        assert "\n" not in str(error)
    else:
        assert set(spec.base) >= {knob.name for knob in families.Product.knobs}


def test_aliases_of_aliases_do_not_blow_up(tmp_path: Path) -> None:
    lines = ["name: a", "kernel: gemm", "where:", "- &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"- &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 40)]
    text = "\n".join([*lines, "workload: {M: 1, N: 1, K: 1, dtype: float16}", "base: *a39"])
    assert refusal(tmp_path, text).args[0].startswith(f"{tmp_path / 'sweep.yaml'}:")


def test_words_mean_what_yaml_1_2_says(tmp_path: Path) -> None:
    text = edited("name: blocks", "name: off").replace("max_abs_error: 0.5", "max_abs_error: 1e-3")
    spec = read(
        tmp_path, text.replace("  threads: 128", "  threads: 0x80\n  pass.a: yes\n  pass.b: True\n  pass.c: 1_0\n  pass.d: 010")
    )
    assert spec.name == "off"
    assert spec.acceptance.max_abs_error == 1e-3
    assert [spec.base[k] for k in ("threads", "pass.a", "pass.b", "pass.c", "pass.d")] == [128, "yes", True, "1_0", 10]


def test_anchors_and_merges(tmp_path: Path) -> None:
    text = edited("  threads: 128", "  <<: &common {threads: 64, block_K: 32}\n  block_K: 16").replace(
        "base: {threads: null}", "base: {<<: *common, threads: null}"
    )
    assert read(tmp_path, text).base["block_K"] == 16
    assert read(tmp_path, text, kind="cpu").base["block_K"] == 32


def test_moe_numbers_become_a_shape(tmp_path: Path) -> None:
    moe = "{batch_size: 4, seq_len: 8192, top_k: 4, hidden_size: 7168, intermediate_size: 2048}"
    spec = read(tmp_path, edited("M: 1024, N: 1024, K: 512", f"moe: {moe}"))
    assert spec.workload.shape == {"M": 131072, "N": 2048, "K": 7168}
    assert spec.workload.origin == "moe: batch_size=4 seq_len=8192 top_k=4 hidden_size=7168 intermediate_size=2048"
    too_many = moe.replace("4, seq_len: 8192", "400000, seq_len: 8192")
    assert "M = batch_size * seq_len * top_k takes an integer of at most" in str(
        refusal(tmp_path, edited("M: 1024, N: 1024, K: 512", f"moe: {too_many}"))
    )


def test_a_target_changes_what_it_names_and_says_so(tmp_path: Path) -> None:
    spec = read(tmp_path, GOOD, kind="cpu")
    assert spec.workload.shape == {"M": 64, "N": 1024, "K": 512}
    assert spec.workload.origin == "changed for cpu"
    assert (spec.base["threads"], spec.base["num_stages"]) == (None, None)
    assert spec.acceptance == Acceptance(max_abs_error=0.5, mma="none")
    assert spec.notes == ("on cpu: M 1024 -> 64", "on cpu: threads 128 -> null", "on cpu: mma required -> none")


def test_a_target_changes_the_sweep(tmp_path: Path) -> None:
    on = "    sweep: {block_M: [32], b_interleave: null, block_K: [16, 32]}\n    where: []\n    base: {threads: null}"
    assert "where is an empty list" in str(refusal(tmp_path, edited("    base: {threads: null}", on), kind="cpu"))
    spec = read(tmp_path, edited("    base: {threads: null}", on.replace("[]", "M > 1")), kind="cpu")
    assert spec.sweep == {"block_M": (32,), "block_K": (16, 32)}
    assert spec.where == ("M > 1",)
    assert "on cpu: sweep of b_interleave [1, 2] -> (not set)" in spec.notes
    assert "on cpu: sweep of block_M [64, 128] -> [32]" in spec.notes


def test_a_swept_knob_that_means_nothing_on_a_target(tmp_path: Path) -> None:
    text = edited("block_M: [64, 128]", "threads: [64, 128]")
    error = refusal(tmp_path, text, kind="cpu")
    assert str(error).endswith(":9: threads means nothing on the cpu target: write 'threads: null' under 'on: cpu: sweep:'")
    cured = text.replace("    base: {threads: null}", "    base: {threads: null}\n    sweep: {threads: null}")
    assert read(tmp_path, cured, kind="cpu").swept == ("b_interleave",)


def test_an_architecture_belongs_to_the_target_it_was_written_for(tmp_path: Path) -> None:
    text = edited("target: cuda", "target: cuda/sm_80")
    assert read(tmp_path, text).arch == "sm_80"
    assert read(tmp_path, text, kind="cpu").arch is None


def test_settings_win_and_are_noted(tmp_path: Path) -> None:
    settings = ("block_K=32", "base.num_stages=2", "workload.N=7", "measure.repeat=9", "accept.max_abs_error=0")
    more = ("sweep.block_M=[16]", "pass.tl.enable_fast_math=true", "env.TILELANG_X=1", "strategy=one_at_a_time")
    spec = read(tmp_path, GOOD, *settings, *more)
    assert (spec.base["block_K"], spec.base["num_stages"], spec.workload.shape["N"]) == (32, 2, 7)
    assert (spec.protocol.repeat, spec.acceptance.max_abs_error, spec.strategy) == (9, 0.0, "one_at_a_time")
    assert spec.sweep["block_M"] == (16,)
    assert (spec.base["pass.tl.enable_fast_math"], spec.base["env.TILELANG_X"]) == (True, 1)
    assert "--set: block_K 64 -> 32" in spec.notes
    assert "--set: pass.tl.enable_fast_math (not set) -> true" in spec.notes
    assert spec.workload.origin == "changed by --set"
    assert read(tmp_path, GOOD, "workload.M=8", kind="cpu").workload.shape["M"] == 8, "--set wins over on:"
    assert read(tmp_path, GOOD, "threads=64", "threads=32").base["threads"] == 32, "the last one wins"


@pytest.mark.parametrize(
    ("setting", "end"),
    [
        ("thread=1", "nothing is called 'thread': did you mean 'threads'?"),
        ("mesure.repeat=1", "nothing is called 'mesure.repeat': did you mean"),
        ("measure.repeats=1", "unknown key 'repeats' in measure: did you mean 'repeat'?"),
        ("measure.repeat=many", "repeat takes an integer of at least 1, not many"),
        ("base.thread=1", "gemm has no knob 'thread': did you mean 'threads'?"),
        ("threads=true", "threads takes a positive integer, not true"),
        ("threads=[1", "check indentation, colons, quotes and brackets"),
        ("threads", "write it as PATH=VALUE"),
        ("=1", "write it as PATH=VALUE"),
        ("env.PATH=1", "only env.TILELANG_* and env.MACA_* can, in capitals"),
        ("target=cpu", "nothing is called 'target'"),
        ("workload.moe.batch_size=1", "moe lacks seq_len"),
    ],
)
def test_a_bad_setting_is_quoted_with_the_fix(tmp_path: Path, setting: str, end: str) -> None:
    message = str(refusal(tmp_path, GOOD, setting))
    assert message.startswith(f"--set {setting}: ")
    assert end in message


def test_the_interleave_sweep() -> None:
    """The sweep that ships, against the real family, for every kind of target."""
    for kind in get_args(TargetKind):
        spec = load_spec(INTERLEAVE, lambda _, kind=kind: kind, load_family)  # type: ignore[misc]
        assert spec.sweep == {"b_interleave": (1, 2, 4, 8, 16)}
        if kind == "cpu":
            assert spec.workload.name == "gemm 512x512x512 float32"
            assert (spec.base["threads"], spec.acceptance.mma) == (None, "none")
        else:
            assert spec.workload.name == "gemm 131072x2048x7168 float16"
            assert (spec.base["threads"], spec.acceptance.mma) == (512, "required")
