"""A sweep file -> `SweepSpec`. All validation happens here, before anything starts.

Every fault is a `SpecError`: one line with the file, the line and what to write instead; the first one found is
reported. The schema is docs/sweep-file.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from runner.errors import RequestError, SpecError, nearest
from runner.expression import parse
from runner.knobs import Config, KnobReader
from runner.names import line_fault, workload_fault
from runner.overrides import check_one_shape, differences, layer_of_setting, layers_by_target, overlaid
from runner.records import Acceptance, Allowance, Protocol, TargetKind, Value, Workload
from runner.yaml_lines import Node, load

if TYPE_CHECKING:
    from kernels.family import Family

Strategy = Literal["grid", "one_at_a_time", "list"]

SECTIONS = (
    *("name", "question", "kernel", "workload", "target", "devices", "base", "sweep", "configs", "strategy", "where"),
    *("measure", "accept", "on"),
)
MEASURE = ("warmup", "repeat", "finals", "sessions", "deadline", "compile_deadline", "memory_gb", "siblings")
ACCEPT = ("max_abs_error", "mma", "min_speedup", "max_spread", "alone", "deterministic", "max_error_ratio")
FINALS, SESSIONS = 4, 3
MOE = ("batch_size", "seq_len", "top_k", "hidden_size", "intermediate_size")


@dataclass(frozen=True)
class SweepSpec:
    """What a sweep file asks, for the kind of target it will run on. `base` has a value for every knob."""

    name: str
    question: str
    family: str  # as written in `kernel:`
    workload: Workload
    kind: TargetKind
    devices: str  # the model to run on, "all" for each that there is; empty: the first
    arch: str | None  # from `target: cuda/sm_90a`; None: the device's own
    base: Config
    sweep: dict[str, tuple[Value, ...]]  # strategies grid and one_at_a_time
    listed: tuple[Config, ...]  # strategy list: what each config changes of `base`
    strategy: Strategy
    where: tuple[str, ...]
    protocol: Protocol
    finals: int
    sessions: int
    allowance: Allowance
    acceptance: Acceptance
    file: str
    text: str
    notes: tuple[str, ...] = ()  # what `on:` and `--set` changed, one line each

    @property
    def swept(self) -> tuple[str, ...]:
        """The knobs that vary, in the file's order."""
        return tuple(dict.fromkeys([*self.sweep, *(knob for config in self.listed for knob in config)]))


def load_spec(
    path: str | Path,
    choose: Callable[[str], TargetKind],
    load_family: Callable[[str], Family],
    settings: Sequence[str] = (),
    text: str | None = None,
) -> SweepSpec:
    """Reads a sweep file for the target that `choose` makes of its `target:` ("auto" where it has none).

    `settings` are `--set` options, `PATH=VALUE`; they win over the file's `on:`. `text` is the file's content where it
    is known already: a sweep that is taken up again reads what it was started with. Raises SpecError.
    """
    file = str(path)
    text = _text_of(Path(path)) if text is None else text
    root = load(text, file)
    if root.value is None:
        raise SpecError("the file is empty: it needs at least name, kernel and workload", file)
    keys = root.mapping("a sweep file", SECTIONS)
    name = _required(root, "kernel", "kernel: gemm").text("kernel")
    family = _asked(keys["kernel"], file, lambda: load_family(name))
    wanted, arch = _target(keys.get("target"))
    kind = _asked(keys.get("target"), file, lambda: choose(wanted))
    check_one_shape(keys.get("workload"))
    layers = layers_by_target(keys.get("on"))

    def read(tree: Node, kind: TargetKind, final: bool) -> SweepSpec:
        return _Reader(name, family, kind, final).read(tree, arch if kind == wanted else None, text)

    plain = read(root, kind, final=False)
    tree = overlaid(root, layers[kind]) if kind in layers else root
    on_target = read(tree, kind, final=False)
    for setting in settings:
        tree = overlaid(tree, layer_of_setting(setting, [knob.name for knob in family.knobs]))
    spec = read(tree, kind, final=True)
    for other in sorted(layers.keys() - {kind}):  # a fault that shows on another target only is this file's all the same
        for final in (False, True):  # a misspelt `threads: null` is better called misspelt than missing
            read(overlaid(root, layers[other]), cast(TargetKind, other), final)
    by_target, by_hand = (plain, on_target, f"on {kind}", f"changed for {kind}"), (on_target, spec, "--set", "changed by --set")
    return _with_changes(spec, by_target, by_hand)


def _with_changes(spec: SweepSpec, *steps: tuple[SweepSpec, SweepSpec, str, str]) -> SweepSpec:
    """The spec with a note for each thing a layer changed, and with where its shape came from."""
    notes = [note for before, after, who, _ in steps for note in differences(who, _facts(before), _facts(after))]
    shapes = [((a.workload.shape, a.workload.dtype), (b.workload.shape, b.workload.dtype), why) for a, b, _, why in steps]
    origin = [spec.workload.origin, *(why for before, after, why in shapes if before != after)]
    return replace(spec, notes=tuple(notes), workload=replace(spec.workload, origin=", ".join(filter(None, origin))))


