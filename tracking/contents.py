"""An outcome -> what its MLflow run holds: params, metrics, tags, description, files. Pure.

A number that is not known is left out: MLflow sorts 0 and inf as if they had been measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from runner.records import TIMED, Outcome, Paired, SweepInfo, Verdict, Workload, to_dict, versioned
from runner.stats import median, quantile
from tracking import layout

STATE = ("clock_mhz", "clock_mhz_least", "power_w")
"""Of a device's state while it was timed: what says whether two latencies were taken under the same conditions."""


def params(outcome: Outcome) -> dict[str, str]:
    """Shape, dtype and every entry of the config by its own name (`pass.` and `env.` entries included)."""
    workload = outcome.variant.workload
    values = {**workload.shape, "dtype": workload.dtype, **outcome.variant.config}
    return {k: layout.cut(layout.shown(v), layout.MAX_PARAM) for k, v in values.items()}


def metrics(outcome: Outcome, flops: float | None) -> dict[str, float]:
    """Every finite number there is. `flops` are the floating-point operations of one call."""
    found: dict[str, float | int | None] = {}
    if outcome.artifact is not None:
        found |= {"compile_seconds": outcome.artifact.compile_seconds, "mma_count": outcome.artifact.mma_count}
        found |= outcome.artifact.resources
        found |= {k: v for k, v in outcome.artifact.evidence.items() if isinstance(v, int)}
    if outcome.measurement is not None:
        found |= _timing(outcome, flops)
    return {k: float(v) for k, v in found.items() if v is not None and math.isfinite(v)}


def _timing(outcome: Outcome, flops: float | None) -> dict[str, float | None]:
    measurement, baseline = outcome.measurement, outcome.baseline
    assert measurement is not None
    samples, device = measurement.samples_ms, measurement.device
    latency = median(samples)
    tflops = rate(latency, flops)
    peak = device.peak_tflops.get(outcome.variant.workload.dtype)
    own, theirs = measurement.accuracy, measurement.baseline_accuracy
    numbers = {k: v for k, v in measurement.state.items() if k in STATE and isinstance(v, float)}
    return {
        **numbers,
        "first_call_ms": measurement.first_call_ms or None,
        "latency_ms_median": latency,
        "latency_ms_p20": quantile(samples, 0.2),
        "latency_ms_p80": quantile(samples, 0.8),
        "latency_ms_min": min(samples),
        "tflops": tflops,
        "peak_fraction": tflops / peak if tflops and peak else None,
        "max_abs_error": measurement.max_abs_error if measurement.checks else None,
        "relative_error": own.relative_error if own else None,
        "baseline_relative_error": theirs.relative_error if theirs else None,
        "equal_share": measurement.equal / measurement.calls if measurement.calls else None,
        "baseline_latency_ms_median": median(baseline.before_ms) if baseline else None,
        "speedup_vs_baseline": measurement.speedup_vs_baseline,
        "prepack_ms": measurement.prepack_ms,
    }


def paired_metrics(paired: Paired) -> dict[str, float]:
    """A speedup by pairs, with its interval; how much processes differ, where there were several."""
    found = {layout.PAIRED: paired.speedup, "paired_speedup_low": paired.low, "paired_speedup_high": paired.high}
    found["paired_sessions"] = len(paired.sessions)
    return found if paired.tau is None else {**found, "paired_tau": paired.tau}


def rate(latency_ms: float, flops: float | None) -> float | None:
    """TFLOPS of a call that takes `latency_ms`."""
    return flops / latency_ms / 1e9 if flops else None


def tags(parent: str, info: SweepInfo, outcome: Outcome, flops: float | None) -> dict[str, str]:
    variant, measurement = outcome.variant, outcome.measurement
    found = {
        layout.KIND: layout.KIND_VARIANT,
        layout.PARENT: parent,
        layout.SWEEP_ID: info.id,
        layout.SWEEP_NAME: info.name,
        layout.VARIANT_ID: variant.id,
        layout.ATTEMPT: str(outcome.attempt),
        layout.STATUS: outcome.status.value,
        layout.DECISION: outcome.decision.value,
        layout.REASON: outcome.reason,
        layout.WORKLOAD: variant.workload.name,
        layout.DEVICE: info.device.model,
        layout.SWEPT: json.dumps(info.swept),
        layout.ACCEPTANCE: json.dumps(to_dict(info.acceptance)),
        layout.NOTE: note(info, outcome, flops),
        layout.LOGGED_TABLES: table_tag(layout.VERDICTS_JSON),
        layout.DUPLICATE_OF: outcome.duplicate_of,
        "target": str(variant.target),
        "protocol": variant.protocol,
        "code": variant.code,
        "base": "true" if outcome.is_base else "",
        "baseline_form": outcome.baseline.form if outcome.baseline else "",
        "host": measurement.device.host if measurement else "",
        "device_uuid": measurement.device.uuid if measurement else "",
        "measured_at": measurement.measured_at if measurement else "",
        "source_hash": outcome.artifact.source_hash if outcome.artifact else "",
        "commit": info.commit,
    }
    versions = {**variant.toolchain, **(measurement.versions if measurement else {})}
    found |= {f"version.{name}": version for name, version in versions.items()}
    return {k: layout.cut(v, layout.MAX_TAG) for k, v in found.items() if v}


