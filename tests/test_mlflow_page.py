"""What a person sees in MLflow's pages after the main job, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser import chromium, text_once, visit
from tests.conftest import Finished
from tests.servers import running


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def address(interleave: Finished) -> Iterator[str]:
    """`mlflow ui` with no flags, in the folder of the sweep."""
    with running(interleave.folder, command="ui") as found:
        yield found


def printed_path(interleave: Finished) -> str:
    """The part after the server of the address that the sweep printed."""
    line = next(line for line in interleave.output.splitlines() if line.startswith("in MLflow: "))
    return line.split("http://127.0.0.1:5000", 1)[1].rstrip(")")


def test_the_printed_address_shows_the_runs_with_the_columns_that_matter(
    page: webdriver.Chrome, address: str, interleave: Finished, tmp_path: Path
) -> None:
    visit(page, address + printed_path(interleave))
    text = text_once(page, "b_interleave=16", "latency_ms_median")
    for column in ("latency_ms_median", "tflops", "speedup_vs_baseline", "max_abs_error"):
        assert column in text
    names = [line for line in text.splitlines() if line.startswith("b_interleave=")]
    medians = {f"b_interleave={r['b_interleave']}": r["latency_ms"] for r in interleave.ranking()}
    assert names == sorted(medians, key=lambda name: medians[name]), "fastest first"


def test_a_variants_page_says_what_was_tried_and_what_came_of_it(
    page: webdriver.Chrome, address: str, interleave: Finished
) -> None:
    row = interleave.ranking()[0]
    experiment = printed_path(interleave).split("/")[3]
    visit(page, f"{address}/#/experiments/{experiment}/runs/{row['run_id']}?workflowType=machine_learning")
    text = text_once(page, "Tried", "Came of it", "torch.mm")
    assert "Which B pre-pack width feeds the MMA best?" in text


def test_the_generated_source_is_rendered(page: webdriver.Chrome, address: str, interleave: Finished) -> None:
    row = interleave.ranking()[0]
    experiment = printed_path(interleave).split("/")[3]
    visit(
        page,
        f"{address}/#/experiments/{experiment}/runs/{row['run_id']}/artifacts/kernel/kernel.c.txt?workflowType=machine_learning",
    )
    assert "gemm_kernel" in text_once(page, "kernel.c.txt", "int32_t gemm_kernel")


def test_the_sweeps_ranking_is_rendered_as_a_table(page: webdriver.Chrome, address: str, interleave: Finished) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{interleave.folder}/mlflow.db")
    child = client.get_run(interleave.ranking()[0]["run_id"])
    parent = child.data.tags["mlflow.parentRunId"]
    visit(
        page,
        f"{address}/#/experiments/{child.info.experiment_id}/runs/{parent}/artifacts/ranking.json?workflowType=machine_learning",
    )
    text_once(page, "View as table", "b_interleave", "latency_ms")
    assert {"chart.png", "sweep.yaml"} <= {a.path for a in client.list_artifacts(parent)}
