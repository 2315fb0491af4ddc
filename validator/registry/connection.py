"""Opening a registry, asking whether it is there, and turning what MLflow raises into our errors."""

import http.client
import logging
import math
import os
import re
import signal
import sqlite3
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit, urlunsplit

from validator.errors import CouldNotRun, GuardRefused, RegistryUnreachable, RegistryUnset, UriError, ValidatorError
from validator.faults import crash_point
from validator.registry.interface import GUARD_SAYS

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {
    # Both names of one switch: until 3.17 and from 3.18. The default of both is to run code from a model.
    "MLFLOW_ALLOW_MODEL_CODE_EXECUTION": "false",
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # Standard output is the report's, or one JSON document's.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # 13 s until a dead host is given up; MLflow's own 7 times 120 s come to minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
}
USER_MAY_SET = frozenset({"MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_LOGGING_LEVEL"})
DEADLINE_S = 45.0
"""Of a call that moves no files. MLflow's own timeout is between two bytes: a server that drips them never meets it."""
TRANSFER_DEADLINE_S = 3_600.0
"""Of one that moves files, likewise."""
PROBE_TIMEOUT_S = 5.0
PROBE_PAUSE_S = 1.0

MISSING = frozenset({"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"})
_UNUSABLE = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})
_DENIED = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED"})
_MESSAGE_LIMIT = 300

T = TypeVar("T")


class Connection:
    """The URIs of a registry, and a client for it that is made on first use: making one opens the store."""

    def __init__(self, *, tracking_uri: str, registry_uri: str) -> None:
        self.tracking_uri = tracking_uri
        self.registry_uri = registry_uri
        self._client: MlflowClient | None = None

    @property
    def client(self) -> "MlflowClient":
        """MLflow's own client.

        Raises:
            RegistryUnset: MLflow has no store for such a URI.
            RegistryUnreachable: the store cannot be opened.
        """
        if self._client is None:
            self._client = self._open()
        return self._client

    def _open(self) -> "MlflowClient":
        prepare_environment()
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
        from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException

        silence_libraries()
        with self.doing("opening it"):
            try:
                return MlflowClient(self.tracking_uri, self.registry_uri)
            except UnsupportedModelRegistryStoreURIException as error:
                schemes = ", ".join(sorted(scheme for scheme in error.supported_uri_schemes if scheme))
                raise RegistryUnset(f"MLflow has no store for {self.shown}", hint=f"it has {schemes}") from error
            except MlflowException as error:
                if error.error_code in _UNUSABLE:
                    raise RegistryUnset(f"MLflow does not open {self.shown}: {_one_line(error)}") from error
                raise

    @property
    def shown(self) -> str:
        """The registry's URI for people."""
        return strip_credentials(self.registry_uri)

    def probe(self) -> None:
        """Ask within seconds whether both servers are there; a call of MLflow's own would retry for much longer.

        Raises:
            RegistryUnset: the database file does not exist. MLflow would create an empty one.
            RegistryUnreachable: nobody answers, or the file is no database.
        """
        for uri in dict.fromkeys((self.registry_uri, self.tracking_uri)):
            probe_uri(uri)

    @contextmanager
    def doing(self, what: str, *, limit_s: float | None = None) -> Iterator[None]:
        """Map whatever MLflow and the libraries below it raise; `what` reads as "while ...".

        Args:
            what: is done.
            limit_s: how long it may take over HTTP; None: `DEADLINE_S`; infinity: for ever.
        """
        from mlflow.exceptions import MlflowException

        is_remote = self.registry_uri.startswith("http") or self.tracking_uri.startswith("http")
        try:
            with _deadline((DEADLINE_S if limit_s is None else limit_s) if is_remote else math.inf):
                yield
        except _OutOfTime as error:
            raise RegistryUnreachable(
                f"registry {self.shown} did not finish in time while {what}",
                hint="every step is safe to repeat once the registry is back",
            ) from error
        except MlflowException as error:
            raise translate(error, self.shown, what) from error
        except store_errors() as error:
            raise unreachable(self.shown, what, error) from error
        except OSError as error:
            # requests' exceptions are OSErrors without an errno, and mean the network.
            if error.errno is None or isinstance(error, ConnectionError | TimeoutError):
                raise unreachable(self.shown, what, error) from error
            raise CouldNotRun(f"{error.strerror or 'failed'} while {what}", hint=_file_of(error)) from error

    @contextmanager
    def writing(self, what: str, *, limit_s: float | None = None) -> Iterator[None]:
        """Do what others can see: as `doing`, behind a crash point."""
        crash_point(what)
        with self.doing(what, limit_s=limit_s):
            yield

    def look_up(self, what: str, call: Callable[[], T]) -> T | None:
        """Return what the call returns, or None where MLflow says that there is no such thing."""
        from mlflow.exceptions import MlflowException

        with self.doing(what):
            try:
                return call()
            except MlflowException as error:
                if error.error_code in MISSING:
                    return None
                raise


class _OutOfTime(BaseException):
    """No Exception, so that no library takes it for a failure of the network and tries again."""


@contextmanager
def _deadline(limit_s: float) -> Iterator[None]:
    """Raise _OutOfTime when the block takes longer.

    Only the main thread can be interrupted, and the timer is one for the whole process: in other threads, within
    another deadline, or where somebody else set it, MLflow's own timeouts hold.
    """
    is_free = signal.getitimer(signal.ITIMER_REAL)[0] == 0
    if math.isinf(limit_s) or threading.current_thread() is not threading.main_thread() or not is_free:
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def prepare_environment() -> None:
    """Set MLflow's switches for this process. Call before the first import of mlflow: some are read only then.

    The security switches are set whatever the user's environment says; timeouts and the log level only if unset.
    """
    for name, value in ENVIRONMENT.items():
        if name in USER_MAY_SET:
            os.environ.setdefault(name, value)
        else:
            os.environ[name] = value


