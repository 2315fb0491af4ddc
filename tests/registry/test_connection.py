"""Which registry is opened, and how long it takes to say that it is not there."""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.registry.conftest import MlflowWorld, start_server
from tests.registry.test_contract import FILES, make_annotation
from validator.errors import AnnotationFailed, ExitCode, RegistryUnreachable, RegistryUnset
from validator.registry.connection import prepare_environment, strip_credentials
from validator.registry.mlflow_registry import open_registry
from validator.subject import parse_model_uri

LIMIT_S = 20
URI = "models:/alexnet/1"


def resolve(registry, uri=URI):
    return registry.resolve(parse_model_uri(uri), uri)


def test_without_any_registry_nothing_is_guessed(tmp_path):
    with pytest.raises(RegistryUnset, match=r"no registry is set, and \./mlflow\.db does not exist") as caught:
        open_registry(cwd=tmp_path)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "MLFLOW_TRACKING_URI" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_the_current_directory_is_used(embedded):
    embedded.register("alexnet", FILES)
    registry = open_registry(cwd=embedded.folder)
    assert registry.uri == f"sqlite:///{embedded.folder}/mlflow.db"
    assert resolve(registry).version == 1


def test_what_a_database_raises_is_said_of_the_registry(embedded):
    """SQLAlchemy is not imported for this: it is there already where it can raise anything."""
    from sqlalchemy.exc import OperationalError

    with (
        pytest.raises(RegistryUnreachable, match="while reading") as caught,
        embedded.registry._connection.doing("reading"),
    ):
        raise OperationalError("SELECT 1", {}, Exception("disk I/O error"))
    assert caught.value.exit_code == ExitCode.INCONCLUSIVE


def test_the_variables_of_mlflow_are_honoured(embedded, tmp_path, monkeypatch):
    embedded.register("alexnet", FILES)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", embedded.uri)
    assert resolve(open_registry(cwd=tmp_path)).version == 1
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", "http://registry.example:5000")
    assert open_registry(cwd=tmp_path).uri == "http://registry.example:5000"
    assert open_registry("http://a", "http://b", cwd=tmp_path).uri == "http://b"


def test_a_database_that_does_not_exist_is_not_created(tmp_path):
    registry = open_registry(f"sqlite:///{tmp_path}/typo.db", cwd=tmp_path)
    with pytest.raises(RegistryUnset, match="does not exist"):
        resolve(registry)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"not a database" * 100, b"SQLite format 3\x00" + b"\xff" * 2000], ids=["text", "torn"]
)
def test_a_file_that_is_no_database_is_unreachable_at_once(tmp_path, content):
    (tmp_path / "mlflow.db").write_bytes(content)
    begin = time.monotonic()
    with pytest.raises(RegistryUnreachable, match="cannot be read as a database") as caught:
        resolve(open_registry(cwd=tmp_path))
    assert caught.value.exit_code == ExitCode.INCONCLUSIVE
    assert time.monotonic() - begin < LIMIT_S


def test_a_database_of_something_else_is_an_error_of_ours(tmp_path):
    import sqlite3

    connection = sqlite3.connect(tmp_path / "mlflow.db")
    connection.execute("CREATE TABLE registered_models (unrelated TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(RegistryUnreachable):
        resolve(open_registry(cwd=tmp_path))


def test_an_unknown_scheme_is_a_usage_error(tmp_path):
    with pytest.raises(RegistryUnset, match="no store for gopher://nowhere") as caught:
        resolve(open_registry("gopher://nowhere", cwd=tmp_path))
    assert "sqlite" in caught.value.hint


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_file_store_is_a_usage_error(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    with pytest.raises(RegistryUnset) as caught:
        resolve(open_registry((tmp_path / "mlruns").as_uri(), cwd=tmp_path))
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        pytest.param("http://user:secret@host:5000/base/", "http://host:5000/base", id="http"),
        pytest.param("https://host?token=secret", "https://host", id="query"),
        pytest.param("postgresql://user:p%40ss@db/mlflow", "postgresql://db/mlflow", id="database"),
        pytest.param("sqlite:////tmp/mlflow.db", "sqlite:////tmp/mlflow.db", id="sqlite"),
        pytest.param("databricks", "databricks", id="word"),
    ],
)
def test_credentials_are_never_shown(uri, shown):
    assert strip_credentials(uri) == shown


