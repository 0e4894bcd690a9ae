"""`runner`: judge runs, keep the best, and see whether this machine can do the work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from runner.cli.entry import Command

JSON = click.option("--json", "json_", is_flag=True, help="Print data instead of text.")
RUN = click.argument("run")
ADDRESS = click.option(
    "--address",
    envvar="RAY_ADDRESS",
    help="A Ray cluster that has the device: http://head:8265, or host:port. Without it this machine measures.",
)


@click.group(cls=Command, context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Keep the fastest kernel: accept a run against the best, look back, roll back.

    RUN is an MLflow run id or a variant id, or any beginning of one that means a single run.

    \b
    Example:  runner accept 3f9a
    """


@main.command()
@RUN
@click.option("--self", "itself", is_flag=True, help="Pair its kernel with itself: which difference can this machine tell?")
@ADDRESS
def accept(run: str, itself: bool, address: str | None) -> None:
    """Prove a run, measure it in pairs against today's best in fresh processes, and promote it if it is faster for sure.

    \b
    Example:  runner accept 3f9a
              runner accept 3f9a --self
              runner accept 3f9a --address http://head:8265
    """
    from runner.accept import accept as judge
    from runner.accept import fit, timed, told_apart, with_itself
    from runner.executors.jobs import is_cluster

    if is_cluster(address):
        from runner.cli import job
        from runner.remote import ask_record

        run = ask_record(lambda record: (timed(run, record) if itself else fit(run, record)[0]).run_id) or run
        job.run(str(address), f"accept-{run[:8]}", ["accept", run, *["--self"] * itself])
        return
    with _measuring(address) as (store, executor):
        if itself:
            click.echo(told_apart(with_itself(run, store, executor, click.echo)))
            return
        accepted = judge(run, store, executor, click.echo)
    best = accepted.best
    click.echo(f"accepted {best.run_id[:8]}: version {best.version}, the best {best.workload} on {best.device_model}")


@main.command()
@RUN
@click.option("--reason", required=True, help="Why, for whoever looks at it later.")
def reject(run: str, reason: str) -> None:
    """Mark a run as not wanted. It stays in the record, with the reason.

    \b
    Example:  runner reject 3f9a --reason "needs a clock that this card does not hold"
    """
    from runner.accept import reject as mark
    from tracking.store import Store

    stored = mark(run, reason, Store())
    click.echo(f"rejected {stored.run_id[:8]}: {reason}")


@main.command()
@JSON
def best(json_: bool) -> None:
    """Today's best of every workload and device model.

    \b
    Example:  runner best
    """
    from runner.cli import render
    from tracking.registry import Registry
    from tracking.store import Store

    found = Registry(Store()).bests()
    if json_:
        render.as_json(found)
    else:
        _show([render.bests(found)] if found else ["nothing was accepted yet: runner accept RUN"])


@main.command()
@click.argument("which", required=False)
@JSON
def history(which: str | None, json_: bool) -> None:
    """Every version that was ever best, oldest first: the curve. WHICH is a run, or words of a workload or device.

    \b
    Example:  runner history "131072x2048x7168"
    """
    from runner.cli import render
    from tracking.registry import Registry
    from tracking.store import Store

    store = Store()
    found = _chosen(store, which, Registry.kept)
    lines = Registry(store).history(found.workload, found.device_model)
    if json_:
        render.as_json(lines)
    else:
        _show([f"{found.workload} on {found.device_model}", render.history(lines)])


@main.command()
@click.argument("which", required=False)
@click.option("--to", type=int, metavar="VERSION", help="The version to go back to; without it, the one before today's best.")
def rollback(which: str | None, to: int | None) -> None:
    """Make an earlier version the best again. WHICH is a run, or words of a workload or device.

    \b
    Example:  runner rollback --to 3
    """
    from tracking.registry import Registry
    from tracking.store import Store

    store = Store()
    found = _chosen(store, which, Registry.kept)
    now = Registry(store).rollback(found.workload, found.device_model, to)
    click.echo(f"the best {now.workload} on {now.device_model} is version {now.version} again, run {now.run_id[:8]}")


@main.command()
@RUN
@click.option("--source", is_flag=True, help="Print the generated source alone.")
@JSON
def show(run: str, source: bool, json_: bool) -> None:
    """One run: its config, its numbers, and each rule's verdict with the evidence.

    \b
    Example:  runner show 3f9a --source
    """
    from runner.cli import render
    from runner.errors import RequestError
    from tracking.store import Store

    stored = Store().find(run)
    if source:
        if stored.outcome.artifact is None:
            raise RequestError(f"run {stored.run_id[:8]} has no generated source: it is {stored.outcome.status.value}")
        click.echo(stored.outcome.artifact.source)
    elif json_:
        render.as_json(stored)
    else:
        _show(render.shown(stored))


