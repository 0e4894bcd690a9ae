"""What is called what in MLflow: experiments, tags, metrics, artifacts. The names are the record's schema.

Artifact names end in what MLflow's viewer renders as text: it knows `.txt`, `.json` and `.log`, but neither `.c` nor `.cu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeVar

from runner.records import TIMED, UNSETTLED, Outcome, Status, Target, Value, Workload

OURS = "sweep_runner"  # marks the experiments and registered models that the runner made
KIND_SWEEP = "sweep"
KIND_VARIANT = "variant"

KIND = "kind"  # what a run is: KIND_SWEEP (parent) or KIND_VARIANT (child)
COMPLETE = "complete"  # set on a child with its last content: a child without it is the leftover of a killed driver
SWEEP_ID = "sweep_id"
SWEEP_NAME = "sweep_name"
VARIANT_ID = "variant_id"
ATTEMPT = "attempt"
STATUS = "status"
DECISION = "decision"
REASON = "reason"
DEVICE = "device"
SWEPT = "swept"
ACCEPTANCE = "acceptance"
DUPLICATE_OF = "duplicate_of"
WORKLOAD = "workload"
FAILURES = "failures"
PLANNED = "planned"
QUESTION = "question"
TRIES = "refused_accepts"  # how many attempts to have a run accepted were refused after it was measured
STANDING = "standing"  # of a sweep that runs, as JSON

COUNT_PREFIX = "variants_"  # parent's metrics: variants_measured, variants_hang …
COUNT_REUSED = "reused_variants"
PAIRED = "paired_speedup"  # a variant's metric, where it was measured in pairs
BEST_LATENCY = "best_latency_ms_median"
BEST_SPEEDUP = "best_speedup_vs_baseline"

PARENT = "mlflow.parentRunId"
NOTE = "mlflow.note.content"
LOGGED_TABLES = "mlflow.loggedArtifacts"
EXPERIMENT_KIND = {"mlflow.experimentKind": "custom_model_development"}  # else MLflow 3's page asks, and may open on "traces"

OUTCOME_JSON = "outcome.json"
CONFIG_JSON = "config.json"
SAMPLES_JSON = "samples.json"
VERDICTS_JSON = "verdicts.json"
PAIRED_JSON = "paired.json"
TRIES_JSON = "tries.json"
BUILD_LOG = "build.log"
ERROR_TXT = "error.txt"
KERNEL_DIR = "kernel"
BLOB = f"{KERNEL_DIR}/artifact.bin"
SWEEP_JSON = "sweep.json"
SWEEP_FILE = "sweep.yaml"
SUMMARY_TXT = "summary.txt"
RANKING_JSON = "ranking.json"
FAILURES_JSON = "failures.json"
CHART_PNG = "chart.png"

MAX_TAG = 8000
MAX_PARAM = 6000
MAX_BATCH = 100
"""MLflow's limits: longer values it cuts with only a warning, larger batches of params and tags it refuses."""

MAX_RUN_NAME = 250
"""Characters that its databases hold; PostgreSQL refuses a longer one. What else names something is checked in `runner.names`."""

T = TypeVar("T")


def experiment_name(workload: Workload | str, device_model: str) -> str:
    """`gemm 131072x2048x7168 float16 on NVIDIA H200`: only what may be ranked together shares an experiment."""
    return f"{workload if isinstance(workload, str) else workload.name} on {device_model}"


def model_name(workload: Workload | str, device_model: str) -> str:
    """The registered model of a workload on a device model; MLflow allows neither `/` nor `:` there, and no quote in a search."""
    return re.sub("[/:'\"]", "-", experiment_name(workload, device_model))


def source_name(target: Target) -> str:
    """Where the generated source lies: named for the reader, and ending in what MLflow's viewer shows."""
    return f"{KERNEL_DIR}/kernel.{'c' if target.kind == 'cpu' else 'cu'}.txt"


def run_status(outcome: Outcome) -> str:
    """MLflow's word for how a variant ended. A pruned one finished: nothing went wrong."""
    if outcome.status in UNSETTLED:
        return "KILLED"
    return "FINISHED" if outcome.status in TIMED or outcome.status is Status.PRUNED else "FAILED"


def shown(value: Value) -> str:
    """A value as a sweep file writes it."""
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)


def cut(text: str, limit: int) -> str:
    """`text`, or its beginning and a mark where MLflow would cut it silently."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def quoted(text: str) -> str:
    """A literal for MLflow's search language, which has no way to write a quote inside one."""
    return "'" + text.replace("'", "") + "'"


def chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    """`items` in lists of at most `size`; no list where there is no item."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part
