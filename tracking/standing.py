"""How a sweep stands that is still running: what its driver writes on the parent run now and then, for who looks on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone

from runner.records import Decision, Outcome, from_dict, to_dict
from runner.stats import median


@dataclass(frozen=True)
class Standing:
    """Of one driver's run of a sweep. Times are UTC, ISO 8601."""

    known: int  # variants taken over when it began
    started_at: str
    updated_at: str
    counts: Mapping[str, int] = field(default_factory=dict)  # by status, of what was settled since
    devices: Mapping[str, int] = field(default_factory=dict)  # variants timed, by host and index
    best_ms: float | None = None  # the lowest median of those that pass every rule
    best: str = ""  # its swept knobs

    @property
    def settled(self) -> int:
        return sum(self.counts.values())

    def seconds_left(self, planned: int) -> float | None:
        """At the pace so far; None while there is none."""
        gone = (datetime.fromisoformat(self.updated_at) - datetime.fromisoformat(self.started_at)).total_seconds()
        return gone / self.settled * max(0, planned - self.known - self.settled) if self.settled else None


class Count:
    """Keeps a standing up to date."""

    def __init__(self, known: int, swept: tuple[str, ...]):
        self._known, self._swept, self._started = known, swept, _now()
        self._statuses: Counter[str] = Counter()
        self._devices: Counter[str] = Counter()
        self._best: tuple[float, str] | None = None

    def add(self, outcome: Outcome) -> None:
        self._statuses[outcome.status.value] += 1
        if outcome.measurement is None:
            return
        device = outcome.measurement.device
        self._devices[f"{device.host} {device.index}".strip()] += 1
        if outcome.decision is not Decision.REJECTED:
            found = median(outcome.measurement.samples_ms), outcome.variant.label(self._swept) or "base"
            self._best = min(found, self._best or found)

    def standing(self) -> Standing:
        best_ms, best = self._best or (None, "")
        return Standing(self._known, self._started, _now(), dict(self._statuses), dict(self._devices), best_ms, best)


def dumped(standing: Standing) -> str:
    return json.dumps(to_dict(standing))


def loaded(text: str) -> Standing | None:
    """None where there is none, or one that this version cannot read."""
    try:
        return from_dict(Standing, json.loads(text))
    except ValueError:
        return None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
