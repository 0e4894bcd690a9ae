"""Best, history, rollback: MLflow's model registry with one registered model per workload and device model.

A version is one accepted run; the alias `best` is the truth about which is best. Tags that repeat it (a version's and a run's
`decision`) are put right after each move of the alias, so that a promotion killed halfway leaves nothing false for long.
"""

from __future__ import annotations

import contextlib
import getpass
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.errors import NotFound, Refused
from runner.records import Decision, Paired, Verdict, Workload
from runner.stats import median
from tracking import layout, queries
from tracking.connection import guarded
from tracking.contents import paired_metrics
from tracking.lock import promotion_lock
from tracking.reading import reading
from tracking.store import Store
from tracking.stored import Stored, moment

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

ALIAS = "best"
PENDING = "pending"
"""A version's decision until the alias has been on it: one that stays so was never promoted."""


@dataclass(frozen=True)
class Best:
    """The accepted variant of a workload on a device model."""

    version: int
    run_id: str
    variant_id: str
    protocol: str
    workload: str  # `Workload.name`
    device_model: str
    accepted_at: str  # UTC, ISO 8601
    stored: Stored


@dataclass(frozen=True)
class Kept:
    """A workload and device model of which versions are kept."""

    workload: str  # `Workload.name`
    device_model: str


@dataclass(frozen=True)
class BestVersion:
    """One line of a history. Speedups are None where they were not measured: there was nothing to pair the first best with."""

    version: int
    run_id: str
    variant_id: str
    label: str
    latency_ms: float
    speedup_vs_baseline: float | None
    paired_speedup: float | None
    paired_low: float | None
    paired_high: float | None
    paired_sessions: int
    paired_tau: float | None  # None within one session
    protocol: str
    accepted_at: str  # UTC, ISO 8601
    accepted_by: str
    decision: Decision
    is_best: bool


