"""What passes as a name is held by MLflow, by its own rules and by the columns of its databases."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.store.model_registry.dbmodels.models import SqlRegisteredModel
from mlflow.store.tracking.dbmodels.models import SqlExperiment, SqlParam, SqlRun
from mlflow.utils.validation import MAX_ENTITY_KEY_LENGTH, _validate_experiment_name, _validate_model_name, _validate_param_name

from runner.errors import SpecError
from runner.names import LONGEST, LONGEST_LINE, LONGEST_WORKLOAD, line_fault, name_fault, workload_fault
from runner.spec import load_spec
from tests import families
from tests import outcomes as make
from tests.servers import local_folder
from tracking import contents, layout
from tracking.store import Store

__all__ = ["local_folder"]

LONGEST_DEVICE = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation"  # of the models that are known


@given(st.text(max_size=300) | st.from_regex(r"\A[\w./ :-]{1,260}\Z"))
def test_a_name_that_passes_is_a_param_of_mlflow(name: str) -> None:
    if name_fault(name) is None:
        _validate_param_name(name)
        assert 0 < len(name) <= min(MAX_ENTITY_KEY_LENGTH, SqlParam.key.type.length)
        assert len(name.encode()) <= 255, "a name of a file, in MLflow's store of folders"


@given(st.text(max_size=300))
def test_a_line_that_passes_is_one_line(text: str) -> None:
    if line_fault(text) is None:
        assert text.splitlines() == [text] and "\0" not in text and text.encode()


def test_a_run_and_what_a_workload_is_called_by_fit_into_the_databases() -> None:
    assert LONGEST_LINE + len(" 01234567") <= SqlRun.name.type.length
    assert SqlRun.name.type.length == layout.MAX_RUN_NAME
    longest = LONGEST_WORKLOAD + len(f" on {LONGEST_DEVICE}")
    assert longest <= min(255, SqlRegisteredModel.name.type.length, SqlExperiment.name.type.length)


def test_the_longest_names_are_recorded(local_folder: Path) -> None:
    """Into a real store, with the longest name of everything: what was refused stayed in the journal for ever."""
    workload = dataclasses.replace(make.WORKLOAD, family=f"m:{'F' * (LONGEST_WORKLOAD - 30)}")
    assert workload_fault(workload.name) is None
    knobs = {"k" * LONGEST: 1, "a.b-c_1": 2, **{f"knob_{i:03}": 1024 for i in range(40)}}
    variant = dataclasses.replace(make.variant(workload), config=knobs)
    device = dataclasses.replace(make.DEVICE, model=LONGEST_DEVICE)
    info = make.sweep(workload=workload, device=device, name="s" * LONGEST_LINE, swept=tuple(knobs))
    store = Store()
    outcome = dataclasses.replace(make.outcome(), variant=variant)
    run = store.client.get_run(store.write(store.open_sweep(info, 1), info, outcome, make.FLOPS))
    assert run.data.params["k" * LONGEST] == "1"
    assert len(contents.title(info, outcome)) > layout.MAX_RUN_NAME >= len(run.info.run_name)
    _validate_experiment_name(layout.experiment_name(workload, device.model))
    _validate_model_name(layout.model_name(workload, device.model))


HEAD = "name: {name}\nkernel: gemm\nworkload: {{M: 64, N: 64, K: 64, dtype: float16}}\n"
SPECS = {
    "two lines": (json.dumps("a\nb"), "", 1, "name takes one line of text"),
    "long": ("s" * 241, "", 1, "name is 241 bytes long: the record holds 240, so shorten it"),
    "NUL": (r'"a\0b"', "", 1, "name holds a character that cannot be shown: remove it"),
    "half a character": (r'"a\ud800"', "", 1, "name holds a character that cannot be shown: remove it"),
    "a question": ("a", 'question: "a\\0b"\n', 4, "question holds a character that cannot be shown: remove it"),
    "a pass config": ("a", f"base: {{pass.{'a' * 250}: 1}}\n", 4, "the record holds names of 250 characters"),
    "a pass config's value": ("a", 'base: {pass.tl.x: "a\\0b"}\n', 4, "has a value with a character that cannot be shown"),
}


@pytest.mark.parametrize("name, more, line, said", SPECS.values(), ids=SPECS)
def test_a_sweep_that_the_record_cannot_hold_is_refused(tmp_path: Path, name: str, more: str, line: int, said: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(HEAD.format(name=name) + more)
    with pytest.raises(SpecError) as raised:
        load_spec(path, lambda _: "cuda", families.load)
    assert str(raised.value).startswith(f"{path}:{line}: ") and said in str(raised.value) and "\n" not in str(raised.value)


def test_a_question_may_have_several_lines(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(HEAD.format(name="größe · 块") + "question: |\n  Which block?\n  And why?\n")
    assert load_spec(path, lambda _: "cuda", families.load).question == "Which block?\nAnd why?"


def test_a_workload_whose_name_is_too_long_names_its_line(tmp_path: Path) -> None:
    class Long(families.Product):
        dims = tuple(f"d{i}" for i in range(20))

    path = tmp_path / "s.yaml"
    shape = ", ".join(f"d{i}: 2147483647" for i in range(20))
    path.write_text(f"name: a\nkernel: long\nworkload: {{{shape}, dtype: float16}}\n")
    with pytest.raises(SpecError, match=r"s\.yaml:3: the workload's name, long 2147.* bytes long: the record holds 200"):
        load_spec(path, lambda _: "cuda", lambda _: Long())  # type: ignore[arg-type, return-value]
