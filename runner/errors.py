"""Every error the product raises on purpose, and every way a job can fail.

RunnerError
├── RequestError          the request is wrong: nothing started            exit 2
│   ├── SpecError         a sweep file, with file, line and suggestion
│   ├── NotFound          a run, a best or a device that is not there, or an ambiguous name
│   └── Unreadable        a record that another version wrote, or that was changed, so that nothing can be made of it
├── Refused               a gate said no; the verdicts say why             exit 1
├── InfrastructureLost    a worker, a server or a device went away         exit 3
└── JobFailed             one job failed; carries a FailureKind
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path


class FailureKind(str, Enum):
    """Why a job gave no result. Most are the kernel's own doing; `UNSOUND` is its family's, and `LOST` the infrastructure's."""

    COMPILE_ERROR = "compile_error"
    COMPILE_TIMEOUT = "compile_timeout"
    LAUNCH_ERROR = "launch_error"
    WRONG_RESULT = "wrong_result"
    SIDE_EFFECT = "side_effect"  # printed, started processes, changed settings: it did something beside computing
    UNSOUND = "unsound"  # the inputs or the baseline leave nothing to check a kernel by
    HANG = "hang"
    CRASH = "crash"
    LOST = "lost"


class RunnerError(Exception):
    """Root of everything raised on purpose. `exit_code` is what a command ends with."""

    exit_code = 1


class RequestError(RunnerError):
    """What was asked for cannot be done as written."""

    exit_code = 2


class SpecError(RequestError):
    """A fault in a sweep file: one line with file, line and what to write instead."""

    def __init__(self, message: str, file: Path | str | None = None, line: int | None = None):
        self.message, self.file, self.line = message, file, line
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        super().__init__(where + message)


class NotFound(RequestError):
    """No such run, best or device, or more than one that the name could mean."""


class Unreadable(RequestError):
    """A record that another version wrote and this one cannot read; says which."""


class Refused(RunnerError):
    """A gate said no. The verdicts were printed; nothing was changed."""

    exit_code = 1


class InfrastructureLost(RunnerError):
    """Something the work stands on went away: it may be tried again."""

    exit_code = 3


class JobFailed(RunnerError):
    """One job failed. `kind` says how, `detail` is one readable line, `output` the tail of what it printed.

    `sticky` means that the process it ran in cannot be used again (a device error that poisons its context).
    """

    def __init__(self, kind: FailureKind, detail: str, output: str = "", sticky: bool = False):
        self.kind, self.detail, self.output, self.sticky = kind, detail, output, sticky
        super().__init__(f"{kind.value}: {detail}")

    def __reduce__(self) -> tuple[object, ...]:
        return (JobFailed, (self.kind, self.detail, self.output, self.sticky))


def nearest(word: str, choices: object) -> str:
    """'; did you mean X?' or the list of choices, to end an error line with."""
    import difflib

    names = sorted(str(c) for c in choices)  # type: ignore[attr-defined]
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"choose from: {', '.join(names)}" if names else "there are none"
