"""The installed console script against real MLflow: one test for each exit code, and what it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.check.conftest import Net, make_golden, save_onnx
from tests.conftest import has_gpu

SCRIPT = Path(sys.executable).with_name("validator")

REGISTER = """
import logging, sys, warnings
import mlflow, torch
warnings.filterwarnings("ignore"); logging.disable(logging.WARNING)
from tests.check.conftest import Net
example = torch.randn(2, 3, 12, 12).numpy()
model = Net().eval()
mlflow.set_experiment("net")
for files, serialization in ((None, "pt2"), ([sys.argv[1]], "pt2"), (None, "pickle")):
    mlflow.pytorch.log_model(model, name="model", registered_model_name="net", input_example=example,
                             extra_files=files, pip_requirements=["torch"], serialization_format=serialization)
"""
"""Version 1 is healthy, version 2 has a stale ONNX file, version 3 is a pickle."""

POLICY = 'required = ["eager-cpu", "onnxruntime-cpu"]\nbatch_size = 4\n[checks]\nfresh_process = false\n'

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an embedded registry, a golden dataset and a policy."""
    folder = tmp_path_factory.mktemp("world")
    stale = Net().eval()
    with torch.no_grad():
        stale.head.weight[7] *= 1.01
    save_onnx(stale, (torch.randn(2, 3, 12, 12),), folder / "stale" / "model.onnx")
    subprocess.run(
        [sys.executable, "-c", REGISTER, str(folder / "stale" / "model.onnx")],
        cwd=folder, env=environment(folder) | {"PYTHONPATH": str(Path(__file__).parents[2])}, check=True, timeout=300,
    )  # fmt: skip
    make_golden(folder / "golden", torch.randn(12, 3, 12, 12, generator=torch.Generator().manual_seed(5)).numpy())
    (folder / "policy.toml").write_text(POLICY)
    return folder


NO_CACHE = {"VALIDATOR_NO_CACHE": "1"}
"""What one test computes is none of another's business."""


def environment(folder: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "VALIDATOR_"))}
    return (
        kept
        | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}", "MLFLOW_DISABLE_TELEMETRY": "true"}
        | NO_CACHE
    )


@pytest.fixture
def program(world: Path, tmp_path: Path) -> Program:
    """Run `validator ARGUMENTS...` in a folder of its own."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SCRIPT, *arguments], cwd=tmp_path, env=environment(world) | variables, check=False,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def asked(world: Path, uri: str, *more: str) -> list[str]:
    return ["check", uri, "--golden", str(world / "golden"), "--policy", str(world / "policy.toml"), *more]


def assert_one_clear_message(ended: subprocess.CompletedProcess[str]) -> None:
    assert "Traceback" not in ended.stderr + ended.stdout
    said = [line for line in ended.stderr.splitlines() if line and not line.startswith(("[", " "))]
    assert len(said) == 1, ended.stderr


def test_a_healthy_version_exits_0_and_mlflow_shows_it(program: Program, world: Path, tmp_path: Path) -> None:
    ended = program(*asked(world, "models:/net/1"))
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("pass: net version 1")
    assert json.loads((tmp_path / "validator-report" / "verdict.json").read_bytes())["verdict"] == "pass"
    read = (
        "import mlflow; v = mlflow.MlflowClient().get_model_version('net', '1');"
        "r = mlflow.MlflowClient().get_run(v.tags['validator.run_id']);"
        "print(v.tags['validator.verdict'], 'validator:begin' in v.description, r.info.status, len(r.data.metrics) > 3)"
    )
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", read], env=environment(world), check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == ["pass", "True", "FINISHED", "True"]


def test_a_stale_export_exits_1(program: Program, world: Path) -> None:
    ended = program(*asked(world, "models:/net/2"))
    assert ended.returncode == 1, ended.stderr + ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("fail: net version 2")
    assert "onnxruntime-cpu" in ended.stdout


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("models:/net/9", "net has no version 9"),
        ("models:/nett/1", "nett"),
        ("models:/net@champion", "champion"),
        ("models:/net", "names no version"),
        ("net", "is not a model URI"),
    ],
)
def test_what_does_not_exist_exits_2(program: Program, world: Path, tmp_path: Path, uri: str, words: str) -> None:
    ended = program(*asked(world, uri))
    assert ended.returncode == 2, ended.stderr
    assert words in ended.stderr
    assert_one_clear_message(ended)
    assert list(tmp_path.iterdir()) == []


def test_no_registry_exits_2(program: Program, world: Path) -> None:
    ended = program(*asked(world, "models:/net/1"), MLFLOW_TRACKING_URI="")
    assert ended.returncode == 2, ended.stderr
    assert_one_clear_message(ended)


def test_an_unknown_policy_key_exits_2(program: Program, world: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("toleranze = 3\n" + POLICY)
    ended = program("check", "models:/net/1", "--golden", str(world / "golden"), "--policy", "bad.toml")
    assert ended.returncode == 2, ended.stderr
    assert "unknown key toleranze" in ended.stderr
    assert_one_clear_message(ended)


def test_a_server_that_is_down_exits_3(program: Program, world: Path) -> None:
    ended = program(*asked(world, "models:/net/1"), MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert ended.returncode == 3, ended.stderr
    assert_one_clear_message(ended)


@pytest.mark.skipif(has_gpu(), reason="this machine has a GPU")
def test_a_required_backend_that_is_missing_exits_3(program: Program, world: Path) -> None:
    ended = program("check", "models:/net/1", "--golden", str(world / "golden"))
    assert ended.returncode == 3, ended.stderr + ended.stdout
    assert ended.stdout.splitlines()[-1].startswith("inconclusive: ")
    assert "eager-cuda" in ended.stdout


def test_a_pickle_exits_4(program: Program, world: Path) -> None:
    ended = program(*asked(world, "models:/net/3"))
    assert ended.returncode == 4, ended.stderr + ended.stdout
    assert "this policy allows none" in ended.stderr
    assert_one_clear_message(ended)


def test_ctrl_c_exits_130_and_leaves_no_worker(world: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    started = subprocess.Popen(
        [SCRIPT, *asked(world, "models:/net/1")], cwd=tmp_path, env=environment(world) | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not list(scratch.glob("validator-*/probe*")) and time.monotonic() < until:
        time.sleep(0.05)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert "Traceback" not in said
    assert list(scratch.iterdir()) == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(scratch).encode() in p.read_bytes()]
    assert not (tmp_path / "validator-report" / "verdict.json").exists()
