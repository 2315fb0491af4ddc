"""Where a policy comes from: a change under review reaches neither the registry's nor a protected ref's."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes import FakeRegistry
from validator.errors import PolicyError, UriError, UsageError
from validator.policy import BUILT_IN
from validator.policy_source import find_policy, read_at_ref

STRICT = 'required = ["eager-cpu", "onnxruntime-cpu"]\nsamples_min = 64\n'
LAX = 'required = ["eager-cpu", "onnxruntime-cpu"]\nsamples_min = 1\n'


def no_registry() -> FakeRegistry:
    raise AssertionError("nobody asked for the registry")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A repository whose `main` is strict and whose working tree is lax; runs git in it."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    def git(*words: str) -> str:
        settings = ["-c", "user.name=test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"]
        return subprocess.run(["git", *settings, *words], check=True, capture_output=True, text=True).stdout.strip()

    git("init", "--quiet")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies/net.toml").write_text(STRICT)
    git("add", ".")
    git("commit", "--quiet", "--message", "strict")
    (tmp_path / "policies/net.toml").write_text(LAX)
    return git


def test_a_ref_outweighs_the_working_tree_and_is_pinned(repository) -> None:
    assert find_policy("policies/net.toml", open_registry=no_registry).policy.samples_min == 1
    found = find_policy("policies/net.toml", ref="main", open_registry=no_registry)
    assert found.policy.samples_min == 64
    assert found.origin == f"git:main:policies/net.toml@{repository('rev-parse', 'main')}"


def test_a_path_is_seen_from_the_current_directory(repository, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path / "policies")
    for name in ("net.toml", "./net.toml", "../policies/net.toml"):
        assert ":policies/net.toml@" in read_at_ref("main", name).origin


@pytest.mark.parametrize(
    ("ref", "name", "reason"),
    [
        ("nowhere", "policies/net.toml", "there is no such ref"),
        ("--all", "policies/net.toml", "there is no such ref"),
        ("main", "policies/other.toml", "other.toml"),
        ("main", "../outside.toml", "outside"),
        ("main", "policies", "policies"),
        ("main:policies/net.toml", "policies/net.toml", "there is no such ref"),
    ],
)
def test_what_is_not_there_is_said(repository, ref: str, name: str, reason: str) -> None:
    with pytest.raises(PolicyError, match=reason):
        read_at_ref(ref, name)


def test_a_link_in_the_repository_is_not_followed(repository, tmp_path: Path) -> None:
    (tmp_path / "link.toml").symlink_to("policies/net.toml")
    repository("add", "link.toml")
    repository("commit", "--quiet", "--message", "link")
    with pytest.raises(PolicyError):
        read_at_ref("main", "link.toml")


def test_outside_of_a_repository_there_is_no_ref(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(PolicyError, match="cannot be read at main"):
        read_at_ref("main", "policy.toml")


@pytest.mark.parametrize("name", ["cpu", "models:/validator.budget.net@current", "/etc/policy.toml"])
def test_a_ref_is_for_files_of_the_repository(repository, name: str) -> None:
    with pytest.raises(UsageError):
        find_policy(name, ref="main", open_registry=no_registry)


def test_a_registered_policy_is_pinned_to_its_version(tmp_path: Path) -> None:
    registry = FakeRegistry()
    for number, text in enumerate((STRICT, LAX), start=1):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "policy.toml").write_text(text)
        registry.add_version("validator.budget.net", folder)
    registry.set_alias("validator.budget.net", "current", 1)
    found = find_policy("models:/validator.budget.net@current", open_registry=lambda: registry)
    assert (found.policy.samples_min, found.origin) == (64, "models:/validator.budget.net/1")
    with pytest.raises(UriError):
        find_policy("models:/validator.budget.net/9", open_registry=lambda: registry)


def test_a_version_without_a_policy_is_said(tmp_path: Path) -> None:
    registry = FakeRegistry()
    (tmp_path / "net").mkdir()
    (tmp_path / "net/MLmodel").write_text("")
    registry.add_version("net", tmp_path / "net")
    with pytest.raises(PolicyError, match=r"net version 1 holds no policy\.toml"):
        find_policy("models:/net/1", open_registry=lambda: registry)


def test_a_built_in_policy_is_its_own_origin() -> None:
    found = find_policy("cpu", open_registry=no_registry)
    assert (found.policy, found.origin) == (BUILT_IN["cpu"], "cpu")