def test_credentials_are_not_in_the_error_either(tmp_path):
    with pytest.raises(RegistryUnreachable) as caught:
        resolve(open_registry(f"http://user:secret@127.0.0.1:{closed_port()}", cwd=tmp_path))
    assert "secret" not in str(caught.value)
    assert "secret" not in str(caught.value.hint)


# --- Servers that fail ----------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


def serve(status: int, body: bytes) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.do_GET()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield http.server_port
        http.shutdown()
        thread.join()


@pytest.fixture(params=[(500, b"{}"), (503, b"busy"), (404, b"<h1>nginx"), (200, b"<html>"), (401, b"who?")], ids=str)
def odd_port(request) -> Iterator[int]:
    yield from serve(*request.param)


def test_a_server_that_is_down_is_told_in_time(tmp_path):
    begin = time.monotonic()
    with pytest.raises(RegistryUnreachable, match="does not answer") as caught:
        resolve(open_registry(f"http://127.0.0.1:{closed_port()}", cwd=tmp_path))
    assert caught.value.exit_code == ExitCode.INCONCLUSIVE
    assert time.monotonic() - begin < LIMIT_S


def test_a_server_that_hangs_is_told_in_time(tmp_path, silent_port):
    begin = time.monotonic()
    with pytest.raises(RegistryUnreachable, match="does not answer"):
        resolve(open_registry(f"http://127.0.0.1:{silent_port}", cwd=tmp_path))
    assert time.monotonic() - begin < LIMIT_S


def test_an_odd_answer_is_the_registrys_fault_not_the_users(tmp_path, odd_port, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    begin = time.monotonic()
    with pytest.raises(RegistryUnreachable):
        resolve(open_registry(f"http://127.0.0.1:{odd_port}", cwd=tmp_path))
    assert time.monotonic() - begin < LIMIT_S


def test_a_server_killed_between_resolve_and_stage_could_not_be_checked(tmp_path):
    server = start_server(tmp_path / "server")
    try:
        store = MlflowWorld(uri=server.uri, folder=tmp_path / "client")
        store.register("alexnet", FILES)
        subject = resolve(store.registry)
    finally:
        server.kill()
    begin = time.monotonic()
    with pytest.raises(RegistryUnreachable):
        store.registry.stage(subject, tmp_path / "stage")
    assert not (tmp_path / "stage").exists()
    with pytest.raises(AnnotationFailed, match="does not answer"):
        store.registry.annotate(make_annotation(subject, tmp_path))
    assert time.monotonic() - begin < LIMIT_S


# --- The process ----------------------------------------------------------------------------------------------


def test_security_switches_are_set_and_the_users_timeouts_kept(monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_MODEL_CODE_EXECUTION", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "7")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    prepare_environment()
    assert os.environ["MLFLOW_ALLOW_MODEL_CODE_EXECUTION"] == "false"
    assert os.environ["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "7"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "3"


def test_the_modules_import_without_mlflow():
    code = "import sys, validator.registry.mlflow_registry; sys.exit('mlflow' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_nothing_of_mlflow_reaches_the_terminal(tmp_path):
    """A new database makes Alembic log one line per migration; a new model makes MLflow print."""
    (tmp_path / "mlflow.db").touch()
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "manifest.json").write_text("{}")
    code = (
        "from pathlib import Path; from validator.registry.mlflow_registry import open_registry\n"
        "registry = open_registry(cwd=Path.cwd())\n"
        "registry.publish('golden', Path('golden'), model_type='golden', alias='current', tags={})\n"
        "registry.fetch('models:/golden@current', Path('fetched'))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "fetched" / "manifest.json").read_text() == "{}"
    assert not (tmp_path / "mlruns").exists()


def test_our_own_loggers_are_left_alone(embedded):
    assert logging.getLogger("validator").getEffectiveLevel() < logging.CRITICAL
