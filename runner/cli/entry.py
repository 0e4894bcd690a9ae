"""What both commands share: errors raised on purpose become one line and an exit code, never a traceback."""

from __future__ import annotations

import sys
from typing import Any

import click

from runner.errors import RunnerError


class Command(click.Group):
    """A click group that ends with the exit code of a RunnerError: 1 a gate said no, 2 wrong request, 3 lost infrastructure."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except RunnerError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except BrokenPipeError:
            sys.exit(0)  # `sweep list | head`
