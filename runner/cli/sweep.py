"""`sweep`: plan and run sweeps, and look at what they came to."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

import click

from runner.cli.entry import Command

FILE = click.argument("file", type=click.Path())
TARGET = click.option("--target", metavar="KIND", help="maca, cuda, cpu, or auto: the best kind there is. Overrides the file's.")
SET = click.option(
    "--set", "settings", multiple=True, metavar="K=V", help="Change one value of the file: --set measure.repeat=100."
)
ADDRESS = click.option(
    "--address",
    envvar="RAY_ADDRESS",
    help="A Ray cluster: http://head:8265 hands the sweep over to it. Without it a Ray is started here for the sweep.",
)
CLUSTER = click.option("--address", envvar="RAY_ADDRESS", required=True, help="The cluster's head: http://head:8265.")
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
@click.option("--wait", is_flag=True, help="On a cluster: show what the sweep prints until it ends, and end as it does.")
@click.option("--as", "id_", hidden=True, help="The sweep's id, where it has one already.")
def submit(
    file: str, address: str | None, target: str | None, settings: tuple[str, ...], fresh: bool, wait: bool, id_: str | None
) -> None:
    """Run a sweep and rank what it measured. What an earlier sweep measured under the same identity is not measured again.

    \b
    Example:  sweep submit sweeps/interleave.yaml
              sweep submit sweeps/interleave.yaml --target cuda --set measure.repeat=100
              sweep submit sweeps/interleave.yaml --address http://head:8265
    """
    from runner.executors.jobs import Jobs, is_cluster
    from runner.planning import read

    if not is_cluster(address):
        from runner.cli.run import run

        run(address, lambda find, _, model: read(file, target, settings, find, fresh, id=None if model else id_, model=model))
        return
    from runner import remote

    jobs = Jobs(str(address))
    asked, sweep_id, job_id = remote.submit(jobs, file, target, settings, fresh)
    click.echo(f"{asked.spec.name}: submitted as sweep {sweep_id} to {address}")
    if wait:
        _follow(jobs, sweep_id, job_id)
    else:
        where = "" if os.environ.get("RAY_ADDRESS") == address else f" --address {address}"
        for command in ("logs -f", "status", "cancel"):
            click.echo(f"  sweep {command} {sweep_id}{where}")


@main.command()
@click.argument("sweep")
@ADDRESS
def resume(sweep: str, address: str | None) -> None:
    """Take up a sweep that was interrupted or killed: measure what is missing, and end its record.

    \b
    Example:  sweep resume 1f0c
    """
    from runner.executors.jobs import Jobs, is_cluster

    if is_cluster(address):
        from runner import remote

        again = remote.resume(Jobs(str(address)), sweep)
        click.echo(f"{again.name}: sweep {again.sweep_id} is taken up again at {address}")
        return
    from runner.cli.run import run
    from runner.planning import read_again

    def asked(find: Any, opened: Any, _: Any) -> Any:
        store = opened()
        return read_again(store.sweep_info(store.find_sweep(sweep)), find)

    run(address, asked)


@main.command()
@click.argument("sweep")
@click.option("-f", "--follow", is_flag=True, help="Go on until the sweep ends, and end as it does.")
@CLUSTER
def logs(sweep: str, follow: bool, address: str) -> None:
    """What a cluster's sweep prints.

    \b
    Example:  sweep logs -f 1f0c --address http://head:8265
    """
    jobs, job = _job(address, sweep)
    if follow:
        _follow(jobs, job.sweep_id, job.id)
    else:
        click.echo(jobs.read(job.id)[1], nl=False)


@main.command()
@click.argument("sweep")
@CLUSTER
def cancel(sweep: str, address: str) -> None:
    """End a cluster's sweep, as Ctrl-C does here. What was measured is kept, and `sweep resume` measures the rest.

    \b
    Example:  sweep cancel 1f0c --address http://head:8265
    """
    jobs, job = _job(address, sweep)
    said = "is being ended" if jobs.cancel(job.id) else f"had ended already ({job.status.lower()})"
    click.echo(f"{job.name}: sweep {job.sweep_id} {said}; `sweep resume {job.sweep_id}` measures what is missing")


@main.command("list")
@click.option("--limit", default=20, show_default=True, help="How many, newest first.")
@click.option("--address", help="A cluster, http://head:8265: list its jobs, those that wait or failed to start among them.")
@JSON
def list_(limit: int, address: str | None, json_: bool) -> None:
    """List the sweeps in the store, newest first.

    \b
    Example:  sweep list --limit 5
    """
    from runner.cli import render
    from tracking.store import Store

    if address:
        from runner.executors.jobs import Jobs

        waiting = Jobs(address).sweeps()[:limit]
        if json_:
            render.as_json(waiting)
        else:
            _show([render.jobs(waiting)])
        return
    found = Store().sweeps(limit)
    if json_:
        render.as_json(found)
    else:
        _show([render.sweeps(found)] if found else ["no sweeps yet: sweep submit sweeps/interleave.yaml"])


@main.command()
@click.argument("sweep")
@click.option("--address", envvar="RAY_ADDRESS", help="A cluster, http://head:8265: say too how the sweep's job stands there.")
@JSON
def status(sweep: str, address: str | None, json_: bool) -> None:
    """What a sweep came to, or how it stands while it runs. SWEEP is its id, or the beginning of it.

    \b
    Example:  sweep status 1f0c
    """
    from runner.cli import render
    from runner.remote import status as look_up

    found = look_up(address, sweep)
    rows = found.ranking()
    if json_:
        render.as_json({"sweep": found.recorded, "ranking": rows, "job": found.job})
    else:
        _show(render.status(found, rows, datetime.now(timezone.utc)))
    if found.lost is not None:
        raise found.lost


def _job(address: str, sweep: str) -> tuple[Any, Any]:
    """A cluster's jobs, and the latest of a sweep."""
    from runner.executors.jobs import Jobs
    from runner.remote import find_job

    jobs = Jobs(address)
    return jobs, find_job(jobs, sweep)


def _follow(jobs: Any, sweep_id: str, job_id: str) -> None:
    """Show what a sweep's job prints until it ends, and end as it did. Ctrl-C ends this alone."""
    from runner.cli.job import follow

    try:
        follow(jobs, job_id)
    except KeyboardInterrupt:
        click.echo(f"sweep {sweep_id} goes on: `sweep cancel {sweep_id}` ends it", err=True)
        raise


def _show(parts: list[Any]) -> None:
    from runner.cli.render import show

    show(parts)


if __name__ == "__main__":
    main()
