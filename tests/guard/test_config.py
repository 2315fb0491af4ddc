"""guard.toml: what can be said in it, and what stops the server."""

import re
import sys
from pathlib import Path
from subprocess import run

import pytest

from tests.attest.world import GATE
from tests.guard.world import protection
from validator import boundary
from validator.attest.keys import public_key_of
from validator.cli.guard import guard
from validator.errors import ExitCode, GuardConfigError, GuardRefused
from validator.guard.artifacts import DESTINATION_VARIABLE, resolve_location
from validator.guard.config import CONFIG_VARIABLE, GuardConfig, find_protection, read_protection
from validator.policy import BUILT_IN

PAGE = Path(__file__).parents[2] / "docs" / "guard.md"
GOOD = 'keys = ["gate.key.pub"]\nregistry_uris = ["https://mlflow.example.com"]\n'


def write(folder: Path, text: str) -> Path:
    (folder / "gate.key.pub").write_bytes(public_key_of(GATE).pem)
    (folder / "guard.toml").write_text(text)
    return folder / "guard.toml"


def test_keys_lie_beside_the_configuration(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    assert find_protection({CONFIG_VARIABLE: str(path)}).keys == (public_key_of(GATE),)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "keys: field required; registry_uris: field required"),
        ("keys = [", "is no TOML"),
        (GOOD.replace('"gate.key.pub"', ""), "keys: "),
        (GOOD.replace("gate.key.pub", "missing.pub"), "missing.pub cannot be read"),
        (GOOD.replace("gate.key.pub", "guard.toml"), "is no public key"),
        (GOOD + 'alias = ["champion"]', "unknown key alias"),
        (GOOD + 'require_expect = "no"', "require_expect: "),
        (GOOD + 'policy_digests = ["sha256:2a63a384"]', "policy_digests.0: "),
        (GOOD + "policy_digests = []", "policy_digests: "),
        (GOOD + "[republished]\n'*-prod' = 'net'", "one * in both"),
        (GOOD + "[republished]\n'*' = '*'", "the same models"),
        (GOOD + "verify_bytes = false", "republished needs verify_bytes"),
        (GOOD + "models = []", 'models names none, so nothing would be protected: write ["*"]'),
        (GOOD + "aliases = []", 'aliases names none, so nothing would be protected: write ["*"]'),
        (GOOD + 'exempt = ["*"]', 'exempt names "*", so nothing would be protected'),
        (GOOD + "schema_version = 2", "schema_version: "),
    ],
)
def test_a_configuration_that_cannot_be_used_says_why(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(GuardConfigError) as error:
        read_protection(write(tmp_path, text))
    assert reason in error.value.message
    assert "guard.toml" in error.value.message


def test_no_configuration_is_no_permission(tmp_path: Path) -> None:
    with pytest.raises(GuardConfigError, match=CONFIG_VARIABLE):
        find_protection({})
    with pytest.raises(GuardConfigError, match="no such file"):
        find_protection({CONFIG_VARIABLE: str(tmp_path / "guard.toml")})


def test_by_default_every_alias_of_every_model_is_protected_but_golden_datasets_and_budgets() -> None:
    default = protection()
    assert default.protects_alias("net", "anything")
    assert default.protects_stage("net", "production")
    assert not default.protects_stage("net", "Archived")
    assert not default.protects("validator.golden.net")
    assert not default.protects("Validator.Budget.net")


def test_case_does_not_count() -> None:
    some = protection(models=["Net*"], aliases=["champion"])
    assert some.protects_alias("net-1", "CHAMPION")
    assert not some.protects_alias("net-1", "candidate")
    assert not some.protects_alias("other", "champion")


@pytest.mark.parametrize(
    ("name", "origin"),
    [("net-prod", "net"), ("-prod", None), ("net", None), ("served", "trained"), ("a-prod-prod", "a-prod")],
)
def test_a_republished_model_names_its_origin(name: str, origin: str | None) -> None:
    assert protection(republished={"*-prod": "*", "served": "trained"}).origin_of(name) == origin


def test_every_key_is_on_the_page_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(GuardConfig.model_fields) <= {key for key, _ in rows}


def test_the_configuration_on_the_page_can_be_used(tmp_path: Path) -> None:
    (text,) = re.findall(r"^```ini\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert read_protection(write(tmp_path, text)).allowed.policies == {BUILT_IN["cpu"].digest}


def test_check_config_names_keys_and_warns_of_what_is_left_open(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, GOOD)
    assert boundary.run(lambda: guard, ["check-config", str(path)], debug=False) == ExitCode.PASS
    out = capsys.readouterr().out
    assert f"key          {public_key_of(GATE).key_id}" in out
    assert "warning[guard]: any policy counts" in out
    path.write_text(GOOD + 'policy_origins = ["git:origin/main:*"]')
    assert boundary.run(lambda: guard, ["check-config", str(path)], debug=False) == ExitCode.PASS
    assert "warning" not in capsys.readouterr().out
    assert boundary.run(lambda: guard, ["check-config", str(tmp_path)], debug=False) == ExitCode.USAGE
    assert "error[guard]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("location", "workspace", "found"),
    [
        ("mlflow-artifacts:/1/r/artifacts", None, "/store/1/r/artifacts"),
        ("mlflow-artifacts:/1/r/artifacts/", "default", "/store/1/r/artifacts"),
        ("mlflow-artifacts:/workspaces/default/1", "default", "/store/workspaces/default/1"),
        ("mlflow-artifacts:/workspaces/team-b/1", "team-b", "/store/workspaces/team-b/1"),
        ("mlflow-artifacts:/1/r/artifacts", "team-b", None),
        ("mlflow-artifacts:/workspaces/default/1", "team-b", None),
        ("mlflow-artifacts:/workspaces/team-b/1", "default", None),
        ("mlflow-artifacts:/workspaces/team-b/../default/1", "team-b", None),
        ("mlflow-artifacts:/workspaces//team-b/1", "team-b", None),
        ("s3://bucket/1", "team-b", "s3://bucket/1"),
    ],
)
def test_a_location_is_read_where_clients_of_the_workspace_read_it(
    monkeypatch: pytest.MonkeyPatch, location: str, workspace: str | None, found: str | None
) -> None:
    """For the others MLflow serves what lies below the workspace's own folder, or nothing."""
    monkeypatch.setenv(DESTINATION_VARIABLE, "/store")
    if found is not None:
        assert resolve_location(location, workspace) == found
        return
    with pytest.raises(GuardRefused, match="clients may be served other bytes"):
        resolve_location(location, workspace)


def test_the_entry_point_costs_a_client_nothing() -> None:
    """MLflow loads it in every process that talks to a registry."""
    heavy = "{'mlflow', 'pydantic', 'sqlalchemy', 'cryptography', 'numpy'}"
    code = f"import sys, validator.guard; print(sorted({heavy} & set(sys.modules)))"
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_the_server_needs_no_runtime() -> None:
    code = "import sys, validator.guard.store; print(sorted({'torch', 'onnx', 'onnxruntime'} & set(sys.modules)))"
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
