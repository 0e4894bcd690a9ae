"""Questions asked of MLflow's search: paged to the end, only whole runs, by unique prefix.

MLflow answers 1000 runs at most and says nothing of the rest, so every question here follows the page token.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from runner.errors import NotFound
from runner.records import UNSETTLED, Status
from tracking import layout
from tracking.stored import moment

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PAGE = 1000
FEW = 200
"""Variants up to which a question each (12 ms) is quicker than reading every run of the experiment (2 ms each)."""

SETTLED = frozenset(status.value for status in Status if status not in UNSETTLED)

SHOWN = 8
"""How many matches an ambiguous name is answered with."""

WHOLE = f"tags.{layout.COMPLETE} = 'true' AND attributes.status != 'RUNNING'"


def experiment_ids(client: MlflowClient) -> list[str]:
    """The experiments that the runner made, deleted ones aside."""
    found: list[str] = []
    token = None
    while True:
        page = client.search_experiments(filter_string=f"tags.{layout.OURS} = 'true'", max_results=PAGE, page_token=token)
        found.extend(e.experiment_id for e in page)
        token = page.token
        if not token:
            return found


def runs(client: MlflowClient, experiments: Sequence[str], query: str, page_size: int = PAGE) -> Iterator[Run]:
    """All runs that answer `query`, oldest first, deleted ones aside."""
    token = None
    while experiments:
        page = client.search_runs(
            list(experiments), query, max_results=page_size, order_by=["attributes.start_time ASC"], page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def attempt(client: MlflowClient, experiment: str, sweep_id: str, variant_id: str, attempt: int) -> Iterator[Run]:
    """The runs that a sweep has made for one attempt at a variant, whole or not."""
    of = f"tags.{layout.SWEEP_ID} = {layout.quoted(sweep_id)} AND tags.{layout.VARIANT_ID} = {layout.quoted(variant_id)}"
    return runs(client, [experiment], f"{of} AND tags.{layout.ATTEMPT} = '{attempt}'")


def variants_of(sweep_id: str) -> str:
    """The question for a sweep's variants, whole or not."""
    return f"tags.{layout.KIND} = '{layout.KIND_VARIANT}' AND tags.{layout.SWEEP_ID} = {layout.quoted(sweep_id)}"


def unfinished(client: MlflowClient, experiment: str, sweep_id: str) -> Iterator[Run]:
    """The variants' runs of a sweep that have not ended: quick to ask, however many have."""
    return runs(client, [experiment], f"{variants_of(sweep_id)} AND attributes.status = 'RUNNING'")


def settled(client: MlflowClient, experiment: str, wanted: Collection[str], page_size: int = PAGE) -> list[Run]:
    """The newest run of each of these variants, of those that no later submit would try again."""
    if len(wanted) <= FEW:
        each = (runs(client, [experiment], f"{WHOLE} AND tags.{layout.VARIANT_ID} = {layout.quoted(id)}") for id in wanted)
        return list(_newest(chain.from_iterable(each)).values())
    return [run for id, run in _newest(runs(client, [experiment], WHOLE, page_size)).items() if id in wanted]


def _newest(oldest_first: Iterable[Run]) -> dict[str, Run]:
    """By variant. What another version calls by a name of its own is passed over."""
    return {r.data.tags[layout.VARIANT_ID]: r for r in oldest_first if r.data.tags[layout.STATUS] in SETTLED}


def variant_run(client: MlflowClient, prefix: str) -> Run:
    """The one variant's run whose run id or variant id starts with `prefix`.

    A variant that was run more than once is answered with its newest settled run. Raises NotFound, with the matches.
    """
    by_run = _starting(client, f"attributes.run_id LIKE '{_checked(prefix)}%' AND {WHOLE}")
    by_variant = _starting(client, f"tags.{layout.VARIANT_ID} LIKE '{prefix}%' AND {WHOLE}")
    matches = {r.info.run_id: r for r in (*by_run, *by_variant)}
    if len(matches) > 1 and not by_run and len({r.data.tags[layout.VARIANT_ID] for r in by_variant}) == 1:
        oldest_first = sorted(by_variant, key=lambda r: int(r.info.start_time))
        return next(iter(_newest(oldest_first).values()), oldest_first[-1])
    return _only(list(matches.values()), prefix, "run")


def sweep_run(client: MlflowClient, prefix: str) -> Run:
    """The one sweep whose id, or whose parent run's id, starts with `prefix`. Raises NotFound, with the matches."""
    kind = f"tags.{layout.KIND} = '{layout.KIND_SWEEP}'"
    by_id = _starting(client, f"tags.{layout.SWEEP_ID} LIKE '{_checked(prefix)}%' AND {kind}")
    by_run = _starting(client, f"attributes.run_id LIKE '{prefix}%' AND {kind}")
    return _only(list({r.info.run_id: r for r in (*by_id, *by_run)}.values()), prefix, "sweep")


def _starting(client: MlflowClient, query: str) -> list[Run]:
    """The newest few answers: enough to see that a prefix is not unique."""
    experiments = experiment_ids(client)
    if not experiments:
        return []
    return list(client.search_runs(experiments, query, max_results=SHOWN + 1, order_by=["attributes.start_time DESC"]))


def _checked(prefix: str) -> str:
    """Ids are hexadecimal; anything else cannot match, and `%` and `_` would mean something to LIKE."""
    if not re.fullmatch(r"[0-9a-f]+", prefix):
        raise NotFound(f"no run {prefix!r}: an id is made of the digits 0-9 and a-f (see `sweep list`)")
    return prefix


def _only(matches: list[Run], prefix: str, what: str) -> Run:
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise NotFound(f"no {what} whose id starts with {prefix!r} (see `sweep list`)")
    lines = [f"  {_described(r)}" for r in matches[:SHOWN]] + (["  …"] if len(matches) > SHOWN else [])
    raise NotFound("\n".join([f"{prefix!r} could be any of these; give more of its id:", *lines]))


def _described(run: Run) -> str:
    tags = run.data.tags
    variant = tags.get(layout.VARIANT_ID, tags[layout.SWEEP_ID])
    return f"{run.info.run_id[:12]}  {variant}  {run.info.run_name}  {tags[layout.SWEEP_NAME]}  {moment(run.info.start_time)}"