@main.command()
@RUN
@click.option("--anyway", is_flag=True, help="Also when the family's code has changed since.")
@click.option("--sanitize", is_flag=True, help="Under compute-sanitizer, which names every access out of bounds.")
@ADDRESS
def repro(run: str, anyway: bool, sanitize: bool, address: str | None) -> None:
    """Run one variant again, alone, with everything it prints. Exit 0 when it ends as it did then, else 1.

    \b
    Example:  runner repro 3f9a
              runner repro 3f9a --sanitize
              runner repro 3f9a --address http://head:8265
    """
    from runner.executors.jobs import is_cluster
    from runner.repro import compared, wanted
    from runner.repro import repro as again
    from runner.repro import sanitize as checked

    if is_cluster(address):
        from runner.cli import job
        from runner.remote import ask_record

        run = ask_record(lambda record: wanted(run, record, anyway).run_id) or run
        job.run(str(address), f"repro-{run[:8]}", ["repro", run, *["--anyway"] * anyway, *["--sanitize"] * sanitize])
        return
    if sanitize:
        with _measuring(None) as (store, executor):
            faults = checked(run, store, executor, click.echo, anyway)
        for fault in faults:
            click.echo(fault)
        click.echo(f"the memory checker found {len(faults) or 'no'} fault{'s' * (len(faults) != 1)}")
        raise SystemExit(1 if faults else 0)
    with _measuring(address) as (store, executor):
        found = again(run, store, executor, click.echo, anyway)
    for line in compared(found):
        click.echo(line)
    if not found.same:
        raise SystemExit(1)


@main.command()
@click.argument("which", required=False)
@click.option("--warmup", type=click.IntRange(1), default=10, show_default=True, help="Calls of each before any is timed.")
@click.option("--repeat", type=click.IntRange(6), default=50, show_default=True, help="Pairs of each session.")
@click.option("--sessions", type=click.IntRange(1), default=3, show_default=True, help="Fresh processes, each with its pairs.")
@click.option("--output-dir", type=click.Path(file_okay=False, path_type=Path), help="Also keep it here, as text, CSV and JSON.")
@ADDRESS
@JSON
@click.option("--lines", is_flag=True, hidden=True, help="Print each row as a line for the command that submitted this one.")
def evaluate(
    which: str | None,
    warmup: int,
    repeat: int,
    sessions: int,
    output_dir: Path | None,
    address: str | None,
    json_: bool,
    lines: bool,
) -> None:
    """The formal evaluation of a workload: its baseline and its best kernel, alternated call by call on one device.

    WHICH is a run, or words of a workload or device; without it, every workload with a best on a device model that is there.

    \b
    Example:  runner evaluate --warmup 10 --repeat 50 --output-dir results
              runner evaluate --address http://head:8265 --output-dir results
    """
    from runner import evaluate as evaluator
    from runner.cli import render
    from runner.executors.jobs import is_cluster

    if is_cluster(address):
        rows = _evaluated_by_a_job(str(address), which, warmup, repeat, sessions)
    else:
        rows = _evaluated(address, which, warmup, repeat, sessions)
    if lines:
        for row in rows:
            click.echo(evaluator.as_line(row))
        return
    if json_:
        render.as_json(rows)
    else:
        _show([render.evaluation(rows)])
    if output_dir is not None:
        written = evaluator.write(output_dir, rows, render.as_text(render.evaluation(rows)))
        click.echo(f"written: {', '.join(map(str, written))}", err=json_)


@main.command()
@click.argument("one")
@click.argument("other")
@click.option("--source/--no-source", default=True, show_default=True, help="The difference of the generated source too.")
@JSON
def compare(one: str, other: str, source: bool, json_: bool) -> None:
    """Two runs side by side: what differs in their configs, their numbers with the change, and in the generated source.

    \b
    Example:  runner compare 3f9a 81bc
    """
    from runner.cli import render
    from runner.compare import compare as side_by_side
    from tracking.store import Store

    store = Store()
    found = side_by_side(store.find(one), store.find(other))
    if json_:
        render.as_json(found)
    else:
        _show(render.comparison(found, source))


