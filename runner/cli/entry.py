"""What both commands share: errors raised on purpose become one line and an exit code, never a traceback."""

from __future__ import annotations

import io
import sys
from typing import Any

import click

from runner.errors import InfrastructureLost, RunnerError
from runner.interrupt import INTERRUPTED
from runner.paths import here


class Command(click.Group):
    """A click group that ends with the exit code of a RunnerError: 1 a gate said no, 2 wrong request, 3 lost infrastructure.

    What Ctrl-C ends is 130.
    """

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """What a terminal or a pipe cannot show is replaced: a name or a ruled line is not worth a command."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
        return super().main(*args, **kwargs)

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except RunnerError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            sys.exit(INTERRUPTED)
        except FileNotFoundError:
            if here():
                raise
            click.echo("error: the current folder is gone: change to one that is there", err=True)
            sys.exit(InfrastructureLost.exit_code)
        except BrokenPipeError:
            sys.exit(0)  # `sweep list | head`
