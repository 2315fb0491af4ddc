"""A server that can be killed and started again in no time: MLflow's own application, imported once, forked each time.

Reads commands from standard input, one a line: `start` answers `started` when the server listens, `kill` ends it by
SIGKILL and answers `killed`. Run as `python zygote.py FOLDER PORT`.
"""

import os
import signal
import socket
import sys
from pathlib import Path

FOLDER, PORT = Path(sys.argv[1]), int(sys.argv[2])
os.environ |= {
    "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{FOLDER}/mlflow.db",
    "_MLFLOW_SERVER_REGISTRY_STORE": f"sqlite:///{FOLDER}/mlflow.db",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(FOLDER / "store"),
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",
}


def serve(listener: socket.socket) -> None:
    import werkzeug.serving
    from mlflow.server import app

    werkzeug.serving.WSGIRequestHandler.log_request = lambda *_: None
    werkzeug.serving.make_server("127.0.0.1", PORT, app, threaded=True, fd=listener.fileno()).serve_forever()


def main() -> None:
    import mlflow.server
    import mlflow.store.model_registry.sqlalchemy_store
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401 - likewise
    import werkzeug.serving  # noqa: F401 - likewise

    child = 0
    for line in sys.stdin:
        if line.strip() == "start":
            listener = socket.create_server(("127.0.0.1", PORT))
            child = os.fork()
            if child == 0:
                serve(listener)
            listener.close()
            answer = "started"
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child, answer = 0, "killed"
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    if child:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