def note(info: SweepInfo, outcome: Outcome, flops: float | None = None) -> str:
    """Two lines: what was tried, and what came of it."""
    shape = ", ".join(f"{k}={v}" for k, v in info.workload.shape.items())
    tried = f"{title(info, outcome)} for {info.workload.family} {shape} {info.workload.dtype}: {info.question or info.name}"
    return f"**Tried** {tried}  \n{came_of_it(outcome, flops)}"


def came_of_it(outcome: Outcome, flops: float | None = None) -> str:
    return f"**Came of it** {result(outcome, flops)}"


def renewed(note: str, outcome: Outcome, tflops: float | None) -> str:
    """A variant's description with its second line said anew; `tflops` as it was written."""
    timed = outcome.measurement is not None and tflops is not None
    flops = tflops * median(outcome.measurement.samples_ms) * 1e9 if timed else None  # type: ignore[union-attr]
    return "\n".join([note.split("\n")[0], came_of_it(outcome, flops)])


def result(outcome: Outcome, flops: float | None = None) -> str:
    """What came of a variant, in one line: `0.812 ms (87.1 TFLOPS), 1.042x torch.mm; candidate: all rules passed`."""
    ending = f"{outcome.decision.value}: {outcome.reason}"
    if outcome.status not in TIMED or outcome.measurement is None:
        return f"{outcome.status.value.replace('_', ' ')}; {ending}"
    latency = median(outcome.measurement.samples_ms)
    tflops = rate(latency, flops)
    speed = f"{latency:.4g} ms" + (f" ({tflops:.1f} TFLOPS)" if tflops else "")
    ratio = outcome.measurement.speedup_vs_baseline
    if outcome.baseline and ratio:
        speed += f", {ratio:.3f}x {outcome.baseline.name}"
    return f"{speed}; {ending}"


def title(info: SweepInfo, outcome: Outcome) -> str:
    """The knobs that were swept, which is what tells one run from its siblings."""
    return outcome.variant.label(info.swept) or outcome.variant.label() or outcome.variant.id


def files(outcome: Outcome) -> dict[str, bytes]:
    """Every artifact of a variant's run by its path."""
    found = {**records(outcome), layout.CONFIG_JSON: dump(outcome.variant.config)}
    if outcome.artifact is not None:
        found[layout.source_name(outcome.variant.target)] = outcome.artifact.source.encode()
        if outcome.artifact.log:
            found[layout.BUILD_LOG] = outcome.artifact.log.encode()
        if outcome.status in TIMED:
            found[layout.BLOB] = outcome.artifact.blob
    if outcome.measurement is not None:
        found[layout.SAMPLES_JSON] = dump(_samples(outcome))
    if outcome.failure is not None:
        found[layout.ERROR_TXT] = f"{outcome.failure.detail}\n\n{outcome.failure.output}".rstrip().encode() + b"\n"
    return found


def records(outcome: Outcome, paired: Paired | None = None) -> dict[str, bytes]:
    """The files that a change of decision rewrites."""
    found = {layout.OUTCOME_JSON: dump(versioned(outcome)), layout.VERDICTS_JSON: verdict_table(outcome.verdicts)}
    if paired is not None:
        found[layout.PAIRED_JSON] = dump(versioned(paired))
    return found


def verdict_table(verdicts: Sequence[Verdict]) -> bytes:
    return table([{"rule": v.rule, "ruling": v.ruling.value, "evidence": v.evidence} for v in verdicts])


def table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as MLflow stores a table (pandas' `split` layout); a column for every key, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return dump({"columns": columns, "data": [[row.get(c) for c in columns] for row in rows]})


def table_tag(*names: str) -> str:
    """What MLflow's viewer goes by to show these artifacts as tables."""
    return json.dumps([{"path": name, "type": "table"} for name in names])


def dump(value: Any) -> bytes:
    return json.dumps(to_dict(value), indent=1, ensure_ascii=False).encode()


def experiment_tags(workload: Workload, device_model: str) -> dict[str, str]:
    note = (
        f"{workload.name} on {device_model}: every variant that was tried. One parent run per sweep, one child run per variant."
    )
    return {
        **layout.EXPERIMENT_KIND,
        layout.OURS: "true",
        layout.WORKLOAD: workload.name,
        layout.DEVICE: device_model,
        layout.NOTE: note,
    }


def sweep_tags(info: SweepInfo, planned: int) -> dict[str, str]:
    found = {
        layout.KIND: layout.KIND_SWEEP,
        layout.SWEEP_ID: info.id,
        layout.SWEEP_NAME: info.name,
        layout.QUESTION: info.question,
        layout.WORKLOAD: info.workload.name,
        layout.DEVICE: info.device.model,
        layout.SWEPT: json.dumps(info.swept),
        layout.PLANNED: str(planned),
        layout.NOTE: "  \n".join([f"**{info.question or info.name}**", f"{planned} variants from {info.file}", *info.notes]),
        "target": str(info.target),
        "protocol": info.protocol,
        "file": info.file,
        "commit": info.commit,
    }
    return {k: layout.cut(v, layout.MAX_TAG) for k, v in found.items() if v}


def sha256(blob: bytes) -> str:
    return hashlib.sha256(blob).hexdigest()


def _samples(outcome: Outcome) -> dict[str, Any]:
    measurement = outcome.measurement
    assert measurement is not None
    without = {"device", "versions"}  # in outcome.json and the tags
    taken = {f.name: getattr(measurement, f.name) for f in dataclasses.fields(measurement) if f.name not in without}
    return {**taken, "baseline": outcome.baseline}
