"""The commands, called as the boundary calls them: errors come out as exceptions."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from validator.cli.golden import golden
from validator.errors import DigestChanged, GoldenError


@pytest.fixture
def npz(tmp_path):
    values = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    np.savez(tmp_path / "d.npz", x=values)
    return tmp_path / "d.npz"


def call(*arguments):
    return CliRunner().invoke(golden, [str(a) for a in arguments], catch_exceptions=False)


def test_create_show_verify(npz, tmp_path):
    created = call("create", npz, tmp_path / "set", "--name", "nine")
    assert created.stdout.startswith("nine: 9 samples in ")
    assert created.stderr == ""
    assert call("verify", tmp_path / "set").stdout.startswith("nine: 9 samples as they were made, sha256:")
    shown = call("show", tmp_path / "set").stdout
    assert "x, float32, 0 of 36 elements not finite" in shown
    assert "x [4]: 9 samples" in shown


def test_show_json_is_one_document(npz, tmp_path):
    call("create", npz, tmp_path / "set")
    document = json.loads(call("show", tmp_path / "set", "--json").stdout)
    assert (document["name"], document["samples"], document["warnings"]) == ("d", 9, [])


def test_limit_takes_the_first_samples_and_says_so(npz, tmp_path):
    created = call("create", npz, tmp_path / "set", "--limit", 3)
    assert "3 samples" in created.stdout
    assert created.stderr.startswith("warning[golden]: 3 of at least 8 samples")
    assert json.loads((tmp_path / "set" / "manifest.json").read_text())["source"] == "file d.npz, first 3"


def test_replace_is_needed_to_write_over_a_dataset(npz, tmp_path):
    call("create", npz, tmp_path / "set")
    with pytest.raises(GoldenError, match="exists"):
        call("create", npz, tmp_path / "set")
    assert call("create", npz, tmp_path / "set", "--replace").exit_code == 0


def test_verify_refuses_other_bytes(npz, tmp_path):
    call("create", npz, tmp_path / "set")
    shard = next((tmp_path / "set").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
    for command in ("verify", "show"):
        with pytest.raises(DigestChanged):
            call(command, tmp_path / "set")


@pytest.mark.parametrize("arguments", [["--help"], ["create", "--help"], ["show", "--help"], ["verify", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys; from validator.cli.golden import golden\n"
        f"golden({arguments!r}, standalone_mode=False)\n"
        "sys.exit(bool({'torch', 'numpy', 'mlflow', 'safetensors'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
