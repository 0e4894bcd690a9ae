"""Sweeps over nothing but noise: how often is a kernel accepted that is not faster, and how often one that is?

    python -m benchmarks.power [--sweeps 100] [--seed 1] [--sessions 3] [--output docs/results/power.json]

Plays the way of protocol version 1 (medians taken one after the other pick three, 50 pairs of one process decide) and that of
version 2 (ratios to calls of the baseline pick sixteen, ten pairs each pick four, pairs of three fresh processes decide, and
five more when it is accepted) on the same model of a card. Intervals, verdicts, sizes and limits are the project's own. No kernel
runs, so what comes out is as true as the model: independent noise of each pair, a card that drifts between measurements, and
processes that each favour one kernel or the other a little.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from runner import accept, finals, gate, spec, stats
from runner.pairs import paired
from runner.records import (
    Acceptance,
    Artifact,
    Check,
    Decision,
    Device,
    Measurement,
    PairSession,
    Protocol,
    Ruling,
    Target,
    Variant,
    Workload,
)

PAIR_SD = 0.003  # of the ratio of one pair, of the logarithm
MEMORY = 0.9  # correlation of the card's state from one measurement to the next
REPEAT, BESIDE = 50, 8  # timed calls of a measurement, and calls of the baseline among them
OLD_FINALS, OLD_PAIRS = 3, 50
VARIANTS = 200
TRIES = 10
GAINS = (0.0, 0.002, 0.005, 0.01, 0.02)
DRIFTS = (0.005, 0.01, 0.02)
OFFSETS = (0.0, 0.003)

WORKLOAD = Workload("gemm", {"M": 1, "N": 1, "K": 1}, "float16")
ACCEPTANCE = Acceptance(mma="none")
DEVICE = Device("cuda", "a simulated card")
REFERENCE = "base"


@dataclass(frozen=True)
class Noise:
    """A card: `drift` and `offset` are standard deviations, as shares: between measurements, and between processes."""

    drift: float
    offset: float
    source: numpy.random.Generator
    sessions: int = spec.SESSIONS  # of the new way's finals

    def call_noise(self, *shape: int) -> Any:
        return self.source.normal(0.0, PAIR_SD / 2**0.5, shape)

    def session(self, gain: float, pairs: int) -> PairSession:
        """Pairs of one process. Neighbours share the card's state, so that it cancels; the process favours one of the two."""
        favour = self.source.normal(0.0, self.offset)
        candidate, reference = (numpy.exp(self.call_noise(pairs)) for _ in range(2))
        return PairSession(tuple(candidate.tolist()), tuple((reference * numpy.exp(gain + favour)).tolist()), contended="")

    def states(self, number: int) -> Any:
        """The card's state before each of so many measurements and after the last: an autoregressive process of order 1."""
        found, steps = numpy.empty(number + 1), self.source.normal(0.0, self.drift, number + 1)
        found[0] = steps[0]
        for i in range(1, number + 1):
            found[i] = MEMORY * found[i - 1] + (1 - MEMORY**2) ** 0.5 * steps[i]
        return found

    def sweep(self, gains: Any) -> tuple[Any, Any]:
        """Milliseconds of the timed calls of each variant, and of the calls of the baseline among them."""
        number, states = len(gains), self.states(len(gains))
        at = [(numpy.arange(calls) + 0.5) / calls for calls in (REPEAT, BESIDE)]
        during = [states[:-1, None] + (states[1:] - states[:-1])[:, None] * t[None, :] for t in at]
        own = gains + self.source.normal(0.0, self.offset, number)
        samples = numpy.exp(during[0] - own[:, None] + self.call_noise(number, REPEAT))
        return samples, numpy.exp(during[1] + self.call_noise(number, BESIDE))


def old_way(noise: Noise, gains: Any) -> int | None:
    """The variant that is accepted; the base is the first. Medians of other minutes say who plays, one process who is faster."""
    samples, _ = noise.sweep(gains)
    medians = numpy.median(samples, axis=1)
    faster = [int(i) for i in numpy.argsort(medians) if i and medians[i] < medians[0]][:OLD_FINALS]
    played = {i: stats.paired_speedup(*_sides(noise.session(gains[i], OLD_PAIRS))) for i in faster}
    winners = [i for i, (_, low, _) in played.items() if low > 1]
    if not winners:
        return None
    winner = max(winners, key=lambda i: played[i][0])
    _, low, _ = stats.paired_speedup(*_sides(noise.session(gains[winner], OLD_PAIRS)))
    return winner if low > 1 else None


def new_way(noise: Noise, gains: Any) -> int | None:
    """As `old_way`, by ratios to the baseline beside each, a first round, and several processes."""
    samples, beside = noise.sweep(gains)
    ratios = numpy.median(beside, axis=1) / numpy.median(samples, axis=1)
    variants = [_variant(i) for i in range(len(gains))]
    base = gate.Reference.of(REFERENCE, variants[0], _artifact(variants[0]), _measurement(samples[0], beside[0]), "")
    assert base is not None
    best = [int(i) for i in numpy.argsort(-ratios) if i][: finals.FIRST_ROUND * spec.FINALS]
    contenders = [i for i in best if _may_play(variants[i], _measurement(samples[i], beside[i]), base)]
    if len(contenders) > spec.FINALS:
        first = {i: stats.paired_speedup(*_sides(noise.session(gains[i], finals.FIRST_PAIRS)))[0] for i in contenders}
        contenders = sorted(first, key=lambda i: -first[i])[: spec.FINALS]
    pairs = max(REPEAT, finals.MIN_PAIRS)
    sessions = {i: [noise.session(gains[i], pairs) for _ in range(noise.sessions)] for i in contenders}
    played = {str(i): paired(str(i), REFERENCE, taken) for i, taken in sessions.items()}
    verdicts = gate.judge_finals(played, ACCEPTANCE, REFERENCE)
    winners = [i for i, verdict in verdicts.items() if verdict.ruling is Ruling.PASS]
    if not winners:
        return None
    winner = max(winners, key=lambda i: played[i].speedup)
    return int(winner) if new_accept(noise, gains[int(winner)], []) else None


