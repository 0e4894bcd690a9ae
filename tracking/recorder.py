"""A sweep's record as it grows: into the journal first, then into MLflow, now or when it answers again."""

from __future__ import annotations

import contextlib
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.errors import InfrastructureLost, NotFound, RequestError, RunnerError, Unreadable
from runner.paths import SPOOL, spool_of
from runner.records import (
    UNSETTLED,
    Decision,
    Outcome,
    Paired,
    RankedRow,
    SweepInfo,
    Verdict,
    from_dict,
    outcome_from_dict,
    to_dict,
)
from tracking.connection import quick, without_password
from tracking.journal import DAMAGED, Header, Journal, set_aside
from tracking.report.closing import Ending, ending
from tracking.standing import Count
from tracking.store import Key, Store
from tracking.writers import Given, Writers

SLOW = 5.0
"""Seconds for one delivery, beyond which MLflow counts as slow. Between two records more than that is not begun."""

REST = 9.0
"""While MLflow is slow or silent a rest follows each attempt, so many times as long: it gets a tenth of the sweep's time."""

SHORTEST_REST = 5.0
LAST_DELIVERY = 60.0
"""Seconds that the end of a sweep waits for what MLflow has not got yet."""

LAST_DELIVERY_INTERRUPTED = 10.0

STANDING = 5.0
"""Seconds between two times that a sweep's own run is told how it stands."""


@dataclass(frozen=True)
class Amendment:
    """What was decided of an outcome that was written before. `run_id` is of one that an earlier sweep wrote, else empty."""

    run_id: str
    variant: str
    attempt: int
    decision: Decision
    reason: str
    verdicts: tuple[Verdict, ...]
    paired: Paired | None = None
    drift: float | None = None


