"""Where a verification finds what it needs, and what the two commands say and return."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.attest.world import GATE, World, digest, hours, refused
from validator.attest.envelope import seal_statement
from validator.attest.keys import KeyType, create_key_files, load_public_key, load_signer, public_key_of
from validator.attest.statement import OnnxBinding, make_statement, write_time
from validator.boundary import run
from validator.cli.key import TYPES, key
from validator.cli.verify import verify
from validator.errors import UsageError
from validator.manifest import measure_folder
from validator.registry.interface import Annotation
from validator.registry.stage import REGISTERED_META
from validator.subject import OnnxOrigin


def now_plus(number: int) -> str:
    from datetime import UTC, datetime

    return write_time(datetime.now(UTC) + hours(number))


@pytest.fixture
def public(world: World) -> Path:
    """The gate's public key as a file; the clearance is good now, as the command has a clock of its own."""
    path = world.folder / "gate.pub"
    path.write_bytes(public_key_of(GATE).pem)
    world.bind(created=now_plus(-1), expires=now_plus(24))
    return path


def invoke(*arguments: object) -> int:
    return int(run(lambda: verify, [str(argument) for argument in arguments], debug=False))


# --- Bytes --------------------------------------------------------------------------------------------------------


def test_a_folder_is_hashed_as_a_version_is_staged(world: World) -> None:
    """MLflow's own note is left out, and whatever only bears its name is not."""
    note = world.source / REGISTERED_META
    note.write_text("model_name: net\nmodel_version: 1\n")
    assert world.verify(str(world.source)).holds
    note.write_text("model_name: net\nmodel_version: 1\nloader: evil\n")
    assert "bytes" in refused(world.verify(str(world.source)))


def test_a_folder_has_no_name_so_only_its_bytes_are_verified(world: World) -> None:
    names = [claim.name for claim in world.verify(str(world.source)).claims]
    assert not {"registry", "version", "made", "alias"} & set(names)


@pytest.mark.parametrize("options", [{"alias": "champion"}, {"from_run": True}], ids=["alias", "run"])
def test_a_folder_has_no_alias_and_no_run(world: World, options: dict) -> None:
    with pytest.raises(UsageError, match="a folder has no alias and no run"):
        world.verify(str(world.source), **options)


def test_what_is_neither_folder_nor_uri_is_an_error(world: World) -> None:
    with pytest.raises(UsageError, match="neither a model URI nor a folder"):
        world.verify(str(world.folder / "gone"))


# --- The ONNX file ------------------------------------------------------------------------------------------------


def bind_onnx(world: World, origin: OnnxOrigin, folder: Path, source: str = "exported") -> None:
    world.bind(onnx=OnnxBinding(digest=measure_folder(folder).digest, origin=origin.value, source=source))


def test_an_exported_onnx_file_lies_beside_the_clearance(world: World) -> None:
    folder = world.write("report/onnx", {"model.onnx": b"graph", "model.onnx.data": b"weights"})
    bind_onnx(world, OnnxOrigin.EXPORT, folder)
    assert world.verify().holds
    (folder / "model.onnx.data").write_bytes(b"WEIGHTS")
    assert refused(world.verify()) == ["onnx"]
    (folder / "model.onnx.data").unlink()
    (folder / "model.onnx").unlink()
    folder.rmdir()
    assert refused(world.verify()) == ["onnx"]


def test_an_exported_onnx_file_is_an_artifact_of_the_run(world: World) -> None:
    folder = world.write("onnx", {"model.onnx": b"graph"})
    bind_onnx(world, OnnxOrigin.EXPORT, folder)
    assert refused(world.verify(from_run=True)) == ["onnx"]
    annotation = world.registry.annotations["0123456789abcdef"]
    artifacts = {**annotation.artifacts, "onnx/model.onnx": folder / "model.onnx"}
    world.registry.annotate(
        Annotation(
            subject=annotation.subject,
            check_id=annotation.check_id,
            verdict="pass",
            run_name="net v1 pass",
            description_block="",
            artifacts=artifacts,
        )
    )
    assert world.verify(from_run=True).holds


def test_a_tagged_onnx_file_comes_from_where_the_tag_pointed_when_it_was_cleared(world: World) -> None:
    folder = world.write("graph", {"model.onnx": b"graph"})
    world.registry.add_version("net-onnx", folder)
    bind_onnx(world, OnnxOrigin.TAG, folder, "models:/net-onnx/1")
    world.registry.version("net", 1).tags["validator.onnx"] = "models:/elsewhere/1"
    assert world.verify().holds
    world.registry.delete_model("net-onnx")
    assert refused(world.verify()) == ["onnx"]
    assert refused(world.verify(str(world.source))) == ["onnx"]


def test_the_onnx_file_that_is_named_counts_whatever_the_model_holds(world: World) -> None:
    assert world.verify(onnx=str(world.source / "extra")).holds


# --- The command --------------------------------------------------------------------------------------------------


def test_each_claim_is_a_line_and_the_last_line_decides(
    world: World, public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(world.source, "--key", public, "--clearance", world.path) == 0
    *claims, last = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in claims] == [
        ["holds", name]
        for name in (
            "envelope",
            "signature",
            "verdict",
            "checks",
            "statement",
            "created",
            "expires",
            "bytes",
            "weights",
            "onnx",
        )
    ]
    assert last.startswith(f"verified: what lies in {world.source} is net version 1 as it was cleared, until ")
    (world.source / "MLmodel").write_bytes(b"x")
    assert invoke(world.source, "--key", public, "--clearance", world.path) == 4
    *_, last = capsys.readouterr().out.splitlines()
    assert last == f"refused: {world.source} is not cleared: bytes"