def new_accept(noise: Noise, gain: float, earlier: list[PairSession], number: int = 1) -> bool:
    """One try of `runner accept`; its sessions are added to the earlier ones."""
    earlier += [noise.session(gain, accept.PAIRS) for _ in range(accept.SESSIONS)]
    found = paired("candidate", REFERENCE, earlier, accept.confidence_of(number))
    return gate.judge_pair(found, ACCEPTANCE, REFERENCE).ruling is Ruling.PASS


def old_tries(noise: Noise, tries: int) -> bool:
    """Whether a kernel is accepted that is not faster, by trying again and again."""
    return any(stats.paired_speedup(*_sides(noise.session(0.0, OLD_PAIRS)))[1] > 1 for _ in range(tries))


def new_tries(noise: Noise, tries: int) -> bool:
    earlier: list[PairSession] = []
    return any(new_accept(noise, 0.0, earlier, number) for number in range(1, tries + 1))


def of_sweeps(way: Callable[[Noise, Any], int | None], noise: Noise, gain: float, sweeps: int) -> dict[str, float]:
    """Shares of sweeps in which the one faster variant is accepted, and in which another is."""
    right = wrong = 0
    for _ in range(sweeps):
        gains = numpy.zeros(VARIANTS + 1)
        faster = int(noise.source.integers(1, VARIANTS + 1))
        gains[faster] = gain
        accepted = way(noise, gains)
        right += accepted == faster and gain > 0
        wrong += accepted is not None and (accepted != faster or gain == 0)
    return {"right": right / sweeps, "wrong": wrong / sweeps}


def measured(sweeps: int, seed: int, sessions: int) -> dict[str, Any]:
    source = numpy.random.default_rng(seed)
    rows = []
    for drift in DRIFTS:
        for offset in OFFSETS:
            noise = Noise(drift, offset, source, sessions)
            for gain in GAINS:
                ways = {"old": of_sweeps(old_way, noise, gain, sweeps), "new": of_sweeps(new_way, noise, gain, sweeps)}
                rows.append({"drift": drift, "offset": offset, "gain": gain, **ways})
    tries = []
    for offset in (0.0, 0.001, 0.003, 0.01):
        noise = Noise(0.0, offset, source)
        found: dict[str, Any] = {"offset": offset}
        for number in (1, TRIES):
            for name, way in (("old", old_tries), ("new", new_tries)):
                found[f"{name}_{number}"] = sum(way(noise, number) for _ in range(10 * sweeps)) / (10 * sweeps)
        tries.append(found)
    return {
        "variants": VARIANTS,
        "sweeps": sweeps,
        "seed": seed,
        "sessions": sessions,
        "pair_sd": PAIR_SD,
        "sweeps_of": rows,
        "tries_of": tries,
    }


def as_text(found: dict[str, Any]) -> str:
    """The two tables, in Markdown."""
    ways = ("old", "new")
    lines = ["| drift | between processes | way | accepted though nothing is faster | +0.2 % found | +0.5 % | +1 % | +2 % |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for drift in DRIFTS:
        for offset in OFFSETS:
            rows = [r for r in found["sweeps_of"] if (r["drift"], r["offset"]) == (drift, offset)]
            for way in ways:
                cells = [_share(r[way]["right"] if r["gain"] else r[way]["wrong"]) for r in rows]
                lines.append(f"| {drift:.1%} | {offset:.1%} | {way} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| between processes | old, one try | new, one try | old, {TRIES} tries | new, {TRIES} tries |",
        "|---|---|---|---|---|",
    ]
    for row in found["tries_of"]:
        cells = [_share(row[f"{way}_{number}"]) for number in (1, TRIES) for way in ways]
        lines.append(f"| {row['offset']:.1%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.095 else f"{value:.0%}"


def _sides(session: PairSession) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return session.candidate_ms, session.reference_ms


def _may_play(variant: Variant, measurement: Measurement, base: gate.Reference) -> bool:
    """By its own calls of the baseline: whether the gate does not take it for slower."""
    verdicts = gate.judge(variant, _artifact(variant), measurement, None, ACCEPTANCE, 1.0, base)
    return gate.decide(verdicts)[0] is not Decision.BEATEN


def _variant(number: int) -> Variant:
    return Variant(WORKLOAD, {"number": number}, Target("cuda", "none"), "", {}, Protocol().key)


def _artifact(variant: Variant) -> Artifact:
    return Artifact(variant.id, "", variant.id, b"")


def _measurement(samples: Any, beside: Any) -> Measurement:
    check = (Check(0, "as timed", 0.0),)
    return Measurement(DEVICE, Protocol().key, tuple(samples.tolist()), check, reference_ms=tuple(beside.tolist()), contended="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", type=int, default=100, help="of each sort and way")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sessions", type=int, default=spec.SESSIONS, help="of the finals, as `measure: sessions`")
    parser.add_argument("--output", type=Path, help="also write the numbers as JSON")
    arguments = parser.parse_args()
    started = time.perf_counter()
    found = measured(arguments.sweeps, arguments.seed, arguments.sessions)
    print(as_text(found))
    found |= {"seconds": round(time.perf_counter() - started), "python": platform.python_version(), "numpy": numpy.__version__}
    print(f"\n{found['seconds']} s, Python {found['python']}, numpy {found['numpy']}")
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