class Recorder:
    """Writes one sweep's outcomes, in order and each once. `say` gets a line when MLflow goes away and when it is back.

    `known` of the planned variants were taken over from earlier sweeps. Opening needs MLflow; from then on it may go away.
    What it did not get stays in the journal, for `replay_all`. With `writers` so many processes write the outcomes as long as
    that goes well; all else is written from here, when nothing is under way with them.
    """

    def __init__(
        self,
        store: Store,
        info: SweepInfo,
        planned: int,
        flops: float,
        say: Callable[[str], None],
        known: int = 0,
        writers: int = 0,
    ):
        self.info, self.say = info, say
        self._number = writers  # of processes, when they are started next
        self._writers: Writers | None = None
        self._unwritten: dict[Path, Key] = {}  # what they are to write
        self._count, self._told = Count(known, info.swept), time.monotonic()
        self._uri = store.uri
        self._behind = False
        self._not_before = -math.inf
        self._journal = Journal(spool_of(info.id))
        with contextlib.ExitStack() as stack, quick(retries=0):
            if not stack.enter_context(self._journal.held()):
                raise RequestError(f"sweep {info.id} is being run by another process: wait for it, or interrupt it")
            self._journal.begin(Header(info, planned, flops, without_password(store.uri), platform.node()))
            self.parent = store.open_sweep(info, planned)
            self._held = stack.pop_all()
        self._replay = _Replay(store, info, self.parent, flops)
        self._held.callback(self._end_writers, 0)
        if writers:
            self._start_writers()

    def write(self, outcome: Outcome) -> None:
        """Returns once the outcome is on disk. Raises InfrastructureLost where the disk does not take it."""
        blob = outcome.artifact.blob if outcome.artifact else b""
        record = self._journal.add({"kind": "outcome", "outcome": to_dict(outcome)}, blob)
        self._count.add(outcome)
        if outcome.status in UNSETTLED:  # what an interrupt cancels comes in hundreds: those go with the last delivery
            return
        if not self._number:
            self._deliver(SLOW)
            return
        given = Given(record, (outcome.variant.id, outcome.attempt), False)
        self._unwritten[record] = given.key
        if self._writers is not None:
            self._hand_over(self._writers, given)
        elif self._deliver(0):
            self._start_writers()

    def amend(
        self,
        outcome: Outcome,
        run_id: str,
        paired: Paired | None = None,
        drift: float | None = None,
    ) -> None:
        """Decision, reason and verdicts of an outcome that was written before. `run_id` is of a known one, else empty."""
        key = outcome.variant.id, outcome.attempt
        change = Amendment(run_id, *key, outcome.decision, outcome.reason, outcome.verdicts, paired, drift)
        self._journal.add({"kind": "amend", **to_dict(change)})
        if not self._number:  # else it waits for all outcomes to be written, and so for the end
            self._deliver(SLOW)

    def close(self, rows: Sequence[RankedRow], failures: Mapping[str, int], summary: str, status: str) -> None:
        """End the sweep's record. What MLflow has not got by now waits in the journal for a later command."""
        with self._held:
            found = ending(self.info, rows, failures, summary, status, self._replay.flops)
            self._journal.add({"kind": "close", "ending": to_dict(found)}, found.chart)
            self._not_before = -math.inf
            self._deliver(LAST_DELIVERY_INTERRUPTED if status == "KILLED" else LAST_DELIVERY)
            self._journal.end()

    def run_id(self, outcome: Outcome) -> str:
        """The MLflow run of an outcome; empty while MLflow has not got it."""
        return self._replay.run_ids.get((outcome.variant.id, outcome.attempt), "")

    @property
    def pending(self) -> int:
        return len(self._journal.pending())

    def _start_writers(self) -> None:
        """With what has been waiting since MLflow went away, where it did."""
        self._writers = Writers(self._number, self._replay.store.uri, self._journal, self.parent)
        self._unwritten = {record: key for record, key in self._unwritten.items() if record.exists()}
        doubts = self._replay.store.doubts
        with contextlib.suppress(InfrastructureLost):  # the next outcome meets it too
            self._writers.take([Given(record, key, doubts(self.info, key)) for record, key in self._unwritten.items()])

    def _hand_over(self, writers: Writers, given: Given) -> None:
        started = time.monotonic()
        try:
            writers.take([given])
            writers.make_room()
            self._take_back(writers)
            self._stand()
        except RunnerError:
            self._end_writers(0)
            if self._deliver(0, started):  # else MLflow is in trouble, which is said by now
                self._number -= 1  # and here it answers: where writers fail again and again, the driver does without
        else:
            self._tell("", writers.are_behind)

    def _take_back(self, writers: Writers) -> None:
        for (record, key, _), run_id in writers.written():
            self._unwritten.pop(record, None)
            if not run_id:
                self._replay.damaged.append(set_aside(record))
                continue
            record.unlink()
            self._replay.run_ids[key] = run_id
            self._replay.store.note(self.info, key, run_id)

    def _end_writers(self, seconds: float) -> None:
        """Have no outcome under way any more: what is not written by then is delivered from here."""
        writers, self._writers = self._writers, None
        if writers is None:
            return
        doubtful = writers.end(seconds)
        self._take_back(writers)
        for key in doubtful:
            self._replay.store.doubt(self.info, key)

    def _stand(self) -> None:
        if time.monotonic() - self._told >= STANDING:
            self._told = time.monotonic()
            with quick(retries=0):
                self._replay.store.stand(self.parent, self._count.standing())

    def _deliver(self, seconds: float, started: float | None = None) -> bool:
        """Bring MLflow what waits for it, for about so long since `started`, and one record at least: whether that went well."""
        started = time.monotonic() if started is None else started
        self._end_writers(seconds / 2)  # the other half is for what they leave
        if started < self._not_before:
            return False
        trouble = ""
        try:
            with quick(retries=0):
                self._replay.run(self._journal, started + seconds - time.monotonic())
            if not self.pending:
                self._stand()
        except RunnerError as error:
            trouble = str(error)
        took = time.monotonic() - started
        if not trouble and took > 2 * max(seconds, SLOW):
            trouble = f"MLflow at {without_password(self._uri)}: slow, an answer took {took:.0f} s"
        if trouble or took > SLOW:
            self._not_before = time.monotonic() + max(SHORTEST_REST, REST * took)
        self._tell(trouble, bool(self.pending))
        return not trouble

    def _tell(self, trouble: str, behind: bool) -> None:
        for path in self._replay.damaged:
            self.say(f"a record was damaged on disk, or is of another version, and is not used: {path}")
        self._replay.damaged.clear()
        if trouble and not self._behind:
            self.say(f"{trouble}; outcomes are kept in {self._journal.folder} meanwhile, and measuring goes on")
            self._behind = True
        elif not trouble and self._behind and not behind:
            self.say("MLflow answers again: everything that was kept is there now")
            self._behind = False


@dataclass(frozen=True)
class Replayed:
    """What became of one journal that an earlier command left behind. With a `problem`, some records did not get there."""

    sweep_id: str
    records: int
    problem: str = ""