def test_a_wrong_key_exits_4_and_tells_nothing_of_what_is_inside(
    world: World, public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_key_files(world.folder / "other", KeyType.P256, {})
    assert invoke(world.source, "--key", world.folder / "other.pub", "--clearance", world.path) == 4
    out = capsys.readouterr().out
    assert "refused  signature" in out
    assert "net" not in out.replace(str(world.folder), "")
    assert invoke(world.source, "--key", world.folder / "other.pub", "--key", public, "--clearance", world.path) == 0


def test_a_uri_is_looked_up_in_the_registry(
    world: World, public: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("validator.registry.mlflow_registry.open_registry", lambda *_args, **_options: world.registry)
    world.registry.set_alias("net", "champion", 1)
    words = ("--from-run", "--key", public, "--alias", "champion")
    assert invoke("models:/net@champion", *words) == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("verified: models:/net@champion is net version 1 as it was cleared, until ")
    )
    world.copy_as("net")
    world.registry.set_alias("net", "champion", 2)
    assert invoke("models:/net/1", *words) == 4
    assert invoke("models:/net/7", *words) == 2
    world.registry.is_down = True
    assert invoke("models:/net/1", *words) == 3


def test_json_is_one_document(world: World, public: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(world.source, "--key", public, "--clearance", world.path, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verified"] is True
    assert document["statement"]["predicate"]["model"]["name"] == "net"
    assert all(claim["holds"] for claim in document["claims"])
    world.path.write_bytes(b"{}")
    assert invoke(world.source, "--key", public, "--clearance", world.path, "--json") == 4
    document = json.loads(capsys.readouterr().out)
    assert (document["verified"], document["statement"]) == (False, None)


@pytest.mark.parametrize("option", ["--policy-digest", "--golden-digest"])
def test_digests_can_be_pinned(world: World, public: Path, option: str) -> None:
    words = (world.source, "--key", public, "--clearance", world.path, option)
    known = digest("e") if option == "--policy-digest" else digest("d")
    assert invoke(*words, known) == 0
    assert invoke(*words, digest("0"), option, known) == 0
    assert invoke(*words, digest("0")) == 4
    assert invoke(*words, known[:15]) == 2


def test_options_that_make_no_sense_exit_2(world: World, public: Path) -> None:
    assert invoke(world.source, "--key", public) == 2
    assert invoke(world.source, "--key", public, "--clearance", world.path, "--from-run") == 2
    assert invoke(world.source, "--clearance", world.path) == 2
    assert invoke(world.source, "--key", world.folder / "gone.pub", "--clearance", world.path) == 2
    assert invoke(world.folder / "gone", "--key", public, "--clearance", world.path) == 2
    assert invoke(world.source, "--key", public, "--clearance", world.path, "--alias", "champion") == 2


def test_a_clearance_that_cannot_be_read_exits_4(
    world: World, public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(world.source, "--key", public, "--clearance", world.folder / "gone.json") == 4
    assert capsys.readouterr().err.startswith("refused[clearance]: ")


def test_names_are_made_safe_to_print(world: World, public: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = world.predicate().model.model_copy(update={"name": "net\x1b[31m\n::error::owned"})
    statement = make_statement(world.predicate(model=model, created=now_plus(-1), expires=now_plus(1)))
    world.put(seal_statement(statement, GATE))
    invoke(world.source, "--key", public, "--clearance", world.path)
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert not [line for line in out.splitlines() if line.lstrip().startswith("::")]
    assert len(out.splitlines()) == 11


def test_verifying_a_folder_imports_no_library_that_opens_models(world: World, public: Path) -> None:
    """Nor MLflow: it runs where nothing is but this program and the bytes."""
    words = ["verify", str(world.source), "--key", str(public), "--clearance", str(world.path)]
    script = (
        "import sys; from validator.boundary import _load_app, run; "
        f"code = run(_load_app, {words!r}, debug=False); "
        "heavy = {'torch', 'onnx', 'onnxruntime', 'numpy', 'mlflow', 'scipy', 'safetensors'}; "
        "print(int(code), sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "0 []\n"


# --- validator key ------------------------------------------------------------------------------------------------


def test_key_create_prints_the_id_of_the_key_that_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VALIDATOR_KEY_PASSPHRASE", raising=False)
    for kind in TYPES:
        path = tmp_path / f"{kind}.key"
        done = CliRunner().invoke(key, ["create", str(path), "--type", kind])
        assert done.stdout == load_public_key(tmp_path / f"{kind}.key.pub").key_id + "\n"
        assert public_key_of(load_signer(path, {})).key_id == done.stdout.strip()
        assert done.stderr.startswith(f"{path} signs: ")
        assert f"{path}.pub is for whoever verifies" in done.stderr


def test_key_create_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "gate.key").write_bytes(b"mine")
    assert run(lambda: key, ["create", str(tmp_path / "gate.key")], debug=False) == 2
    assert (tmp_path / "gate.key").read_bytes() == b"mine"


def test_the_command_offers_every_type() -> None:
    assert tuple(KeyType) == TYPES