def _target(node: Node | None) -> tuple[str, str | None]:
    """The target asked for and its architecture: `cuda/sm_90a` names both."""
    wanted, _, arch = node.text("target").partition("/") if node else ("auto", "", "")
    if node and arch and wanted == "auto":
        raise node.fault("an architecture needs its target by name: write it as cuda/sm_90a")
    return wanted, arch or None


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise SpecError("is not UTF-8 text: save it as UTF-8", path) from None
    except FileNotFoundError:
        found = [str(p) for folder in {path.parent, Path("sweeps")} for p in folder.glob("*.y*ml")]
        hint = nearest(str(path), found) if found else f"there is no .yaml file in {path.parent}"
        raise SpecError(f"there is no such file: {hint}", path) from None
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror}): name a sweep file", path) from None


def _asked(node: Node | None, file: str, ask: Callable[[], Any]) -> Any:
    """An answer from outside; its RequestError becomes a fault of the line that asked."""
    try:
        return ask()
    except RequestError as error:
        raise (node or Node(None, file)).fault(str(error)) from error


def _required(root: Node, key: str, example: str) -> Node:
    keys = root.value
    if not isinstance(keys, dict) or key not in keys:
        raise root.fault(f"{key} is missing: write '{example}'")
    return keys[key]


def _recorded(node: Node) -> str:
    """The name of a sweep, which its run in MLflow is called by too."""
    name = node.text("name")
    if fault := line_fault(name):
        raise node.fault(f"name {fault}")
    return name


def _facts(spec: SweepSpec) -> dict[str, Any]:
    """All that a layer can change, by the words a person uses for it."""
    accept = {key: getattr(spec.acceptance, key) for key in ACCEPT}
    measure = {"warmup": spec.protocol.warmup, "repeat": spec.protocol.repeat, "finals": spec.finals}
    measure["sessions"] = spec.sessions
    allowed = spec.allowance
    may_use = {"deadline": allowed.deadline_s, "compile_deadline": allowed.compile_deadline_s, "memory_gb": allowed.memory_gb}
    may_use["siblings"] = allowed.siblings
    sweep = {f"sweep of {knob}": values for knob, values in spec.sweep.items()}
    whole = {
        "devices": spec.devices or None,
        "configs": spec.listed,
        "strategy": spec.strategy,
        "where": spec.where,
        "name": spec.name,
        "question": spec.question,
    }
    return {**spec.workload.shape, "dtype": spec.workload.dtype, **spec.base, **sweep, **measure, **may_use, **accept, **whole}


