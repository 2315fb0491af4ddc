"""`validator budget push` and `pull` against MLflow itself."""

from pathlib import Path

import pytest

from tests.registry.conftest import MlflowWorld
from validator.boundary import run
from validator.cli.budget import budget
from validator.policy import parse_policy
from validator.policy_source import find_policy

TEXT = '# measured in November\nrequired = ["eager-cpu", "onnxruntime-cpu"]\nsamples_min = 64\n'


def test_a_budget_is_pushed_found_and_pulled(
    embedded: MlflowWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.toml").write_text(TEXT)
    digest = parse_policy(TEXT, origin="").digest

    def said(*words: str) -> tuple[int, str]:
        code = int(run(lambda: budget, [*words, "--tracking-uri", embedded.uri], debug=False))
        return code, "".join(capsys.readouterr())

    pinned = "models:/validator.budget.net/1"
    current = "models:/validator.budget.net@current"
    for did in ("registered", "already registered"):
        assert said("push", str(tmp_path / "policy.toml"), "net") == (
            0,
            f"{did} as {pinned}, also {current}, {digest}\n",
        )
    assert embedded.tags("validator.budget.net", 1)["validator.policy_digest"] == digest

    found = find_policy(current, open_registry=lambda: embedded.registry)
    assert (found.policy.digest, found.origin) == (digest, pinned)
    assert "samples_min" in said("diff", current, "cpu")[1]

    pulled = tmp_path / "pulled.toml"
    assert said("pull", "net", str(pulled)) == (0, f"{pinned} in {pulled}, {digest}\n")
    assert pulled.read_text() == TEXT
    code, text = said("pull", pinned, str(pulled))
    assert (code, "--replace" in text) == (2, True)
    assert said("pull", pinned, str(pulled), "--replace")[0] == 0

    code, text = said("pull", "other", str(tmp_path / "other.toml"))
    assert (code, "validator budget push FILE other" in text) == (2, True)


def test_a_built_in_policy_needs_no_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda: budget, ["push", "cpu", "net"], debug=False) == 2
    assert "built in" in capsys.readouterr().err
