"""A real PostgreSQL on the loopback interface, on a free port, with a database that wants a password."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from tests.servers import START_SECONDS, free_port

USER = DATABASE = "mlflow"
PASSWORD = r"only-for:this\test"
"""With what a password file must have escaped."""


@dataclass(frozen=True)
class Postgres:
    """`address` is a URI without the password, and `uri` one that reaches the database as it stands: it names a password file."""

    address: str
    password: str
    uri: str


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server with one empty database, which ends and is removed with the block."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))  # short, and open to who runs the server
    passfile = folder / "passfile"
    passfile.touch(0o600)
    passfile.write_text(f"*:*:*:*:{_escaped(PASSWORD)}\n")
    try:
        with _server(folder) as port:
            address = f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/{DATABASE}"
            yield Postgres(address, PASSWORD, f"{address}?passfile={passfile}")
    finally:
        shutil.rmtree(folder)


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    port, who = free_port(), _who()
    data, log, given = folder / "data", folder / "server.log", folder / "given"
    given.write_text(PASSWORD)
    if who:
        for path in (folder, given):
            shutil.chown(path, who["user"], who["group"])
    initdb = [_binary("initdb"), "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={given}", "-E", "UTF8", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **who)
    settings = ["fsync=off", "listen_addresses=127.0.0.1", f"unix_socket_directories={folder}"]
    with log.open("wb") as output:
        options = [part for setting in settings for part in ("-c", setting)]
        process = subprocess.Popen(
            [_binary("postgres"), "-D", data, "-p", str(port), *options], cwd=folder, stdout=output, stderr=output, **who
        )
    try:
        _create(port, process, log)
        yield port
    finally:
        process.send_signal(signal.SIGQUIT)  # at once: what it holds is thrown away
        process.wait()


def _create(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """The database, once the server answers."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            link = psycopg2.connect(host="127.0.0.1", port=port, user=USER, password=PASSWORD, dbname="postgres")
            break
        except psycopg2.OperationalError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"no PostgreSQL:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.1)
    link.autocommit = True
    with link.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
    link.close()


def _who() -> Mapping[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.getuid():
        return {}
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def _binary(name: str) -> str:
    """Debian keeps the server's programs off the PATH, a folder for each version."""
    found = shutil.which(name) or max(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), default=None)
    if not found:
        raise RuntimeError(f"no {name} here: install PostgreSQL's server (Debian: postgresql)")
    return found


def _escaped(password: str) -> str:
    return password.replace("\\", r"\\").replace(":", r"\:")