@main.command()
@click.option("--address", envvar="RAY_ADDRESS", help="A Ray cluster, as host:port, instead of a Ray started here.")
@click.option("--cluster", is_flag=True, help="Look at every node of the cluster, http://head:8265, against the others.")
def doctor(address: str | None, cluster: bool) -> None:
    """What this machine has, and what to do about what it lacks. Exit 0 when sweeps can run, else 3.

    \b
    Example:  runner doctor
              runner doctor --cluster --address http://head:8265
    """
    from runner.doctor import examine, examine_cluster
    from runner.errors import InfrastructureLost, RequestError
    from runner.executors.jobs import is_cluster

    if cluster and not address:
        raise RequestError("--cluster needs the cluster's address: --address http://head:8265, or RAY_ADDRESS")
    if cluster and is_cluster(address):
        from runner.cli import job

        job.run(str(address), "doctor", ["doctor", "--cluster"])
        return
    faults = 0
    for finding in examine_cluster(str(address)) if cluster else examine(None, address):
        faults += finding.state == "fault"
        click.secho(f"{finding.state:<5} ", fg={"ok": "green", "note": "yellow", "fault": "red"}[finding.state], nl=False)
        click.echo(f"{finding.topic}: {finding.text}" + (f"  ->  {finding.remedy}" if finding.remedy else ""))
    if faults:
        raise InfrastructureLost(f"{faults} of these keep a sweep from running")


@contextmanager
def _measuring(address: str | None) -> Iterator[tuple[Any, Any]]:
    """The record, and what measures: a Ray cluster, or without an address this machine. Ctrl-C ends what runs."""
    from runner.interrupt import interrupt
    from runner.remote import demand_record
    from tracking.store import Store

    demand_record()
    with interrupt.handled():
        executor = _executor(address)
        try:
            yield Store(), executor
        finally:
            executor.close()


def _executor(address: str | None) -> Any:
    if address:
        from runner.executors.on_ray import RayExecutor

        return RayExecutor(address)
    from runner.executors.inline import InlineExecutor

    return InlineExecutor()


def _evaluated(address: str | None, which: str | None, warmup: int, repeat: int, sessions: int) -> list[Any]:
    """The rows of the bests that are asked for, measured now."""
    from runner import evaluate as evaluator
    from runner.records import Protocol
    from tracking.registry import Registry

    with _measuring(address) as (store, executor):
        chosen = [_chosen(store, which)] if which else evaluator.measurable(Registry(store).bests(), executor)
        return [row for best in chosen for row in evaluator.evaluate(best, store, executor, Protocol(warmup, repeat), sessions)]


def _evaluated_by_a_job(address: str, which: str | None, warmup: int, repeat: int, sessions: int) -> list[Any]:
    """As `_evaluated`, by a job of a cluster, which gives the rows as lines; whatever else it prints is shown."""
    from runner import evaluate as evaluator
    from runner.cli import job
    from runner.remote import ask_record
    from tracking.registry import Registry

    rows = []

    def take(line: str) -> None:
        row = evaluator.from_line(line)
        rows.append(row) if row else click.echo(line, err=True)

    if which:
        which = ask_record(lambda record: _chosen(record, which).run_id) or which
    else:
        ask_record(lambda record: evaluator.demand_any(Registry(record).bests()))
    options = ["--warmup", str(warmup), "--repeat", str(repeat), "--sessions", str(sessions), "--lines"]
    job.run(address, f"evaluate-{which[:8]}" if which else "evaluate", ["evaluate", *filter(None, [which]), *options], take)
    return rows


def _chosen(store: Any, which: str | None, of: Any = None) -> Any:
    """The best that a person means: the only one, that of a run, or the one whose workload and device hold the words.

    `of` lists what there is to choose from: without it, the bests.
    """
    from runner.errors import NotFound
    from tracking.registry import Registry

    bests = (of or Registry.bests)(Registry(store))
    if which is None or not bests:
        found = bests
    else:
        found = [b for b in bests if which.lower() in f"{b.workload} on {b.device_model}".lower()]
        if not found:
            stored = store.find(which)
            workload = stored.outcome.variant.workload.name
            found = [b for b in bests if (b.workload, b.device_model) == (workload, stored.device_model)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise NotFound("nothing was accepted yet" if not bests else f"nothing was accepted for {which!r}")
    raise NotFound("which of these? " + "; ".join(f"{b.workload} on {b.device_model}" for b in found))


def _show(parts: list[Any]) -> None:
    from runner.cli.render import show

    show(parts)


if __name__ == "__main__":
    main()