def silence_libraries() -> None:
    """Keep what MLflow and Alembic log, print or warn out of our terminal. What matters comes as an exception."""
    from mlflow.utils.logging_utils import disable_logging

    disable_logging()  # type: ignore[no-untyped-call]  # mlflow has no types there
    for name in ("mlflow", "alembic", "urllib3", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"mlflow\b")


def connect(*, tracking_uri: str | None, registry_uri: str | None, cwd: Path) -> Connection:
    """Take the URIs from the arguments, else from MLflow's variables, else from `./mlflow.db` if it exists.

    Raises:
        RegistryUnset: none of them names a registry.
    """
    default = cwd / "mlflow.db"
    tracking = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or None
    if tracking is None and default.is_file():
        tracking = f"sqlite:///{default.resolve()}"
    registry = registry_uri or os.environ.get("MLFLOW_REGISTRY_URI") or tracking
    if tracking is None or registry is None:
        raise RegistryUnset(
            "no registry is set, and ./mlflow.db does not exist",
            hint='set MLFLOW_TRACKING_URI, or run "validator demo" to try it without one',
        )
    return Connection(tracking_uri=tracking, registry_uri=registry)


def strip_credentials(uri: str) -> str:
    """Return a URI without user, password, query and fragment."""
    parts = urlsplit(uri)
    if not parts.netloc:
        return uri.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))


def database_path(uri: str) -> Path | None:
    """Return the file of an SQLite URI, absolute; None for anything else."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///([^?]+)(?:\?.*)?", uri)
    return None if match is None or match[1] == ":memory:" else Path(match[1]).absolute()


# --- Is it there? ---------------------------------------------------------------------------------------------


def probe_uri(uri: str) -> None:
    """Look whether a registry is there. Stores other than HTTP and SQLite are left to MLflow.

    Raises:
        RegistryUnset: the database file does not exist.
        RegistryUnreachable: nobody answers, or the file is no database.
    """
    if (path := database_path(uri)) is not None:
        _probe_database(path, uri)
    elif uri.startswith(("http://", "https://")):
        _probe_server(strip_credentials(uri))


def _probe_database(path: Path, uri: str) -> None:
    if not path.is_file():
        raise RegistryUnset(
            f"registry {uri} does not exist", hint="set MLFLOW_TRACKING_URI to where the model was registered"
        )
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise RegistryUnreachable(
            f"{path} cannot be read as a database: {error}",
            hint="restore it, or set MLFLOW_TRACKING_URI to another registry",
        ) from error


def _probe_server(base: str) -> None:
    """Ask for `/health`. Any HTTP answer will do, also a refusal: MLflow brings the credentials, not this probe."""
    first: Exception | None = None
    for pause_s in (0.0, PROBE_PAUSE_S):
        time.sleep(pause_s)
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=PROBE_TIMEOUT_S):  # noqa: S310  http(s) only: see probe_uri
                return
        except urllib.error.HTTPError as error:
            error.close()
            return
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                return  # certificates are configured for MLflow, so MLflow judges them
            first = first or error
        except (OSError, http.client.HTTPException) as error:
            first = first or error
    raise RegistryUnreachable(
        f"registry {base} does not answer: {_one_line(getattr(first, 'reason', first))}",
        hint="is the server running, and MLFLOW_TRACKING_URI right?",
    ) from first


# --- Errors ---------------------------------------------------------------------------------------------------


def translate(error: Any, shown: str, what: str) -> ValidatorError:
    """Return our error for an MlflowException."""
    text = _one_line(error)
    if "No space left on device" in str(error):
        return CouldNotRun(f"the disk is full: no space left while {what}", hint="free some, or set TMPDIR")
    if error.error_code in MISSING | _UNUSABLE:
        return UriError(f"{text} (while {what})", hint=f"registry {shown}")
    if error.error_code in _DENIED and GUARD_SAYS in str(error):
        # Whole: what the guard says ends with what to do.
        return GuardRefused(str(error).partition(GUARD_SAYS)[2].strip(), hint=f"while {what}; registry {shown}")
    if error.error_code in _DENIED:
        return RegistryUnreachable(
            f"registry {shown} denies access while {what}: {text}",
            hint="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
        )
    return unreachable(shown, what, error)


def store_errors() -> tuple[type[Exception], ...]:
    """Return what MLflow's stores let through. SQLAlchemy takes long to import; not imported, it raises nothing."""
    always = (sqlite3.Error, http.client.HTTPException)
    loaded = sys.modules.get("sqlalchemy.exc")
    return always if loaded is None else (*always, loaded.SQLAlchemyError)


def unreachable(shown: str, what: str, error: Exception) -> RegistryUnreachable:
    """Return the error for a registry that fails to answer."""
    return RegistryUnreachable(
        f"registry {shown} failed while {what}: {_one_line(error)}",
        hint="every step is safe to repeat once the registry is back",
    )


def _one_line(error: object) -> str:
    """Return the telling line of an error's text, without credentials.

    That is the first one; but MLflow's list of failed downloads has a heading, then a file, then what happened to it.
    """
    text = re.sub(r"//[^/@\s]+@", "//", str(error)).strip()
    lines = [line.strip("# \t") for line in text.splitlines() if line.strip("# \t")] or [type(error).__name__]
    is_list = lines[0].startswith("The following failures occurred") and len(lines) > 2
    line = f"{lines[1]}: {lines[2]}" if is_list else lines[0]
    return line if len(line) <= _MESSAGE_LIMIT else line[: _MESSAGE_LIMIT - 3] + "..."


def _file_of(error: OSError) -> str | None:
    return None if error.filename is None else str(error.filename)
