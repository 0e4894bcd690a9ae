"""What cannot run is said beforehand, with the first reason there is."""

from __future__ import annotations

from pathlib import Path

from runner.prune import prune
from runner.records import Limits, Value
from tests import families
from tests.test_expand import CUDA, FAMILY, expansion

ROOMY = Limits(max_threads=1024, shared_memory_bytes=None, warp_size=32, dtypes=("float16", "float32"))


def reasons(folder: Path, text: str, limits: Limits, knob: str) -> dict[Value, str | None]:
    result = expansion(folder, text)
    pruned = prune(result, FAMILY, limits)
    assert set(pruned) <= {v.id for v in result.variants}
    return {v.config[knob]: pruned.get(v.id) for v in result.variants}


def test_nothing_is_pruned_where_all_fits(tmp_path: Path) -> None:
    assert prune(expansion(tmp_path, "sweep: {threads: [1024]}"), FAMILY, ROOMY) == {}


def test_each_reason_is_given(tmp_path: Path) -> None:
    limits = Limits(max_threads=512, shared_memory_bytes=32768, warp_size=32, dtypes=("float16",))
    threads = reasons(tmp_path, "sweep: {threads: [512, 513]}", limits, "threads")
    assert threads == {256: None, 512: None, 513: f"threads 513 is above the 512 of a block on {CUDA}"}
    block = reasons(tmp_path, "sweep: {block_M: [64, 129]}", limits, "block_M")
    assert block == {128: None, 64: None, 129: "block_M 129 needs 33024 bytes of shared memory of 32768"}
    where = reasons(tmp_path, "sweep: {b_interleave: [2]}\nwhere: [b_interleave == 1]", limits, "b_interleave")
    assert where == {1: None, 2: "where: b_interleave == 1 is false"}


def test_a_dtype_that_the_target_lacks_prunes_all(tmp_path: Path) -> None:
    result = expansion(tmp_path, "sweep: {b_interleave: [2]}")
    pruned = prune(result, FAMILY, Limits(None, None, None, ("float32",)))
    assert list(pruned) == [v.id for v in result.variants]
    assert set(pruned.values()) == {f"dtype float16 is not supported on {CUDA}, which has float32"}


def test_a_where_is_named_before_a_limit(tmp_path: Path) -> None:
    text = "sweep: {threads: [2048]}\nwhere: [threads < 2000]"
    assert reasons(tmp_path, text, ROOMY, "threads")[2048] == "where: threads < 2000 is false"


def test_no_limit_is_no_reason(tmp_path: Path) -> None:
    unlimited = Limits(None, None, None, families.Product.dtypes)
    assert prune(expansion(tmp_path, "sweep: {threads: [4096], block_M: [100000]}"), FAMILY, unlimited) == {}
