"""The guard on PostgreSQL beside basic-auth: the roles of docs/guard.md, row by row."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.guard.contest import (
    clearance_for,
    contest,
    create_version,
    digest_of,
    holder,
    make_logged_model,
    move,
    require,
    tag,
)
from tests.guard.postgres import create_database, skip
from tests.guard.server import ADMIN, GuardedServer, User, start_guarded
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG

PAGE = Path(__file__).parents[2] / "docs" / "guard.md"
READER: User = ("reader", "password-of-reader")
DEVELOPER: User = ("developer", "password-of-developer")
GATE_ACCOUNT: User = ("gate", "password-of-gate")
USERS = {"reader": READER, "developer": DEVELOPER, "gate": GATE_ACCOUNT}

MODELS = {
    "alexnet": {"developer": "EDIT", "gate": "EDIT"},
    "alexnet-prod": {"gate": "EDIT"},
    "validator.golden.alexnet": {"gate": "EDIT"},
    "validator.budget.alexnet": {"gate": "EDIT"},
}
EXPERIMENTS = {
    "training": {"developer": "EDIT", "gate": "EDIT"},
    "validator": {"gate": "EDIT"},
    "validator.promoted": {"gate": "EDIT"},
}
"""Who is granted what, by the administrator; everybody else may read."""

YES, NO, GUARD = "yes", "no", "the guard says no"


@dataclass
class Company:
    """A registry as docs/guard.md recommends it."""

    server: GuardedServer
    experiments: dict[str, str]
    trained: str
    """A logged model of the developer's."""
    validated: str
    """The same bytes, uploaded by the gate."""
    version: dict[str, Any]
    """Version 1 of alexnet: the trained model."""

    def clearance(self) -> str:
        return clearance_for(self.server, self.version, digest_of(self.server, self.trained))

    def set_alias(self, name: str, alias: str, number: str, user: User) -> tuple[int, Any]:
        return move(self.server, {"name": name, "version": number}, user, alias)

    def overwrite(self, experiment: str, model: str, user: User) -> tuple[int, Any]:
        path = f"{self.experiments[experiment]}/models/{model}/artifacts/extra"
        return self.server.put_file(path, b"", user)


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory, postgres: str) -> Iterator[Company]:
    if find_spec("flask_wtf") is None:
        skip("basic-auth needs Flask-WTF: pip install 'mlflow[auth]'")
    folder = tmp_path_factory.mktemp("company")
    server = start_guarded(folder, create_database(postgres, "company", "blank"), "--app-name", "basic-auth")
    try:
        yield found(server)
    finally:
        server.kill()


def found(server: GuardedServer) -> Company:
    for name, password in USERS.values():
        require(server.post("users/create", {"username": name, "password": password}, ADMIN))
    for name in MODELS:
        require(server.post("registered-models/create", {"name": name}, ADMIN))
    experiments = {
        name: str(require(server.post("experiments/create", {"name": name}, ADMIN))["experiment_id"])
        for name in EXPERIMENTS
    }
    grants = [("registered_model", name, users) for name, users in MODELS.items()]
    grants += [("experiment", experiments[name], users) for name, users in EXPERIMENTS.items()]
    for kind, resource, users in grants:
        for user, permission in users.items():
            body = {"username": user, "resource_type": kind, "resource_id": resource, "permission": permission}
            require(server.post("3.0/users/permissions/grant", body, ADMIN))
    trained = make_logged_model(server, experiments["training"], DEVELOPER, b"weights")
    return Company(
        server=server,
        experiments=experiments,
        trained=trained,
        validated=make_logged_model(server, experiments["validator"], GATE_ACCOUNT, b"weights"),
        version=require(create_version(server, "alexnet", trained, DEVELOPER))["model_version"],
    )


def deed(text: str, company: Company, user: User) -> tuple[int, Any]:
    """Do what a row of the page says."""
    server, version = company.server, company.version
    match text:
        case "read a version and its files":
            return server.send("api/2.0/mlflow/model-versions/get?name=alexnet&version=1", b"", user, "GET")
        case "register a version of `alexnet`":
            return create_version(server, "alexnet", company.trained, user)
        case "move `champion` of `alexnet` without a clearance":
            # Of its own: another test may have cleared version 1.
            fresh = require(create_version(server, "alexnet", company.trained, DEVELOPER))["model_version"]
            return move(server, fresh, user)
        case "write a clearance, and move `champion` with it":
            tag(server, version, CLEARANCE_TAG, company.clearance(), user)
            now = holder(server, "alexnet", ADMIN) or "none"
            tag(server, version, EXPECT_TAG + "champion", now, user)
            return move(server, version, user)
        case "delete a version of `alexnet`":
            return server.post("model-versions/delete", {"name": "alexnet", "version": "1"}, user, method="DELETE")
        case "make a version of `alexnet-prod` without a clearance":
            return create_version(server, "alexnet-prod", company.validated, user)
        case "make a version of `alexnet-prod` with one, from the gate's own upload":
            return create_version(server, "alexnet-prod", company.validated, user, {CLEARANCE_TAG: company.clearance()})
        case "make a version of `validator.golden.alexnet`, and move `current`":
            create_version(server, "validator.golden.alexnet", company.validated, user)
            return company.set_alias("validator.golden.alexnet", "current", "1", user)
        case "make a version of `validator.budget.alexnet`, and move `current`":
            create_version(server, "validator.budget.alexnet", company.validated, user)
            return company.set_alias("validator.budget.alexnet", "current", "1", user)
        case "write files into the experiment `training`":
            return company.overwrite("training", make_logged_model(
                server, company.experiments["training"], ADMIN, b"other"), user)  # fmt: skip
        case "write files into the experiment `validator`":
            return company.overwrite("validator", make_logged_model(
                server, company.experiments["validator"], ADMIN, b"other"), user)  # fmt: skip
    raise AssertionError(text)


def read_page() -> list[tuple[str, str, str]]:
    """Return what the page says: deed, who, answer."""
    table = PAGE.read_text(encoding="utf-8").partition("| may | reader | developer | gate |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.splitlines()[1:]]
    return [(row[0], who, answer) for row in rows for who, answer in zip(USERS, row[1:], strict=True)]


ROWS = read_page()


def test_the_page_has_the_roles() -> None:
    assert len(ROWS) == 11 * len(USERS)
    text = PAGE.read_text(encoding="utf-8").partition("## Roles")[2].partition("\n## ")[0]
    assert set(MODELS) <= set(re.findall(r"`([\w.-]+)`", text))


@pytest.mark.parametrize(("text", "who", "answer"), ROWS, ids=[f"{who}: {text}" for text, who, _ in ROWS])
def test_a_role_may_do_what_the_page_says(company: Company, text: str, who: str, answer: str) -> None:
    status, body = deed(text, company, USERS[who])
    is_guard = "validator guard:" in str(body)
    said = (
        YES if status == 200 else GUARD if status == 403 and is_guard else NO if status == 403 else f"{status} {body}"
    )
    assert said == answer, body


def test_nobody_without_a_password_gets_in(company: Company) -> None:
    assert move(company.server, company.version, None)[0] == 401
    assert move(company.server, company.version, ("developer", "guessed"))[0] == 401


def test_exactly_one_of_24_promotions_wins_on_postgresql(company: Company) -> None:
    require(company.server.post("registered-models/create", {"name": "contest"}, ADMIN))
    contest(company.server, "contest", company.experiments["validator"], ADMIN)
