"""Where a finding points to."""

import pytest

from tests.builders import passing
from validator.report.where import find_file


@pytest.mark.parametrize(
    ("origin", "file"),
    [
        ("policies/net.toml", "policies/net.toml"),
        ("git:origin/main:policies/net@2.toml@" + "0" * 40, "policies/net@2.toml"),
        ("git:main:../net.toml@" + "0" * 40, "verdict.json"),
        ("models:/validator.budget.net/4", "verdict.json"),
        ("cpu", "verdict.json"),
        ("/etc/policy.toml", "verdict.json"),
        ("../policy.toml", "verdict.json"),
    ],
)
def test_a_finding_points_into_the_repository_or_to_the_document(origin: str, file: str) -> None:
    document = passing()
    policy = document.policy.model_copy(update={"origin": origin})
    assert find_file(document.model_copy(update={"policy": policy})) == file
