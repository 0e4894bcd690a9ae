"""The same no-op through Ray Tune with its MLflow callback, which logs one param, one metric and a few tags for a trial.

Its actors are reused, it prints nothing, its other loggers are off and no trial is sent anywhere. As many trials run at a time
as the machine has CPUs, which is its default.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


def peer(trials: int, uri: str) -> dict[str, float]:
    """Seconds for so many trials, into the MLflow store at `uri`."""
    os.environ |= {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1", "RAY_AIR_NEW_OUTPUT": "0"}
    import runner.executors  # noqa: F401, I001 - Ray reads its settings on import, and these are made first
    import ray
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    class First(tune.Callback):
        at = 0.0

        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **_: Any) -> None:
            self.at = self.at or time.perf_counter()

    def trial(config: dict[str, int]) -> None:
        tune.report({"latency_ms_median": 1.0 + config["block_M"] % 7})

    ray.init(address="local", include_dashboard=False, log_to_driver=False)
    first = First()
    started = time.perf_counter()
    callback = MLflowLoggerCallback(tracking_uri=uri, experiment_name="peer", save_artifact=False)
    tuner = tune.Tuner(
        trial,
        param_space={"block_M": tune.grid_search(list(range(trials)))},
        run_config=tune.RunConfig(callbacks=[callback, first], verbose=0, storage_path=str(Path.cwd() / "tune")),
        tune_config=tune.TuneConfig(reuse_actors=True),
    )
    results = tuner.fit()
    ended = time.perf_counter()
    assert not results.errors and len(results) == trials
    return {
        "variants": trials,
        "sweep_s": ended - started,
        "first_s": first.at - started,
        "per_second": trials / (ended - started),
        "per_second_after_first": trials / (ended - first.at),
        "ms_per_variant": (ended - started) / trials * 1e3,
    }
