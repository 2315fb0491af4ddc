"""A PostgreSQL server of the tests' own, on a socket in a private folder. It refuses to run as root."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

import pytest

REQUIRED = "VALIDATOR_REQUIRE_SERVERS"
"""Set where a skip must be a failure: in CI."""


def find_binaries() -> Path | None:
    """Return the folder with the newest `initdb`, on PATH or where Debian puts it."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def skip(reason: str) -> NoReturn:
    """Skip a test for want of something that this machine may lack."""
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} is set")
    pytest.skip(reason)


@contextmanager
def run_postgres() -> Iterator[str]:
    """Run a server; yield the URI of its maintenance database."""
    binaries = find_binaries()
    if binaries is None:
        skip("PostgreSQL is not installed: apt-get install postgresql")
    if find_spec("psycopg2") is None:
        skip("psycopg2 is not installed: pip install 'mlflow-export-validator[postgres]'")
    # Short: the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    drop: dict[str, object] = {}
    if os.geteuid() == 0:
        user = pwd.getpwnam("postgres" if any(p.pw_name == "postgres" for p in pwd.getpwall()) else "nobody")
        os.chown(folder, user.pw_uid, user.pw_gid)
        drop = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    data = folder / "data"
    options = ["--auth=trust", "--username=guard", "--encoding=UTF8", "--no-locale", "--no-sync", f"--pgdata={data}"]
    # In C, whatever the person who runs this speaks; in the folder, because the current one may be closed to the user.
    common = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C"}, **drop}
    subprocess.run([binaries / "initdb", *options], check=True, capture_output=True, **common)
    quick = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "listen_addresses=", "-c", "max_connections=100"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-k", folder, *quick], stdout=log, stderr=log, **common
        )
    try:
        wait_until_ready(binaries, folder, process)
        yield f"postgresql://guard@/postgres?host={quote(str(folder), safe='')}"
    finally:
        process.terminate()  # waits for sessions to end
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.send_signal(2)  # does not wait for them
            process.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_ready(binaries: Path, folder: Path, process: subprocess.Popen) -> None:
    for _ in range(600):
        ready = subprocess.run([binaries / "pg_isready", "-q", "-h", folder, "-t", "1"], check=False)
        if ready.returncode == 0:
            return
        if process.poll() is not None:
            break
    raise RuntimeError((folder / "log").read_text(errors="replace"))


def create_database(uri: str, name: str, template: str = "template0") -> str:
    """Make a database, a copy of another one; return its URI, with the driver: SQLAlchemy's own choice changes."""
    import psycopg2

    connection = psycopg2.connect(uri)
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    finally:
        connection.close()
    return uri.replace("/postgres?", f"/{name}?").replace("postgresql:", "postgresql+psycopg2:")