class Registry:
    """The bests of a store. Every method raises InfrastructureLost, with one line, when MLflow does not answer."""

    def __init__(self, store: Store):
        self.store = store
        self.uri = store.uri

    @guarded
    def best(self, workload: Workload, device_model: str) -> Best | None:
        """Today's best; None where nothing was accepted yet, or its run was deleted, which the store says.

        Raises Unreadable where another version wrote it: what is not known is not to be beaten.
        """
        model = self._model(layout.model_name(workload, device_model))
        return self._best(model) if model is not None else None

    @guarded
    def kept(self) -> list[Kept]:
        """Every workload and device model that has a best, also one whose run was deleted."""
        models = [model for model in self._models() if _best_version(model) is not None]
        return [Kept(model.tags[layout.WORKLOAD], model.tags[layout.DEVICE]) for model in models]

    @guarded
    def bests(self) -> list[Best]:
        """Today's best of every workload and device model, by name. One that cannot be read is left out, which the store says."""
        return self.store.readable(self._best, self._models())

    @guarded
    def history(self, workload: Workload | str, device_model: str) -> list[BestVersion]:
        """Every version that was ever best, oldest first."""
        model = self._model(layout.model_name(workload, device_model))
        if model is None:
            return []
        best = _best_version(model)
        return self.store.readable(lambda version: _line(version, best), self._versions(model.name, best))

    @guarded
    def promote(
        self, stored: Stored, paired: Paired | None, verdicts: Sequence[Verdict], expected_best: int | str | None
    ) -> Best:
        """Make a run the best. `expected_best` is the version it was compared with, None where there was none.

        Raises Refused, with nothing changed, when the best is another by now: the comparison was with the wrong one.
        """
        client, workload = self.store.client, stored.outcome.variant.workload
        name = layout.model_name(workload, stored.device_model)
        with promotion_lock(client, name):
            model = self._model(name) or self._create_model(name, workload, stored.device_model)
            best = _best_version(model)
            if expected_best is None and best is not None and not self._run_is_there(name, best):
                best = None  # nobody could compare with it
            _demand_unchanged(name, best, expected_best)
            # The evidence first, the alias last: killed in between, the run is a candidate still, and the old best is the best.
            reason = _reason(paired, best)
            self.store.amend(stored.run_id, stored.decision, reason, verdicts, paired)
            version = client.create_model_version(
                name,
                source=f"runs:/{stored.run_id}/{layout.KERNEL_DIR}",
                run_id=stored.run_id,
                tags=_version_tags(stored, paired),
                description=reason,
            )
            client.set_registered_model_alias(name, ALIAS, version.version)
            return self._settle(name)

    @guarded
    def rollback(self, workload: Workload | str, device_model: str, to: int | None = None) -> Best:
        """Make an earlier version best again: the one before today's whose run is there, or `to`.

        Raises NotFound where there is no such version, or its run was deleted.
        """
        name, what = layout.model_name(workload, device_model), layout.experiment_name(workload, device_model)
        with promotion_lock(self.store.client, name):
            model = self._model(name)
            best = _best_version(model) if model is not None else None
            if best is None:
                raise NotFound(f"nothing was accepted yet for {what}")
            chosen = self._chosen(name, what, best, to)
            self.store.client.set_registered_model_alias(name, ALIAS, str(chosen))
            return self._settle(name)

    def _chosen(self, name: str, what: str, best: int, to: int | None) -> int:
        """The version to go back to."""
        runs = {int(v.version): v.run_id for v in self._versions(name, best)}
        earlier = [v for v in runs if v < best]
        if to is None and not earlier:
            raise NotFound(f"version {best} is the first best of {what}: nothing lies before it")
        if to is not None and to not in runs:
            raise NotFound(f"no version {to}: choose from {', '.join(map(str, runs))} (see `runner history`)")
        chosen = to or next((v for v in reversed(earlier) if self._run_is_there(name, v)), earlier[-1] if earlier else best)
        if not self._run_is_there(name, chosen):
            raise NotFound(f"the run of version {chosen} of {what} was deleted: {_restore(runs[chosen])}")
        return chosen

    def _run_is_there(self, name: str, version: int) -> bool:
        try:
            self.store.load(self.store.client.get_model_version(name, str(version)).run_id)
        except NotFound:
            return False
        return True

    def _models(self) -> list[RegisteredModel]:
        """Those that the runner made, by name."""
        found: list[RegisteredModel] = []
        token = None
        while True:
            page = self.store.client.search_registered_models(
                filter_string=f"tags.{layout.OURS} = 'true'", max_results=queries.PAGE, order_by=["name ASC"], page_token=token
            )
            found.extend(page)
            token = page.token
            if not token:
                return found

    def _model(self, name: str) -> RegisteredModel | None:
        from mlflow.exceptions import MlflowException

        try:
            return self.store.client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise

    def _create_model(self, name: str, workload: Workload, device_model: str) -> RegisteredModel:
        tags = {layout.OURS: "true", layout.WORKLOAD: workload.name, layout.DEVICE: device_model}
        return self.store.client.create_registered_model(
            name, tags=tags, description=f"The fastest accepted kernel: alias `{ALIAS}`."
        )

    def _best(self, model: RegisteredModel) -> Best | None:
        number = _best_version(model)
        if number is None:
            return None
        version = self.store.client.get_model_version(model.name, str(number))
        try:
            stored = self.store.load(version.run_id)
        except NotFound:
            self.store.say(
                f"the best {model.name} is left out: its run was deleted (version {number}): {_restore(version.run_id)}, "
                "`runner rollback` makes an earlier version the best"
            )
            return None
        return Best(
            version=number,
            run_id=stored.run_id,
            variant_id=stored.variant_id,
            protocol=stored.outcome.variant.protocol,
            workload=stored.outcome.variant.workload.name,
            device_model=stored.device_model,
            accepted_at=version.tags["accepted_at"],
            stored=stored,
        )

    def _versions(self, name: str, best: int | None) -> list[ModelVersion]:
        """The versions that were ever best, oldest first."""
        found: list[ModelVersion] = []
        token = None
        while True:
            page = self.store.client.search_model_versions(
                f"name = {layout.quoted(name)}", max_results=queries.PAGE, page_token=token
            )
            found.extend(v for v in page if v.tags.get(layout.DECISION) != PENDING or int(v.version) == best)
            token = page.token
            if not token:
                return sorted(found, key=lambda v: int(v.version))

    def _settle(self, name: str) -> Best:
        """Make the decisions of versions and runs say what the alias says. The best comes last: its run may hold two versions."""
        model = self._model(name)
        assert model is not None
        number = _best_version(model)
        for version in sorted(self._versions(name, number), key=lambda v: int(v.version) == number):
            decision = Decision.ACCEPTED if int(version.version) == number else Decision.SUPERSEDED
            if version.tags.get(layout.DECISION) != decision.value:
                with contextlib.suppress(NotFound):  # a person deleted the run
                    self.store.decide(version.run_id, decision)
                self.store.client.set_model_version_tag(name, version.version, layout.DECISION, decision.value)
        best = self._best(model)
        assert best is not None
        return best


