"""Which files a family's kernels come from, and the hash of them, by which a measurement knows whose it is."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import pkgutil
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path

from kernels.family import load_family, module_of
from kernels.finding import find

NO_KERNELS = "kernels.family"
"""Says what a family is, and not what any kernel does."""

ENGINE = ("runner", "tracking")
"""What runs kernels. What it does to a measurement is told by the protocol's version."""

STANDARD = Path(sysconfig.get_path("stdlib")).resolve()
INSTALLED = {"site-packages", "dist-packages"}


def code_hash(kernel: str, search: Sequence[str] = ()) -> str:
    """Hash of the source of the family that a sweep file's `kernel:` names, 12 hex digits.

    That is the module that `kernel:` names, those of the family's class and of all that the class inherits from, and whatever
    these import, wherever the import stands, and so on. Installed packages do not count, but for ours and the one that the
    family is of. Raises RequestError as `load_family` does.
    """
    family = load_family(kernel, search)
    found = sources([module_of(kernel), *(cls.__module__ for cls in type(family).__mro__)], type(family).__module__)
    text = b"\0".join(part for name in sorted(found) for part in (name.encode(), found[name]))
    return hashlib.sha256(text).hexdigest()[:12]


def sources(modules: Sequence[str], also_of: str) -> dict[str, bytes]:
    """The files of these modules and of all that they import, by module. None is imported, and one that is not there is left out.

    Files of an installed package count where it is ours, or that of the first module or of `also_of`.
    """
    own = {name.partition(".")[0] for name in ("kernels", modules[0], also_of)}
    found: dict[str, bytes] = {}
    queue, seen = list(modules), {NO_KERNELS}
    while queue:
        name = queue.pop()
        spec = None if name in seen else find(name)
        seen.add(name)
        if spec is None or not _counts(spec, own):
            continue
        if package := name.rpartition(".")[0]:
            queue.append(package)  # is imported before it
        if spec.has_location and spec.origin:
            found[name] = Path(spec.origin).read_bytes()
            queue.extend(imports(found[name], spec.parent or ""))
    return found


def imports(source: bytes, package: str) -> Iterator[str]:
    """All that Python source imports, as whole names. What follows `from a import` may be a module or not: it is among them."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # no Python, or a part that is imported only where it is understood
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # more dots than there are packages
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield base
                yield from _members(base, (alias.name for alias in node.names))


def _members(base: str, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        spec = find(base) if name == "*" else None
        every = pkgutil.iter_modules(list(spec.submodule_search_locations or ())) if spec else ()
        yield from (f"{base}.{member.name}" for member in every)
        yield f"{base}.{name}"


def _counts(spec: ModuleSpec, own: set[str]) -> bool:
    top = spec.name.partition(".")[0]
    if not spec.has_location or not spec.origin:
        return spec.submodule_search_locations is not None  # a folder without __init__.py
    path = Path(spec.origin).resolve()
    if top in ENGINE and _is_ours(path, top):
        return False
    if INSTALLED.intersection(path.parts):
        return top in own
    return not path.is_relative_to(STANDARD)


def _is_ours(path: Path, package: str) -> bool:
    """Whether a file is of our own package, and not of a user's folder of that name: ours comes first."""
    spec = find(package)
    return spec is not None and path.is_relative_to(Path(next(iter(spec.submodule_search_locations or ()))).resolve())