def replay_all(store: Store, root: Path = SPOOL) -> list[Replayed]:
    """Bring what earlier sweeps left in the journal to MLflow, in order, and end the record of those whose driver died.

    Journals of sweeps that run now are left alone.
    """
    found = []
    for folder in sorted(p for p in root.glob("*") if p.is_dir() and p.suffix != DAMAGED):
        journal = Journal(folder)
        with journal.held() as mine:
            if mine and (late := _replay_one(store, journal)):
                found.append(late)
    return found


def _replay_one(store: Store, journal: Journal) -> Replayed | None:
    waiting = len(journal.pending())
    try:
        header = journal.header()
    except Unreadable as error:  # the version that wrote it can
        return Replayed(journal.folder.name, 0, str(error))
    if header is None:
        if not waiting:
            journal.end()
            return None
        kept = set_aside(journal.folder)
        return Replayed(journal.folder.name, 0, f"their header was damaged on disk, so they are not used and kept in {kept}")
    info = header.info
    if header.uri != without_password(store.uri):
        return Replayed(info.id, 0, f"they are for MLflow at {header.uri}") if waiting else None
    damaged: list[Path] = []
    try:
        with quick(retries=1):
            if waiting:
                replay = _Replay(store, info, store.open_sweep(info, header.planned), header.flops)
                replay.run(journal)
                damaged = replay.damaged
            store.abandon_sweep(info)
    except RunnerError as lost:
        return Replayed(info.id, waiting - len(journal.pending()), str(lost))
    journal.end()
    if damaged:
        names = ", ".join(str(path) for path in damaged)
        return Replayed(info.id, waiting - len(damaged), f"damaged on disk or of another version, and not used: {names}")
    return Replayed(info.id, waiting) if waiting else None


class _Replay:
    """Takes records to the store, oldest first, and stops at the first that does not get there."""

    def __init__(self, store: Store, info: SweepInfo, parent: str, flops: float):
        self.store, self.info, self.parent, self.flops = store, info, parent, flops
        self.run_ids: dict[tuple[str, int], str] = {}
        self.damaged: list[Path] = []

    def run(self, journal: Journal, seconds: float = math.inf) -> None:
        """Stops between two records once so many seconds are over."""
        end = time.monotonic() + seconds
        for path in journal.pending():
            if not self._apply(journal.read(path)):
                self.damaged.append(set_aside(path))
            else:
                path.unlink()
            if time.monotonic() > end:
                return

    def _apply(self, found: tuple[Mapping[str, Any], bytes] | None) -> bool:
        """Whether the record was one that can be read."""
        try:
            bring = self._understood(*found) if found else None
        except (KeyError, TypeError, ValueError):  # of a version that had other records
            bring = None
        if bring is not None:
            bring()
        return bring is not None

    def _understood(self, record: Mapping[str, Any], blob: bytes) -> Callable[[], None]:
        """What brings a record to the store."""
        if record["kind"] == "outcome":
            outcome = outcome_from_dict(record["outcome"], blob)
            return lambda: self._write(outcome)
        if record["kind"] == "amend":
            change = from_dict(Amendment, record)
            return lambda: self._amend(change)
        found = replace(from_dict(Ending, record["ending"]), chart=blob)
        return lambda: self._close(found)

    def _write(self, outcome: Outcome) -> None:
        run_id = self.store.write(self.parent, self.info, outcome, self.flops)
        self.run_ids[outcome.variant.id, outcome.attempt] = run_id

    def _amend(self, change: Amendment) -> None:
        with contextlib.suppress(NotFound):  # a person deleted the run, or its record was damaged
            run_id = change.run_id or self.store.run_of(self.info, change.variant, change.attempt)
            self.store.amend(run_id, change.decision, change.reason, change.verdicts, change.paired, change.drift)

    def _close(self, found: Ending) -> None:
        runs = {variant_id: self._run_of(variant_id, attempt) for variant_id, attempt in found.attempts.items()}
        ranking = [{**line, "run_id": line["run_id"] or runs[line["variant_id"]]} for line in found.ranking]
        self.store.close_sweep(self.parent, self.info, replace(found, ranking=ranking))

    def _run_of(self, variant_id: str, attempt: int) -> str:
        try:
            return self.store.run_of(self.info, variant_id, attempt)
        except NotFound:
            return ""