class _Reader:
    """Reads one tree, section by section, for one kind of target; `final` is what KnobReader makes of it."""

    def __init__(self, kernel: str, family: Family, kind: TargetKind, final: bool):
        self.kernel, self.family, self.kind = kernel, family, kind
        self.knobs = KnobReader(family, kind, final)

    def read(self, root: Node, arch: str | None, text: str) -> SweepSpec:
        keys = root.mapping("a sweep file", SECTIONS)
        nothing = Node(None, root.source)
        strategy = cast(Strategy, keys["strategy"].choice("strategy", get_args(Strategy)) if "strategy" in keys else "grid")
        if (strategy == "list") != ("configs" in keys):
            lonely = keys.get("configs") or keys["strategy"]
            raise lonely.fault("'configs' and 'strategy: list' need each other: write both or neither")
        if strategy == "list" and "sweep" in keys:
            raise keys["sweep"].fault("a sweep with 'strategy: list' takes its configs from 'configs': remove 'sweep'")
        measure = keys.get("measure", nothing).mapping("measure", MEASURE)
        default = Protocol()
        return SweepSpec(
            name=_recorded(_required(root, "name", "name: my-sweep")),
            question=keys["question"].text("question") if "question" in keys else "",
            family=self.kernel,
            workload=self.workload(_required(root, "workload", "workload: {M: 512, N: 512, K: 512, dtype: float16}")),
            kind=self.kind,
            devices=keys["devices"].text("devices") if "devices" in keys else "",
            arch=arch,
            base=self.knobs.base(keys.get("base", nothing)),
            sweep=self.knobs.sweep(keys.get("sweep", nothing)),
            listed=self.knobs.configs(keys.get("configs")),
            strategy=strategy,
            where=self.where(keys.get("where", nothing)),
            protocol=Protocol(
                warmup=measure["warmup"].integer("warmup", 0) if "warmup" in measure else default.warmup,
                repeat=measure["repeat"].integer("repeat", 1) if "repeat" in measure else default.repeat,
            ),
            finals=measure["finals"].integer("finals", 0) if "finals" in measure else FINALS,
            sessions=measure["sessions"].integer("sessions", 1) if "sessions" in measure else SESSIONS,
            allowance=self.allowance(measure),
            acceptance=self.acceptance(keys.get("accept", nothing)),
            file=root.source,
            text=text,
        )

    def workload(self, node: Node) -> Workload:
        dims = self.family.dims
        keys = node.mapping("workload", (*dims, "dtype", "moe"))
        shape, origin = self.moe(keys["moe"]) if "moe" in keys else ({}, "")
        if shape and all(dim in keys for dim in dims):
            origin = ""  # nothing of the moe is left
        shape.update({dim: keys[dim].integer(dim, 1) for dim in dims if dim in keys})
        if lacking := [dim for dim in dims if dim not in shape]:
            hint = " (or moe)" if dims == ("M", "N", "K") else ""
            raise node.fault(f"workload lacks {', '.join(lacking)}: give all of {', '.join(dims)}{hint}")
        if "dtype" not in keys:
            raise node.fault(f"workload lacks dtype: choose from {', '.join(self.family.dtypes)}")
        dtype = keys["dtype"].choice(f"the dtype of {self.family.name}", self.family.dtypes)
        found = Workload(self.kernel, {dim: shape[dim] for dim in dims}, dtype, origin)
        if fault := workload_fault(found.name):
            raise node.fault(f"the workload's name, {found.name[:60]}…, {fault} (it is of the kernel, the shape and the dtype)")
        return found

    def moe(self, node: Node) -> tuple[dict[str, int], str]:
        """The GEMM that a mixture-of-experts layer comes to, and the words for where it came from."""
        keys = node.mapping("moe", MOE)
        if set(self.family.dims) != {"M", "N", "K"}:
            raise node.fault(f"moe describes M, N and K, and {self.family.name} has {', '.join(self.family.dims)}: give those")
        if lacking := [key for key in MOE if key not in keys]:
            raise node.fault(f"moe lacks {', '.join(lacking)}: give all of {', '.join(MOE)}")
        batch_size, seq_len, top_k, hidden_size, intermediate_size = (keys[key].integer(key, 1) for key in MOE)
        rows = replace(node, value=batch_size * seq_len * top_k).integer("M = batch_size * seq_len * top_k", 1)
        origin = "moe: " + " ".join(f"{key}={keys[key].value}" for key in MOE)
        return {"M": rows, "N": intermediate_size, "K": hidden_size}, origin

    def where(self, node: Node) -> tuple[str, ...]:
        if node.value is None:
            return ()
        names = [*(knob.name for knob in self.family.knobs), *self.family.dims]
        items = (node,) if isinstance(node.value, str) else node.sequence("where")
        return tuple(self.condition(item, names) for item in items)

    def condition(self, node: Node, names: list[str]) -> str:
        try:
            return parse(node.text("a condition of where"), names).text
        except SpecError:
            raise
        except RequestError as error:
            raise node.fault(str(error)) from error

    def allowance(self, measure: dict[str, Node]) -> Allowance:
        default = Allowance()
        memory, siblings = measure.get("memory_gb"), measure.get("siblings")
        return Allowance(
            deadline_s=self.span(measure.get("deadline"), "deadline", default.deadline_s),
            compile_deadline_s=self.span(measure.get("compile_deadline"), "compile_deadline", default.compile_deadline_s),
            siblings=siblings.number("siblings", 0, above=True) if siblings else default.siblings,
            memory_gb=None if memory is None or memory.value is None else memory.number("memory_gb", 0, above=True),
        )

    def span(self, node: Node | None, what: str, default: tuple[float, float]) -> tuple[float, float]:
        """A floor and a ceiling in seconds."""
        if node is None:
            return default
        ends = node.value if isinstance(node.value, tuple) else ()
        if len(ends) != 2:
            raise node.fault(f"{what} takes its least and its most seconds, as [{default[0]:g}, {default[1]:g}], not {node}")
        floor, ceiling = (end.number(f"{what}'s {which}", 0, above=True) for end, which in zip(ends, ("least", "most")))
        if floor > ceiling:
            raise node.fault(f"{what} has its least seconds above its most, {floor:g} and {ceiling:g}: swap them")
        return floor, ceiling

    def acceptance(self, node: Node) -> Acceptance:
        default, keys = Acceptance(), node.mapping("accept", ACCEPT)

        def word(key: str) -> str:
            found: str = keys[key].choice(key, ("required", "none")) if key in keys else getattr(default, key)
            return found

        def number(key: str, above: bool) -> float:
            found: float = keys[key].number(key, 0, above=above) if key in keys else getattr(default, key)
            return found

        informs = "max_abs_error" in keys and keys["max_abs_error"].value is None
        return Acceptance(
            max_abs_error=None if informs else number("max_abs_error", above=False),
            mma=word("mma"),
            min_speedup=number("min_speedup", above=True),
            max_spread=number("max_spread", above=True),
            alone=word("alone"),
            deterministic=word("deterministic"),
            max_error_ratio=number("max_error_ratio", above=True) if "max_error_ratio" in keys else default.max_error_ratio,
        )
