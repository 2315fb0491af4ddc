"""The commands, called as the boundary calls them: errors come out as exceptions."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from validator.cli.golden import golden
from validator.errors import DigestChanged, ExitCode, GoldenError, UsageError, ValidatorError


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


@pytest.mark.parametrize(
    "arguments",
    [["create", "models:/a/1", "out"], ["show", "models:/a/1"], ["verify", "models:/a/1"], ["push", "SET", "a"]],
    ids=lambda words: words[0],
)
def test_every_command_that_asks_a_registry_takes_its_address(arguments, npz, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    call("create", npz, tmp_path / "SET")
    nowhere = f"sqlite:///{tmp_path / 'nowhere.db'}"
    with pytest.raises(ValidatorError, match=r"nowhere\.db"):
        call(*(tmp_path / w if w in ("SET", "out") else w for w in arguments), "--tracking-uri", nowhere)


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


# --- Strata ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def labelled(tmp_path):
    values = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    np.savez(tmp_path / "l.npz", x=values, labels=np.arange(40) % 3)
    return tmp_path / "l.npz"


def test_show_says_what_a_set_can_prove_and_what_it_lacks(labelled, tmp_path):
    created = call("create", labelled, tmp_path / "set", "--strata", "scales,specials", "--limit", 32)
    assert created.stderr == ""  # what is constant on purpose is no weakness
    shown = call("show", tmp_path / "set").stdout
    assert "  strata      32 representative, 21 scales, 2 specials\n" in shown
    assert "  power       32 samples count for flips: none in them certifies a rate below 0.089 at 95 %" in shown
    assert "  missing     shapes: only shapes that the samples have are tried\n" in shown
    assert "  labels      3 different\n" in shown
    assert "x [4]: 55 samples, fills batches of 1, 2, 7, 32\n" in shown
    document = json.loads(call("show", tmp_path / "set", "--json").stdout)
    assert document["strata"]["scales"] == 21
    assert document["flip_rate_bound"] == pytest.approx(1 - 0.05 ** (1 / 32))
    assert set(document["missing"]) == {"activation-extremes", "low-margin", "shapes"}
    assert document["groups"][0]["batch_sizes"] == [1, 2, 7, 32]


def test_a_dataset_without_strata_is_representative_as_a_whole(npz, tmp_path):
    call("create", npz, tmp_path / "set")
    shown = call("show", tmp_path / "set").stdout
    assert "  strata      9 representative\n" in shown
    assert shown.count("  missing ") == 5
    assert "9 samples, fills batches of 1, 2, 7\n" in shown


def test_not_finite_samples_that_were_asked_for_are_no_weakness(labelled, tmp_path):
    created = call("create", labelled, tmp_path / "set", "--strata", "specials", "--non-finite")
    assert created.stderr == ""
    assert "x, float32, 2 of" in call("show", tmp_path / "set").stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--strata", "favourites"], "there is no stratum 'favourites'"),
        (["--strata", "low-margin"], "the stratum low-margin has to ask the model, and none is named"),
        (["--model", "models:/a/1"], "--model has no meaning without --strata"),
        (["--largest-shape", "9"], "--largest-shape has no meaning without --strata"),
        (["--non-finite"], "--non-finite has no meaning without --strata"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_strata_that_cannot_be_had_are_a_mistake_of_usage(labelled, tmp_path, options, words):
    with pytest.raises(UsageError, match=words) as caught:
        call("create", labelled, tmp_path / "set", *options)
    assert caught.value.exit_code is ExitCode.USAGE
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("options", [[], ["--strata", "scales"]], ids=["plain", "strata"])
@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": np.zeros(5, np.int64)}, "5 labels for 9 samples"),
        ({"labels": np.zeros(9, np.float32)}, "labels is float32"),
        ({"labels": np.zeros((9, 2), np.int64)}, "not one integer per sample"),
        ({"__labels__": np.zeros(5, np.int64)}, "what labels are called inside a golden dataset"),
    ],
    ids=["short", "no integers", "two each", "inner name"],
)
def test_labels_that_cannot_be_labels_are_refused(tmp_path, arrays, words, options):
    np.savez(tmp_path / "d.npz", x=np.ones((9, 4), np.float32), **arrays)
    with pytest.raises(GoldenError, match=words) as caught:
        call("create", tmp_path / "d.npz", tmp_path / "set", *options)
    assert caught.value.exit_code is ExitCode.USAGE
