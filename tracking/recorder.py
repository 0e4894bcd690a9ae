"""A sweep's record as it grows: into the journal first, then into MLflow, now or when it answers again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.errors import InfrastructureLost
from runner.paths import SPOOL
from runner.records import (
    Decision,
    Outcome,
    Paired,
    RankedRow,
    Ruling,
    SweepInfo,
    Verdict,
    outcome_from_dict,
    paired_from_dict,
    to_dict,
)
from tracking.connection import without_password
from tracking.journal import Journal
from tracking.store import Store
from tracking.stored import sweep_info

PATIENCE = 20.0
"""Seconds between attempts while MLflow does not answer; each attempt keeps the sweep waiting for its time-out."""


class Recorder:
    """Writes one sweep's outcomes, in order and each once. `say` gets a line when MLflow goes away and when it is back.

    Opening needs MLflow; from then on it may go away. What it did not get stays in the journal, for `replay_all`.
    """

    def __init__(self, store: Store, info: SweepInfo, planned: int, flops: float, say: Callable[[str], None]):
        self.store, self.info, self.say = store, info, say
        self._stack = contextlib.ExitStack()
        self._journal = Journal(SPOOL / info.id)
        self._silent_since: float | None = None
        self.parent = store.open_sweep(info, planned)
        if not self._stack.enter_context(self._journal.held()):
            raise InfrastructureLost(f"sweep {info.id} is being run by another process")
        header = {"info": to_dict(info), "parent": self.parent, "flops": flops, "uri": without_password(store.uri)}
        self._journal.begin(header)
        self._replay = _Replay(store, info, self.parent, flops)

    def write(self, outcome: Outcome) -> None:
        blob = outcome.artifact.blob if outcome.artifact else b""
        self._journal.add({"kind": "outcome", "outcome": to_dict(outcome)}, blob)
        self._deliver()

    def amend(
        self,
        outcome: Outcome,
        run_id: str,
        paired: Paired | None = None,
        drift: float | None = None,
    ) -> None:
        """Decision, reason and verdicts of an outcome that was written before. `run_id` is of a known one, else empty."""
        self._journal.add(
            {
                "kind": "amend",
                "run_id": run_id,
                "variant": outcome.variant.id,
                "attempt": outcome.attempt,
                "decision": outcome.decision.value,
                "reason": outcome.reason,
                "verdicts": to_dict(outcome.verdicts),
                "paired": to_dict(paired),
                "drift": drift,
            }
        )
        self._deliver()

    def close(self, rows: Sequence[RankedRow], failures: Mapping[str, int], summary: str, status: str) -> None:
        """End the sweep's record. What MLflow has not got by now waits in the journal for a later command."""
        self._journal.add(
            {"kind": "close", "rows": to_dict(list(rows)), "failures": dict(failures), "summary": summary, "status": status}
        )
        self._deliver(at_once=True)
        self._journal.end()
        self._stack.close()

    def run_id(self, outcome: Outcome) -> str:
        """The MLflow run of an outcome; empty while MLflow has not got it."""
        return self._replay.run_ids.get((outcome.variant.id, outcome.attempt), "")

    @property
    def pending(self) -> int:
        return len(self._journal.pending())

    def _deliver(self, at_once: bool = False) -> None:
        if self._silent_since is not None and not at_once and time.monotonic() - self._silent_since < PATIENCE:
            return
        try:
            self._replay.run(self._journal)
        except InfrastructureLost as lost:
            if self._silent_since is None:
                self.say(f"{lost}; outcomes are kept in {self._journal.folder} until it answers, and measuring goes on")
            self._silent_since = time.monotonic()
            return
        if self._silent_since is not None:
            self.say("MLflow answers again: everything that was kept is there now")
            self._silent_since = None


@dataclass(frozen=True)
class Replayed:
    """What became of one journal that an earlier command left behind."""

    sweep_id: str
    records: int
    problem: str = ""


def replay_all(store: Store, root: Path = SPOOL) -> list[Replayed]:
    """Bring what earlier sweeps left in the journal to MLflow, in order. Journals of other stores or of live sweeps are left."""
    found = []
    for folder in sorted(p for p in root.glob("*") if p.is_dir()):
        journal = Journal(folder)
        with journal.held() as mine:
            header = journal.header()
            if not mine or header is None or header["uri"] != without_password(store.uri):
                continue
            count = len(journal.pending())
            info = sweep_info(header["info"])
            try:
                _Replay(store, info, store.open_sweep(info, 0), header["flops"]).run(journal)
            except InfrastructureLost as lost:
                found.append(Replayed(info.id, 0, str(lost)))
                continue
            journal.end()
        if count:
            found.append(Replayed(info.id, count))
    return found


class _Replay:
    """Takes records to the store, oldest first, and stops at the first that does not get there."""

    def __init__(self, store: Store, info: SweepInfo, parent: str, flops: float):
        self.store, self.info, self.parent, self.flops = store, info, parent, flops
        self.run_ids: dict[tuple[str, int], str] = {}

    def run(self, journal: Journal) -> None:
        for path in journal.pending():
            found = journal.read(path)
            if found is not None:
                self._apply(*found)
                path.unlink()

    def _apply(self, record: Mapping[str, Any], blob: bytes) -> None:
        if record["kind"] == "outcome":
            outcome = outcome_from_dict(record["outcome"], blob)
            self.run_ids[outcome.variant.id, outcome.attempt] = self.store.write(self.parent, self.info, outcome, self.flops)
        elif record["kind"] == "amend":
            self._amend(record)
        else:
            rows = [self._row(row) for row in record["rows"]]
            self.store.close_sweep(
                self.parent, self.info, rows, record["failures"], record["summary"], record["status"], self.flops
            )

    def _amend(self, record: Mapping[str, Any]) -> None:
        run_id = record["run_id"] or self.store.run_of(self.info, record["variant"], record["attempt"])
        verdicts = [Verdict(v["rule"], Ruling(v["ruling"]), v["evidence"]) for v in record["verdicts"]]
        paired = paired_from_dict(record["paired"]) if record["paired"] else None
        self.store.amend(run_id, Decision(record["decision"]), record["reason"], verdicts, paired, record["drift"])

    def _row(self, data: Mapping[str, Any]) -> RankedRow:
        outcome = outcome_from_dict(data["outcome"])
        paired = paired_from_dict(data["paired"]) if data["paired"] else None
        row = RankedRow(data["run_id"], outcome, paired, data["reused"])
        return row if row.run_id else replace(row, run_id=self.store.run_of(self.info, outcome.variant.id, outcome.attempt))