def _restore(run_id: str) -> str:
    return f"`mlflow runs restore --run-id {run_id}` brings it back"


def _best_version(model: RegisteredModel) -> int | None:
    number = model.aliases.get(ALIAS)
    return None if number is None else int(number)


def _demand_unchanged(name: str, best: int | None, expected: int | str | None) -> None:
    if str(best) == str(expected):
        return
    now = "there is none" if best is None else f"it is version {best}"
    then = "none" if expected is None else f"version {expected}"
    raise Refused(
        f"the best of {name!r} changed while you measured: it was {then}, now {now}. Nothing was promoted; accept again"
    )


def _reason(paired: Paired | None, best: int | None) -> str:
    if paired is None:
        return "the first best of this workload on this device model" if best is None else f"replaces version {best}"
    against = "the sweep's base" if best is None else f"version {best}"
    how = f"in {len(paired.sessions)} sessions of pairs" if len(paired.sessions) > 1 else "in pairs within one session"
    interval = f"{100 * paired.confidence:.6g}% interval {paired.low:.4f} to {paired.high:.4f}"
    return f"{paired.speedup:.4f}x {against} ({interval}), {how}"


def _version_tags(stored: Stored, paired: Paired | None) -> dict[str, str]:
    outcome = stored.outcome
    assert outcome.measurement is not None
    found: dict[str, Any] = {
        layout.DECISION: PENDING,
        layout.VARIANT_ID: stored.variant_id,
        "label": stored.label or outcome.variant.label(),
        "latency_ms_median": median(outcome.measurement.samples_ms),
        "protocol": outcome.variant.protocol,
        "accepted_at": moment(int(time.time() * 1000)),
        "accepted_by": _user(),
    }
    if (ratio := outcome.measurement.speedup_vs_baseline) is not None:
        found["speedup_vs_baseline"] = ratio
    if paired is not None:
        found |= paired_metrics(paired)
    return {k: str(v) for k, v in found.items()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return "unknown"


def _line(version: ModelVersion, best: int | None) -> BestVersion:
    """Raises Unreadable where another version of the runner wrote it."""
    with reading(f"version {version.version} of {version.name}"):
        return _line_of(version.tags, version, best)


def _line_of(tags: Mapping[str, str], version: ModelVersion, best: int | None) -> BestVersion:
    number = int(version.version)

    def some(name: str) -> float | None:
        return float(tags[name]) if name in tags else None

    return BestVersion(
        version=number,
        run_id=version.run_id,
        variant_id=tags[layout.VARIANT_ID],
        label=tags["label"],
        latency_ms=float(tags["latency_ms_median"]),
        speedup_vs_baseline=some("speedup_vs_baseline"),
        paired_speedup=some("paired_speedup"),
        paired_low=some("paired_speedup_low"),
        paired_high=some("paired_speedup_high"),
        paired_sessions=int(some("paired_sessions") or 1),
        paired_tau=some("paired_tau"),
        protocol=tags["protocol"],
        accepted_at=tags["accepted_at"],
        accepted_by=tags["accepted_by"],
        decision=Decision.ACCEPTED if number == best else Decision.SUPERSEDED,
        is_best=number == best,
    )
