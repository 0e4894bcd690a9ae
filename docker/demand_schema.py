"""Refuses a database whose tables are of another version of MLflow: for mlflow.sh, with the database's URI as its argument.

`mlflow server` would not ask: where its own version has tables that the database lacks, it changes the database as it starts.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError


def main(uri: str) -> None:
    found, wanted = schema_of(uri), newest()
    if found not in (None, wanted):
        print(
            f"mlflow.sh: the database has MLflow's schema {found}, and this MLflow has {wanted}: "
            "back the database up, then start this once with UPGRADE_DATABASE=1",
            file=sys.stderr,
        )
        raise SystemExit(3)


def schema_of(uri: str) -> str | None:
    """None where the database is empty."""
    try:
        with create_engine(uri).connect() as link:
            if "alembic_version" not in inspect(link).get_table_names():
                return None
            return str(link.scalar(text("SELECT version_num FROM alembic_version")))
    except SQLAlchemyError as error:
        print(f"mlflow.sh: the database does not let us in: {' '.join(str(error).split())[:300]}", file=sys.stderr)
        raise SystemExit(3) from None


def newest() -> str | None:
    """Of the MLflow that is installed, without importing it, which takes seconds."""
    mlflow = find_spec("mlflow")
    assert mlflow is not None and mlflow.origin is not None
    return ScriptDirectory(str(Path(mlflow.origin).parent / "store" / "db_migrations")).get_current_head()


if __name__ == "__main__":
    main(sys.argv[1])
