"""The guard: an MLflow model registry store that demands a clearance before it moves what is protected.

    config     guard.toml: whose signature counts, what is protected
    rules      which changes are refused, and in which words. Pure
    artifacts  where the server finds a version's bytes, and their digest
    moves      the guard's own record of who held an alias
    store      MLflow's SQL store with the rules in front of every change

It runs inside the MLflow server, so REST, the Python client and the web page are all refused by it. What may not be
changed lightly: a rule and the change that it admits share one database transaction that holds the model's row, so
nothing can come between them; and a configuration that cannot be read stops the server.

This module is imported by every MLflow client on a machine where the package is installed, so it imports nothing heavy.
"""

import sys
from typing import Any

SCHEME = "validator-guard+"
"""Before the URI of the database: `validator-guard+sqlite:///mlflow.db`."""


def open_store(store_uri: str, tracking_uri: str | None = None) -> Any:
    """Open the guarded registry. MLflow calls this for every URI with our scheme.

    Raises:
        GuardConfigError: no configuration, or one that cannot be used. The server does not start then.
    """
    del tracking_uri  # MLflow's own SQL store takes the process-wide one, too
    from validator.errors import GuardConfigError
    from validator.guard.store import open_guarded_store

    try:
        return open_guarded_store(store_uri)
    except GuardConfigError as error:
        # MLflow logs a traceback, or nothing at all: its log level decides.
        sys.stderr.write(f"{error.word}[{error.code}]: {error.message}\n  {error.hint}\n")
        raise
