"""The runs table as a kernel engineer wants it: MLflow's own shared view, one per sweep, that a link opens.

MLflow keeps a shared view as an experiment tag `mlflow.sharedViewState.<key>` and opens it by `?viewStateShareKey=<key>`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

TAG = "mlflow.sharedViewState."

METRICS = ("latency_ms_median", "tflops", "speedup_vs_baseline", "paired_speedup", "max_abs_error", "mma_count")
TAGS = ("status", "decision", "reason")


def tag(sweep_id: str, swept: Sequence[str]) -> tuple[str, str]:
    """Key and value of the experiment tag that holds a sweep's view: fastest first, the knobs beside the numbers."""
    columns = [f"metrics.`{m}`" for m in METRICS] + [f"params.`{k}`" for k in swept] + [f"tags.`{t}`" for t in TAGS]
    state = {
        "searchFilter": f"tags.sweep_id = '{sweep_id}' and tags.kind = 'variant'",
        "orderByKey": "metrics.`latency_ms_median`",
        "orderByAsc": True,
        "selectedColumns": columns,
    }
    return TAG + sweep_id, json.dumps(state)


def path(experiment_id: str, sweep_id: str) -> str:
    """The part of an address that opens the view."""
    return f"/#/experiments/{experiment_id}/runs?viewStateShareKey={sweep_id}&workflowType=machine_learning"
