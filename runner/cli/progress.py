"""What a person sees while a sweep runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from runner import stats
from runner.cli.render import outcome_line
from runner.records import Outcome, Status
from runner.sweep import Progress, Sweep


class Watcher:
    """Takes the engine's progress and outcomes and shows them."""

    def __init__(self, console: Console, sweep: Sweep, bar: Bar | None):
        self.console, self.sweep, self.bar = console, sweep, bar
        self.task = bar.add_task("starting", total=None, best="") if bar else None
        self.stage = ""

    def watch(self, progress: Progress) -> None:
        settled = sum(progress.statuses.values())
        stage = f"building {progress.building} of {progress.total}" if progress.building else progress.stage
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, description=stage, completed=settled, total=progress.total, best=self._best(progress))
        elif progress.stage != self.stage:
            self.console.print(progress.stage)
        self.stage = progress.stage

    def tell(self, outcome: Outcome) -> None:
        if outcome.status is Status.CANCELLED:  # hundreds of them, and all the same
            return
        self.console.print(outcome_line(outcome, self.sweep.info.swept, self.sweep.flops), markup=False, soft_wrap=True)

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, soft_wrap=True)

    def _best(self, progress: Progress) -> str:
        best = progress.best
        if best is None or best.measurement is None:
            return ""
        return f"best {stats.median(best.measurement.samples_ms):.4g} ms ({best.variant.label(self.sweep.info.swept)})"


@contextmanager
def watching(console: Console, sweep: Sweep) -> Iterator[Watcher]:
    if not console.is_terminal:
        yield Watcher(console, sweep, None)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
    )
    times = (TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"))
    with Bar(*columns, *times, console=console, transient=True) as bar:
        yield Watcher(console, sweep, bar)
