"""A real `mlflow server` with the guard in front of its registry."""

import json
import os
import tomllib
import urllib.error
import urllib.request
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.attest.world import GATE
from tests.servers import Server, free_port
from validator.attest.keys import public_key_of

ROOT = Path(__file__).parents[2]
User = tuple[str, str]
ADMIN: User = ("admin", "password-of-admin")


@dataclass
class GuardedServer(Server):
    """A server whose registry is guarded, and what any HTTP client does to it."""

    workspace: str | None = None
    """Whose client it is; None: it names none."""

    def post(self, path: str, body: Any, user: User | None = None, method: str = "POST") -> tuple[int, Any]:
        """What any HTTP client, the web page among them, sends and gets. The path may begin with another version."""
        version, _, rest = path.partition("/") if path.startswith("3.0/") else ("2.0", "", path)
        return self.send(f"api/{version}/mlflow/{rest}", json.dumps(body).encode(), user, method)

    def put_file(self, path: str, data: bytes, user: User | None = None) -> tuple[int, Any]:
        """Write an artifact through the server, as its own clients do."""
        return self.send(f"api/2.0/mlflow-artifacts/artifacts/{path}", data, user, "PUT")

    def send(self, path: str, data: bytes, user: User | None, method: str) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        if self.workspace is not None:
            headers["X-MLFLOW-WORKSPACE"] = self.workspace
        if user is not None:
            headers["Authorization"] = "Basic " + b64encode(":".join(user).encode()).decode()
        request = urllib.request.Request(f"{self.uri}/{path}", data, headers, method=method)  # noqa: S310  http
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310  http
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            with suppress(ValueError):
                return error.code, json.loads(text)
            return error.code, text


def write_plugin(folder: Path) -> Path:
    """Write the entry points of pyproject.toml the way an installation would; return what goes on the path."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = folder / "plugin" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return info.parent


def write_config(folder: Path, uri: str, **changes: Any) -> Path:
    (folder / "gate.key.pub").write_bytes(public_key_of(GATE).pem)
    known = {"keys": ["gate.key.pub"], "registry_uris": [uri]} | changes
    path = folder / "guard.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in known.items()))
    return path


def launch(
    folder: Path, database: str, *, port: int, config: Path | None, options: tuple[str, ...] = ()
) -> GuardedServer:
    """Start a guarded server. It is not ready yet."""
    environment = {
        # Ours set MLflow's log level and its switches in this process: a server's are its own.
        **{key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "VALIDATOR_"))},
        "PYTHONPATH": os.pathsep.join([str(write_plugin(folder)), str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    if config is not None:
        environment["VALIDATOR_GUARD_CONFIG"] = str(config)
    if "basic-auth" in options:
        (folder / "auth.ini").write_text(
            "[mlflow]\ndefault_permission = READ\n"
            f"database_uri = sqlite:///{folder}/auth.db\n"
            # Else every request hashes the password anew, which takes longer than the rest of it.
            "auth_cache_ttl_seconds = 3600\n"
            f"admin_username = {ADMIN[0]}\nadmin_password = {ADMIN[1]}\n"
        )
        environment |= {"MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"), "MLFLOW_FLASK_SERVER_SECRET_KEY": "secret"}
    stores = ["--backend-store-uri", database, "--registry-store-uri", f"validator-guard+{database}"]
    return GuardedServer.launch(folder, port, *stores, *options, environment=environment)


def start_guarded(folder: Path, database: str, *options: str, **changes: Any) -> GuardedServer:
    """Start a guarded server and wait until it answers."""
    port = free_port()
    config = write_config(folder, f"http://127.0.0.1:{port}", **changes)
    return launch(folder, database, port=port, config=config, options=options).wait_until_ready()
