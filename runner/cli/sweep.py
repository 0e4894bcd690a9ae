"""`sweep`: plan and run sweeps, and look at what they came to."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache
from typing import Any

import click

from runner.cli.entry import Command

FILE = click.argument("file", type=click.Path())
TARGET = click.option("--target", metavar="KIND", help="maca, cuda, cpu, or auto: the best kind there is. Overrides the file's.")
SET = click.option(
    "--set", "settings", multiple=True, metavar="K=V", help="Change one value of the file: --set measure.repeat=100."
)
ADDRESS = click.option(
    "--address", envvar="RAY_ADDRESS", help="A Ray cluster, as host:port. Without it a Ray is started here for the sweep."
)
FRESH = click.option("--fresh", is_flag=True, help="Take nothing over from earlier sweeps: measure everything again.")
JSON = click.option("--json", "json_", is_flag=True, help="Print data instead of text.")


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Find the fastest kernel: compile, check and time every variant that a YAML file names.

    \b
    Example:  sweep submit sweeps/interleave.yaml
    """


@main.command()
@FILE
@TARGET
@SET
@FRESH
@JSON
def plan(file: str, target: str | None, settings: tuple[str, ...], fresh: bool, json_: bool) -> None:
    """Show what a sweep would do: variants, those pruned with the reason, those already measured. Starts nothing.

    \b
    Example:  sweep plan sweeps/interleave.yaml --target maca
    """
    from runner.cli import render
    from runner.planning import local_devices, read
    from runner.planning import plan as look_up
    from tracking.store import Store

    planned = look_up(read(file, target, settings, local_devices, fresh), Store())
    if json_:
        states = {**dict.fromkeys(planned.pruned, "pruned"), **{k: v.outcome.status.value for k, v in planned.known.items()}}
        render.as_json(
            [
                {"id": v.id, "config": v.config, "state": states.get(v.id, "to do"), "why": planned.pruned.get(v.id, "")}
                for v in planned.expansion.variants
            ]
        )
        return
    _show(render.planned(planned))


@main.command()
@FILE
@ADDRESS
@TARGET
@SET
@FRESH
def submit(file: str, address: str | None, target: str | None, settings: tuple[str, ...], fresh: bool) -> None:
    """Run a sweep and rank what it measured. What an earlier sweep measured under the same identity is not measured again.

    \b
    Example:  sweep submit sweeps/interleave.yaml
              sweep submit sweeps/interleave.yaml --target cuda --set measure.repeat=100
    """
    from runner.planning import read

    _run(address, lambda find, _: read(file, target, settings, find, fresh))


@main.command()
@click.argument("sweep")
@ADDRESS
def resume(sweep: str, address: str | None) -> None:
    """Take up a sweep that was interrupted or killed: measure what is missing, and end its record.

    \b
    Example:  sweep resume 1f0c
    """
    from runner.planning import read_again

    def asked(find: Any, opened: Any) -> Any:
        store = opened()
        return read_again(store.sweep_info(store.find_sweep(sweep)), find)

    _run(address, asked)


@main.command("list")
@click.option("--limit", default=20, show_default=True, help="How many, newest first.")
@JSON
def list_(limit: int, json_: bool) -> None:
    """List the sweeps in the store, newest first.

    \b
    Example:  sweep list --limit 5
    """
    from runner.cli import render
    from tracking.store import Store

    found = Store().sweeps(limit)
    if json_:
        render.as_json(found)
    else:
        _show([render.sweeps(found)] if found else ["no sweeps yet: sweep submit sweeps/interleave.yaml"])


@main.command()
@click.argument("sweep")
@JSON
def status(sweep: str, json_: bool) -> None:
    """What a sweep came to, or how it stands while it runs. SWEEP is its id, or the beginning of it.

    \b
    Example:  sweep status 1f0c
    """
    from runner.cli import render
    from tracking.store import Store

    store = Store()
    found = store.find_sweep(sweep)
    rows = store.ranking(found)
    if json_:
        render.as_json({"sweep": found, "ranking": rows})
        return
    lines = [[str(v) if v is not None else "" for v in row.values()] for row in rows]
    headers = list(rows[0]) if rows else []
    where = store.ui_hint(found.experiment_id, found.id)
    standing = render.standing(found, datetime.now(timezone.utc))
    _show([render.sweeps([found]), *standing, *([render.table(headers, lines)] if rows else []), where])


def _run(address: str | None, ask: Callable[[Any, Any], Any]) -> None:
    """Measure what is missing of what `ask` reads, show what came of it. Ends the process with its exit code."""
    from runner.cli import render
    from runner.errors import RunnerError
    from runner.interrupt import INTERRUPTED, interrupt

    console = render.console()
    with interrupt.handled():
        report, where = _measured(address, ask, console)
        _show([*render.report(report, report.sweep.flops), *where])
    if report.interrupted or interrupt.asked:
        raise SystemExit(INTERRUPTED)
    if not report.rows:
        raise RunnerError("nothing could be measured")


def _measured(address: str | None, ask: Callable[[Any, Any], Any], console: Any) -> tuple[Any, list[str]]:
    """The report of what is asked for, once it is measured, and where MLflow shows it.

    `ask` is given where devices are looked for and a function that opens the store, and refuses what cannot be done.
    """
    from runner.cli import render
    from runner.cli.progress import watching
    from runner.executors.on_ray import Starting
    from runner.planning import local_devices, plan, sweep_of
    from runner.submit import submit as run_sweep
    from runner.submit import taken_over
    from tracking.recorder import replay_all
    from tracking.store import Store

    opened = cache(Store)
    with Starting(address) as ray:
        asked = ask(ray.executor().devices if address else local_devices, opened)
        asked.demand_device()
        for line in render.header(asked):
            console.print(line, markup=False, soft_wrap=True)
        ray.expect()
        store = opened()
        if store.is_new:
            ray.begin()  # beside making the store, since nothing can be known
        for late in replay_all(store):
            console.print(render.replayed(late), markup=False, soft_wrap=True)
        planned = plan(asked, store)
        sweep = sweep_of(planned, store)
        runs = {k: v.run_id for k, v in planned.known.items()}
        for line in render.best_so_far(planned):
            console.print(line, markup=False, soft_wrap=True)
        if not planned.missing and planned.again is None:
            console.print("everything is measured already: nothing was started (--fresh measures again)")
            report = taken_over(sweep, runs)
        else:
            store.check()
            with watching(console, sweep) as watcher:
                report = run_sweep(sweep, store, runs, ray.executor(), watcher.watch, watcher.tell, watcher.say)
    return report, _where(store, report)


def _where(store: Any, report: Any) -> list[str]:
    """Where MLflow shows it: every variant's run leads to its experiment and its sweep."""
    from runner.errors import InfrastructureLost

    run_ids = [i for i in [row.run_id for row in report.rows] + [run_id for run_id, _ in report.others] if i]
    if not run_ids or report.pending:
        return []
    try:
        stored = store.load(run_ids[0])
    except InfrastructureLost:  # it went away just now, and nothing but this line needs it
        return []
    return ["", f"in MLflow: {store.ui_hint(stored.experiment_id, report.sweep.info.id if report.parent else stored.sweep_id)}"]


def _show(parts: list[Any]) -> None:
    from runner.cli.render import show

    show(parts)


if __name__ == "__main__":
    main()
