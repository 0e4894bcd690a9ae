"""What both commands share: errors raised on purpose become one line and an exit code, never a traceback."""

from __future__ import annotations

import sys
from typing import Any

import click

from runner.errors import RunnerError
from runner.interrupt import INTERRUPTED


class Command(click.Group):
    """A click group that ends with the exit code of a RunnerError: 1 a gate said no, 2 wrong request, 3 lost infrastructure.

    What Ctrl-C ends is 130.
    """

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except RunnerError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            sys.exit(0)  # `sweep list | head`
