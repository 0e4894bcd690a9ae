"""A sweep that is run from here, from what a command asks for to what it shows at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from rich.console import Console

from runner.cli import render
from runner.cli.progress import watching
from runner.errors import InfrastructureLost, RunnerError
from runner.executors.starting import Starting
from runner.finals import due
from runner.interrupt import INTERRUPTED, interrupt
from runner.planning import Asked, Find, local_devices, plan, sweep_of
from runner.remote import demand_record
from runner.submit import Report, taken_over
from runner.submit import submit as run_sweep
from tracking.connection import is_new_here
from tracking.recorder import replay_all
from tracking.store import Store

Ask = Callable[[Find, Callable[[], Store], str | None], Asked]
"""Reads what is asked for, given where devices are looked for, what opens the store, and a model of device where there are
several to run on. Refuses what cannot be done."""


def run(address: str | None, ask: Ask) -> None:
    """Measure what is missing of what `ask` reads, show what came of it. Ends the process with its exit code."""
    demand_record()
    console = render.console()
    with interrupt.handled():
        reports = _measured(address, ask, console)
    if interrupt.asked or any(report.interrupted for report in reports):
        raise SystemExit(INTERRUPTED)
    if not any(report.rows for report in reports):
        raise RunnerError("nothing could be measured")


def _measured(address: str | None, ask: Ask, console: Console) -> list[Report]:
    """The reports of what is asked for, which are shown: one, or one for each model of device."""
    opened = cache(Store)
    with Starting(address) as ray:

        def look_up(model: str | None) -> Asked:
            return ask(ray.executor().devices if address else local_devices, opened, model)

        asked = look_up(None)
        reports = [_one(asked, opened, ray, console)]
        for model in asked.more:
            if not interrupt.asked:
                console.print()
                reports.append(_one(look_up(model), opened, ray, console))
    return reports


def _one(asked: Asked, opened: Callable[[], Store], ray: Starting, console: Console) -> Report:
    """Measure what is missing of one sweep, and show it."""
    asked.demand_device()
    for line in render.header(asked):
        console.print(line, markup=False, soft_wrap=True)
    ray.expect()
    if is_new_here():
        ray.begin(asked.devices)  # beside making the store, since nothing can be known
    store = opened()
    for late in replay_all(store):
        console.print(render.replayed(late), markup=False, soft_wrap=True)
    planned = plan(asked, store)
    sweep = sweep_of(planned, store)
    runs = {k: v.run_id for k, v in planned.known.items()}
    for line in render.best_so_far(planned):
        console.print(line, markup=False, soft_wrap=True)
    if not planned.missing and planned.again is None and not due(sweep):
        console.print("everything is measured already: nothing was started (--fresh measures again)")
        report = taken_over(sweep, runs)
    else:
        store.check()
        with watching(console, sweep) as watcher:
            report = run_sweep(sweep, store, runs, ray.executor(), watcher.watch, watcher.tell, watcher.say)
    render.show([*render.report(report, report.sweep.flops), *_where(store, report)])
    return report


def _where(store: Store, report: Report) -> list[str]:
    """Where MLflow shows it: every variant's run leads to its experiment and its sweep."""
    run_ids = [i for i in [row.run_id for row in report.rows] + [run_id for run_id, _ in report.others] if i]
    if not run_ids or report.pending:
        return []
    try:
        stored = store.load(run_ids[0])
    except InfrastructureLost:  # it went away just now, and nothing but this line needs it
        return []
    return ["", f"in MLflow: {store.ui_hint(stored.experiment_id, report.sweep.info.id if report.parent else stored.sweep_id)}"]
