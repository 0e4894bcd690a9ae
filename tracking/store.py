"""Outcomes to MLflow and back. A sweep's driver writes, or its writers; a variant's run is made once its outcome is known.

A child run is filled before it is ended, and marked complete with its last content. What a killed driver left unfinished
carries no mark: readers pass over it, and the next driver of the same sweep deletes it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from runner.errors import InfrastructureLost, NotFound, RequestError, Unreadable
from runner.records import TIMED, Decision, Outcome, Paired, SweepInfo, Try, Verdict, Workload, from_dict, versioned
from tracking import connection, contents, layout, queries, view
from tracking.connection import guarded
from tracking.journal import driver_is_gone
from tracking.reading import reading
from tracking.report import closing
from tracking.report.closing import Ending
from tracking.standing import Standing, dumped
from tracking.stored import Stored, StoredSweep, stored, stored_sweep

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

__all__ = ["Store", "Stored", "StoredSweep"]

S = TypeVar("S")
T = TypeVar("T")
Key = tuple[str, int]
"""What an outcome is known by within its sweep: variant id and attempt."""

READERS = 8
"""Threads that fetch outcomes: against a server, a fetch is mostly waiting."""


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Store:
    """The record of all sweeps. `uri` None is `MLFLOW_TRACKING_URI`, else what `mlflow ui` opens in the current folder.

    Nothing is reached before it is needed. Every method raises InfrastructureLost, with one line, when MLflow does not answer.
    Where several records are asked for, those that this version cannot read are left out, and `say` gets a line for each;
    where one is, Unreadable is raised.
    """

    def __init__(self, uri: str | None = None, page_size: int = queries.PAGE, say: Callable[[str], None] = _to_stderr):
        self.uri = uri or connection.default_uri()
        self.page_size = page_size
        self.say = say
        self._experiments: dict[str, str] = {}  # name -> id
        self._written: dict[str, dict[Key, str]] = {}  # sweep id -> (variant id, attempt) -> run id
        self._doubtful: set[tuple[str, Key]] = set()  # what may be there all the same: MLflow did not answer

    @cached_property
    def client(self) -> MlflowClient:
        return connection.connect(self.uri)

    @guarded
    def check(self) -> None:
        """Reach the store and take one byte through its artifacts and back; nothing of it stays to be seen."""
        connection.prove_artifacts(self.client, self.uri)

    @guarded
    def open_sweep(self, info: SweepInfo, planned: int) -> str:
        """Begin a sweep, or take it up again: the parent run's id. What an earlier driver left half-written is removed."""
        experiment = self._experiment(info.workload, info.device.model)
        self._written.pop(info.id, None)
        run = self._parent(info)
        if run is None:
            self.client.set_experiment_tag(experiment, *view.tag(info.id, info.swept))
            tags = contents.sweep_tags(info, planned)
            run = self.client.create_run(experiment, tags=tags, run_name=f"{info.name} {info.id}")
            connection.demand_reachable(self.uri, run.info.artifact_uri)
            self._written[info.id] = {}
        else:
            self.client.update_run(run.info.run_id, status="RUNNING")
            self._index(info)
        self._upload(run, {layout.SWEEP_FILE: info.text.encode(), layout.SWEEP_JSON: contents.dump(versioned(info))})
        return str(run.info.run_id)

    @guarded
    def abandon_sweep(self, info: SweepInfo) -> None:
        """End the record of a sweep whose driver died before it did so, if there is one. A sweep that was closed is left."""
        run = self._parent(info)
        if run is None or run.info.status != "RUNNING":
            return
        self._written.pop(info.id, None)
        self._index(info)
        self._log(run.info.run_id, {}, closing.abandoned(run.data.tags[layout.NOTE], info.id))
        self.client.set_terminated(run.info.run_id, "KILLED")

    @guarded
    def write(self, parent: str, info: SweepInfo, outcome: Outcome, flops: float | None = None) -> str:
        """Write one outcome as a child of `parent`: the run's id. The same variant and attempt again is the same run.

        `flops` are the floating-point operations of one call; without them there is no `tflops`.
        """
        key = (outcome.variant.id, outcome.attempt)
        written = self._index(info)
        if (info.id, key) in self._doubtful:
            self._look_again(info, key)
        if key in written:
            return written[key]
        experiment = self._experiment(info.workload, info.device.model)
        try:
            run = self.client.create_run(
                experiment,
                tags=contents.tags(parent, info, outcome, flops),
                run_name=layout.cut(contents.title(info, outcome), layout.MAX_RUN_NAME),
            )
            self._upload(run, contents.files(outcome))
            complete = {layout.COMPLETE: "true"}
            self._log(run.info.run_id, contents.metrics(outcome, flops), complete, contents.params(outcome))
            self.client.set_terminated(run.info.run_id, layout.run_status(outcome))
        except BaseException:
            self.doubt(info, key)
            raise
        written[key] = str(run.info.run_id)
        return written[key]

    def adopt(self, info: SweepInfo) -> None:
        """Write for a sweep that another process has opened, and only what nobody has written yet."""
        self._written[info.id] = {}

    def note(self, info: SweepInfo, key: Key, run_id: str) -> None:
        """Another process has written an outcome of this sweep."""
        self._index(info)[key] = run_id
        self._doubtful.discard((info.id, key))

    def doubt(self, info: SweepInfo, key: Key) -> None:
        """Have the next write of an outcome look at what is there of it, and clear away what is not whole."""
        self._doubtful.add((info.id, key))

    def doubts(self, info: SweepInfo, key: Key) -> bool:
        return (info.id, key) in self._doubtful

    @guarded
    def stand(self, parent: str, standing: Standing) -> None:
        """Say on a sweep's own run how it stands."""
        self.client.set_tag(parent, layout.STANDING, layout.cut(dumped(standing), layout.MAX_TAG))

    @guarded
    def attempts(self, info: SweepInfo) -> dict[str, int]:
        """How often a sweep has recorded each variant, by its id."""
        found: dict[str, int] = {}
        for variant_id, attempt in self._index(info):
            found[variant_id] = max(attempt, found.get(variant_id, 0))
        return found

    @guarded
    def run_of(self, info: SweepInfo, variant_id: str, attempt: int) -> str:
        """The run that a sweep wrote for a variant. Raises NotFound where it wrote none."""
        found = self._index(info).get((variant_id, attempt))
        if found is None:
            raise NotFound(f"sweep {info.id} wrote no run for variant {variant_id}")
        return found

    @guarded
    def amend(
        self,
        run_id: str,
        decision: Decision,
        reason: str,
        verdicts: Sequence[Verdict],
        paired: Paired | None = None,
        drift: float | None = None,
    ) -> None:
        """Change what was decided of a variant, with the evidence. `drift` is the baseline's: 0.03 is 3 % slower after."""
        run = self._run(run_id)
        change: dict[str, Any] = {"decision": decision, "reason": reason, "verdicts": tuple(verdicts)}
        outcome = replace(self._stored(run).outcome, **change)
        written = json.loads(self._download(run, layout.OUTCOME_JSON))  # what a newer version added to it stays
        self._upload(run, {**contents.records(outcome, paired), layout.OUTCOME_JSON: contents.dump({**written, **change})})
        metrics = {} if drift is None else {"baseline_drift": drift}
        if paired is not None:
            metrics |= contents.paired_metrics(paired)
        note = contents.renewed(run.data.tags[layout.NOTE], outcome, run.data.metrics.get("tflops"))
        tags = {layout.DECISION: decision.value, layout.REASON: reason, layout.NOTE: note}
        self._log(run_id, metrics, {k: layout.cut(v, layout.MAX_TAG) for k, v in tags.items()})

    @guarded
    def tries(self, run_id: str) -> list[Try]:
        """Attempts to have a run accepted that were refused after it was measured, oldest first."""
        run = self._run(run_id)
        if layout.TRIES not in run.data.tags:
            return []
        return [from_dict(Try, data) for data in json.loads(self._download(run, layout.TRIES_JSON))]

    @guarded
    def add_try(self, run_id: str, tried: Try) -> None:
        """Record that a run was refused, with what was measured."""
        found = [*self.tries(run_id), tried]
        self._upload(self._run(run_id), {layout.TRIES_JSON: contents.dump(found)})
        self._log(run_id, {}, {layout.TRIES: str(len(found))})

    @guarded
    def file_of(self, stored: Stored) -> str:
        """The sweep file that a run came from, as its user named it."""
        return self.sweep_info(self.find_sweep(stored.sweep_id)).file

    @guarded
    def decide(self, run_id: str, decision: Decision) -> None:
        """Change a variant's decision where there is no new evidence: a best that was superseded, or restored."""
        outcome = self.load(run_id).outcome
        self.amend(run_id, decision, outcome.reason, outcome.verdicts)

    @guarded
    def close_sweep(self, parent: str, info: SweepInfo, ending: Ending) -> None:
        """End a sweep with its ranking (a table and a chart), its counts, and why what failed failed.

        Closing again replaces what was there.
        """
        experiment = self._experiment(info.workload, info.device.model)
        self._remove(list(queries.unfinished(self.client, experiment, info.id)))  # what a write without an answer left behind
        run = self.client.get_run(parent)
        self._upload(run, closing.files(ending))
        self._log(parent, ending.metrics, closing.tags(run.data.tags[layout.NOTE], ending))
        self.client.set_terminated(parent, ending.status)

    @guarded
    def reap(self, sweep_id: str) -> int:
        """Remove the child runs that a killed driver left unfinished: how many there were."""
        experiments = queries.experiment_ids(self.client)
        found = queries.runs(self.client, experiments, queries.variants_of(sweep_id), self.page_size)
        leftovers = [run for run in found if not _whole(run)]
        self._remove(leftovers)
        return len(leftovers)

    @guarded
    def known(self, workload: Workload, device_model: str, variant_ids: Iterable[str]) -> dict[str, Stored]:
        """The latest settled outcome of each of these variants that has one."""
        wanted = set(variant_ids)
        experiment = self.client.get_experiment_by_name(layout.experiment_name(workload, device_model))
        if experiment is None or experiment.lifecycle_stage != "active":
            return {}
        found = queries.settled(self.client, experiment.experiment_id, wanted, self.page_size)
        return {s.variant_id: s for s in self._all(found)}

    @guarded
    def find(self, prefix: str) -> Stored:
        """The variant whose run id or variant id starts with `prefix`. Raises NotFound, with what matches."""
        return self._stored(queries.variant_run(self.client, prefix))

    @guarded
    def load(self, run_id: str) -> Stored:
        """One variant's outcome. Raises NotFound."""
        return self._stored(self._run(run_id))

    @guarded
    def artifact_blob(self, run_id: str) -> bytes:
        """The kernel's binary, proven whole by its hash. Raises RequestError for a variant that was never timed."""
        run = self._run(run_id)
        outcome = self._stored(run).outcome
        if outcome.status not in TIMED or outcome.artifact is None:
            raise RequestError(f"run {run_id[:12]} ended as {outcome.status.value!r}: it has no kernel to load")
        try:
            blob = self._download(run, layout.BLOB)
        except Exception as error:
            raise InfrastructureLost(
                f"run {run_id[:12]}: its kernel ({layout.BLOB}) is gone from {run.info.artifact_uri}"
            ) from error
        if contents.sha256(blob) != outcome.artifact.sha256:
            raise InfrastructureLost(
                f"run {run_id[:12]}: its kernel ({layout.BLOB}) was changed or cut short: measure the variant again"
            )
        return blob

    @guarded
    def sweeps(self, limit: int = 50) -> list[StoredSweep]:
        """Newest first."""
        experiments = queries.experiment_ids(self.client)
        query, order = f"tags.{layout.KIND} = '{layout.KIND_SWEEP}'", ["attributes.start_time DESC"]
        found = self.client.search_runs(experiments, query, max_results=limit, order_by=order) if experiments else []
        return self.readable(self._stored_sweep, found)

    @guarded
    def find_sweep(self, prefix: str) -> StoredSweep:
        """The sweep whose id, or whose parent run's id, starts with `prefix`. Raises NotFound, with the matches."""
        return self._stored_sweep(queries.sweep_run(self.client, prefix))

    @guarded
    def sweep_info(self, sweep: StoredSweep) -> SweepInfo:
        """What was asked of a sweep, its file's text included."""
        content = self._download(self.client.get_run(sweep.run_id), layout.SWEEP_JSON)
        return self._read(f"sweep {sweep.id}", content, lambda data: from_dict(SweepInfo, data))

    @guarded
    def outcomes(self, sweep: StoredSweep) -> list[Stored]:
        """Everything that a sweep itself tried, in the order it was written; what it took from earlier sweeps is not among it."""
        query = f"{queries.WHOLE} AND tags.{layout.SWEEP_ID} = '{sweep.id}'"
        return self._all(list(queries.runs(self.client, [sweep.experiment_id], query, self.page_size)))

    @guarded
    def ranking(self, sweep: StoredSweep) -> list[dict[str, Any]]:
        """A closed sweep's table, best first: a mapping of column to value per line. Empty while the sweep is open."""
        if not sweep.counts:
            return []
        data = json.loads(self._download(self.client.get_run(sweep.run_id), layout.RANKING_JSON))
        return [dict(zip(data["columns"], row)) for row in data["data"]]

    def readable(self, read: Callable[[S], T | None], found: Sequence[S]) -> list[T]:
        """What is read of each, those aside that another version wrote and this one cannot read: `say` gets a line for each."""

        def tried(one: S) -> T | None:
            try:
                return read(one)
            except Unreadable as error:
                self.say(f"left out: {error}")
                return None

        with ThreadPoolExecutor(READERS) as pool:
            return [one for one in pool.map(tried, found) if one is not None]

    def ui_hint(self, experiment_id: str, sweep_id: str) -> str:
        """Where to look at a sweep's runs: an address, after the command that opens a local store."""
        path = view.path(experiment_id, sweep_id)
        if connection.is_server(self.uri):
            return connection.without_password(self.uri).rstrip("/") + path
        here = self.uri == f"sqlite:///{Path.cwd() / 'mlflow.db'}"
        command = "mlflow ui" if here else f"mlflow ui --backend-store-uri {connection.without_password(self.uri)}"
        return f"{command}  (then http://127.0.0.1:5000{path})"

    def _experiment(self, workload: Workload, device_model: str) -> str:
        name = layout.experiment_name(workload, device_model)
        if name not in self._experiments:
            found = connection.ensure_experiment(self.client, name, contents.experiment_tags(workload, device_model))
            if found.lifecycle_stage != "active":
                restore = f"`mlflow experiments restore --experiment-id {found.experiment_id}`"
                forget = f"`mlflow gc --experiment-ids {found.experiment_id}`"
                raise RequestError(
                    f"the MLflow experiment {name!r} was deleted: bring it back with {restore}, or drop it with {forget}"
                )
            self._experiments[name] = str(found.experiment_id)
        return self._experiments[name]

    def _parent(self, info: SweepInfo) -> Run | None:
        """A sweep's own run. A second one is what a request that was sent twice, or answered too late, left behind."""
        experiment = self._experiment(info.workload, info.device.model)
        query = f"tags.{layout.KIND} = '{layout.KIND_SWEEP}' AND tags.{layout.SWEEP_ID} = '{info.id}'"
        found = list(queries.runs(self.client, [experiment], query))
        self._remove(found[1:])
        return found[0] if found else None

    def _index(self, info: SweepInfo) -> dict[Key, str]:
        """What a sweep has written, by variant and attempt: asked of MLflow once, since nobody else writes it."""
        if info.id not in self._written:
            experiment = self._experiment(info.workload, info.device.model)
            found = list(queries.runs(self.client, [experiment], queries.variants_of(info.id), self.page_size))
            self._remove(run for run in found if not _whole(run))
            tags = {run.info.run_id: run.data.tags for run in found if _whole(run)}
            self._written[info.id] = {(t[layout.VARIANT_ID], int(t[layout.ATTEMPT])): id for id, t in tags.items()}
        return self._written[info.id]

    def _look_again(self, info: SweepInfo, key: Key) -> None:
        experiment = self._experiment(info.workload, info.device.model)
        for run in list(queries.attempt(self.client, experiment, info.id, *key)):
            if _whole(run):
                self._written[info.id][key] = str(run.info.run_id)
            else:
                self._remove([run])
        self._doubtful.discard((info.id, key))

    def _remove(self, runs: Iterable[Run]) -> None:
        for run in runs:
            self.client.set_terminated(run.info.run_id, "KILLED")
            self.client.delete_run(run.info.run_id)

    def _run(self, run_id: str) -> Run:
        from mlflow.exceptions import MlflowException

        try:
            run = self.client.get_run(run_id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise NotFound(f"no run {run_id!r} in {connection.without_password(self.uri)}") from error
            raise
        if run.info.lifecycle_stage != "active" or not _whole(run):
            raise NotFound(f"run {run_id[:12]} was deleted, or is no variant's run")
        return run

    def _stored(self, run: Run) -> Stored:
        content = self._download(run, layout.OUTCOME_JSON)
        paired = json.loads(self._download(run, layout.PAIRED_JSON)) if layout.PAIRED in run.data.metrics else None
        return self._read(f"run {run.info.run_id[:12]}", content, lambda data: stored(run, data, paired))

    def _stored_sweep(self, run: Run) -> StoredSweep:
        with reading(f"run {run.info.run_id[:12]}, a sweep's own,"):
            sweep = stored_sweep(run)
        return replace(sweep, interrupted=sweep.status == "RUNNING" and driver_is_gone(sweep.id))

    def _read(self, what: str, content: bytes, read: Callable[[Any], T]) -> T:
        """What a file holds. Raises Unreadable."""
        with reading(what):
            data = json.loads(content)
        with reading(what, data):
            return read(data)

    def _all(self, found: Sequence[Run]) -> list[Stored]:
        return self.readable(self._stored, found)

    def _upload(self, run: Run, files: Mapping[str, bytes]) -> None:
        connection.upload(connection.artifacts(self.uri, run.info.artifact_uri), files)

    def _download(self, run: Run, name: str) -> bytes:
        return connection.download(connection.artifacts(self.uri, run.info.artifact_uri), name)

    def _log(
        self, run_id: str, metrics: Mapping[str, float], tags: Mapping[str, str], params: Mapping[str, str] | None = None
    ) -> None:
        connection.log(self.client, run_id, metrics, tags, params or {})


def _whole(run: Run) -> bool:
    return layout.COMPLETE in run.data.tags and run.info.status != "RUNNING"
