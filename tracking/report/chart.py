"""Latency by config, as a picture: horizontal bars, the best at the top, the baseline as a line."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from runner.records import Decision, RankedRow, SweepInfo
from runner.stats import median, quantile

MOST_BARS = 40
"""More cannot be read; the slower ones are counted in the title instead."""

COLOURS = {"stands": "#1f77b4", "rejected": "#c7c7c7", "baseline": "#d62728"}
BEHIND_TEXT = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # the baseline's line would cross the numbers


def latency_chart(info: SweepInfo, rows: Sequence[RankedRow]) -> bytes:
    """A PNG of the rows given, best first; each bar a median, its whisker from the 20th to the 80th percentile."""
    # Not pyplot: it keeps global state, and picks a window system.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = rows[:MOST_BARS]
    figure = Figure(figsize=(10, 1.6 + 0.32 * len(shown)), layout="constrained")
    axes = figure.add_subplot()
    _bars(axes, info, shown)
    baseline = next((r.outcome.baseline for r in shown if r.outcome.baseline), None)
    if baseline is not None:
        reference = median(baseline.before_ms)
        axes.axvline(reference, color=COLOURS["baseline"], linestyle="--", label=f"{baseline.name} {reference:.4g} ms")
    axes.set_xlabel("median latency, ms (whisker: 20th to 80th percentile)")
    left_out = f" · the {len(rows) - len(shown)} slowest not shown" if len(rows) > len(shown) else ""
    axes.set_title(
        f"{info.question or info.name}\n{info.workload.name} on {info.device.model}{left_out}", fontsize=10, loc="left"
    )
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    png = io.BytesIO()
    FigureCanvasAgg(figure).print_png(png)
    return png.getvalue()


def _bars(axes: Any, info: SweepInfo, rows: Sequence[RankedRow]) -> None:
    labels = [_label(info, row) for row in rows]
    for kind in ("stands", "rejected"):
        picked = [(i, r) for i, r in enumerate(rows) if (r.outcome.decision is Decision.REJECTED) == (kind == "rejected")]
        if not picked:
            continue
        samples = [r.outcome.measurement.samples_ms for _, r in picked if r.outcome.measurement]
        middles = [median(s) for s in samples]
        low = [m - quantile(s, 0.2) for m, s in zip(middles, samples)]
        high = [quantile(s, 0.8) - m for m, s in zip(middles, samples)]
        name = "rejected by the gate" if kind == "rejected" else "passes the gate"
        bars = axes.barh([i for i, _ in picked], middles, xerr=[low, high], color=COLOURS[kind], label=name, height=0.7)
        axes.bar_label(bars, labels=[f"{m:.4g}" for m in middles], padding=4, fontsize=8, bbox=BEHIND_TEXT)
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12, y=0.02)


def _label(info: SweepInfo, row: RankedRow) -> str:
    name = row.outcome.variant.label(info.swept) or row.outcome.variant.id
    notes = [word for word, holds in (("base", row.outcome.is_base), ("from before", row.reused)) if holds]
    return f"{name} ({', '.join(notes)})" if notes else name
