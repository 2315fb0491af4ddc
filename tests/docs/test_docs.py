"""What the documentation says is what the program does: commands, tables, examples, links, recipes."""

import contextlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from validator import errors
from validator.backends.catalog import CATALOG, Backend
from validator.cache import reuse
from validator.cli.main import app
from validator.errors import ExitCode, ValidatorError
from validator.judge import Check, cautions, waivers, weights
from validator.policy import (
    BUILT_IN,
    DEFAULT_RATIO,
    DEFAULT_RATIO_FLOOR,
    Budget,
    Calibration,
    Checks,
    DecisionLimits,
    Formats,
    Policy,
    SandboxRules,
    Strict,
    Waiver,
    WorkerLimits,
    parse_policy,
)
from validator.registry.interface import RUN_TAG, VERDICT_TAG
from validator.report import annotation
from validator.report.schema import SCHEMA_PATH

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "pipelines/README.md"])
README, POLICY_PAGE, VERDICT_PAGE, MLFLOW_PAGE, TROUBLE_PAGE = (
    ROOT / name
    for name in ("README.md", "docs/policy.md", "docs/verdict.md", "docs/mlflow.md", "docs/troubleshooting.md")
)

RUN_THE_DEMO = "python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/validator demo"
RUN_THE_TESTS = "./dev test"


def name_of(path: object) -> str:
    return str(path.relative_to(ROOT)) if isinstance(path, Path) else str(path)


# --- Reading Markdown -------------------------------------------------------------------------------------------


def blocks(path: Path, *languages: str) -> list[str]:
    """Return the fenced blocks of these languages."""
    found = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def prose(path: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def tables(path: Path) -> Iterator[list[list[str]]]:
    """Yield the tables of a page as rows of cells, the heading first."""
    for text in re.findall(r"(?:^\|.*\|\n)+", prose(path), re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in text.splitlines()]
        yield [rows[0], *rows[2:]]


def table(path: Path, *heading: str) -> list[list[str]]:
    """Return the rows of the one table whose heading begins like this."""
    found = [rows[1:] for rows in tables(path) if tuple(rows[0][: len(heading)]) == heading]
    assert len(found) == 1, f"{len(found)} tables headed {heading} in {name_of(path)}"
    return found[0]


def words_of(cells: list[str]) -> list[str]:
    """Return the code spans of some cells."""
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def first_words(rows: list[list[str]]) -> list[str]:
    return words_of([row[0] for row in rows])


# --- Policies ---------------------------------------------------------------------------------------------------

POLICIES = [(page, text) for page in PAGES for text in blocks(page, "toml")]


@pytest.mark.parametrize(("page", "text"), POLICIES, ids=[f"{p.stem}-{i}" for i, (p, _) in enumerate(POLICIES)])
def test_every_policy_in_the_documentation_can_be_used(page: Path, text: str) -> None:
    assert parse_policy(text, origin=page.name).required


def test_every_key_of_the_policy_is_documented() -> None:
    sections = {
        Policy: "top level",
        Formats: "formats",
        Checks: "checks",
        DecisionLimits: "decisions",
        WorkerLimits: "worker",
        SandboxRules: "sandbox",
        Budget: "budget",
    }
    sections |= {Waiver: "waiver"}
    documented = {
        word.removeprefix("environment.") for rows in tables(POLICY_PAGE) for word in words_of([row[0] for row in rows])
    }
    nested = {"formats", "checks", "decisions", "worker", "sandbox", "backends", "budget", "waiver"}
    nested |= {"calibration", "environment"}
    for model in (*sections, Calibration, Backend):
        missing = set(model.model_fields) - documented - nested - {"name"}
        assert not missing, f"{model.__name__}: {missing}"
    text = POLICY_PAGE.read_text(encoding="utf-8")
    for section in (
        "[formats]",
        "[checks]",
        "[decisions]",
        "[worker]",
        "[sandbox]",
        "[[budget]]",
        "[[waiver]]",
        "[backends.NAME]",
        "[calibration]",
    ):
        assert f"## `{section}`" in text


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (m, k)
        for m in (Policy, Formats, Checks, DecisionLimits, WorkerLimits, SandboxRules)
        for k, f in m.model_fields.items()
        if not f.is_required()
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_documented_defaults_are_the_defaults(model: type[Any], key: str) -> None:
    default = model.model_fields[key].default
    if key in ("required", "backends", "budget", "waiver", "calibration") or isinstance(default, Strict):
        return  # told in words, or a section of its own
    own = [rows for rows in tables(POLICY_PAGE) if rows[0][:2] == ["key", "default"]]
    shown = [row[1] for rows in own for row in rows if row[0] == f"`{key}`"]
    assert len(shown) == 1
    if default is None:
        assert shown == ["none"]
    else:
        value = list(default) if isinstance(default, tuple) else default
        assert shown == [f"`{json.dumps(value)}`"]


def test_documented_default_budgets_are_the_programs() -> None:
    rows = table(POLICY_PAGE, "class", "unit roundoff u")
    with_baseline = {row[0].strip("`"): float(row[2]) for row in rows}
    assert with_baseline == {precision.value: ratio for precision, ratio in DEFAULT_RATIO.items()}
    assert {float(row[3]) for row in rows} == {DEFAULT_RATIO_FLOOR}


def test_built_in_policies_are_documented() -> None:
    rows = table(POLICY_PAGE, "built-in", "requires")
    assert {row[0].strip("`"): tuple(words_of([row[1]])) for row in rows} == {
        name: policy.required for name, policy in BUILT_IN.items()
    }


# --- Tables -----------------------------------------------------------------------------------------------------

EXIT_TABLES = [(page, rows) for page in PAGES for rows in tables(page) if rows[0][0] == "exit"]


def test_there_are_exit_code_tables() -> None:
    assert {page for page, _ in EXIT_TABLES} >= {README, VERDICT_PAGE}


@pytest.mark.parametrize(("page", "rows"), EXIT_TABLES, ids=[p.stem + str(i) for i, (p, _) in enumerate(EXIT_TABLES)])
def test_every_exit_code_table_is_the_programs(page: Path, rows: list[list[str]]) -> None:
    assert [int(row[0]) for row in rows[1:]] == [int(code) for code in ExitCode]
    if rows[0][1] in ("verdict", "name"):
        assert [row[1].strip("`") for row in rows[1:]] == [code.name.lower() for code in ExitCode]


def test_the_table_of_backends_is_the_catalog() -> None:
    rows = table(README, "name", "runs on")
    assert first_words(rows) == list(CATALOG)
    assert [row[2] for row in rows] == [row.precision.value for row in CATALOG.values()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_backend_that_is_named_exists(page: Path) -> None:
    own = {name for text in blocks(POLICY_PAGE, "toml") for name in parse_policy(text, origin="").backends}
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w.-])(?:eager|cudnn|onnxruntime)-[a-z0-9-]+(?![\w.])", text))
    assert named - {"onnxruntime-gpu>"} <= CATALOG.keys() | own


def test_every_check_has_a_paragraph_and_no_other_word_has() -> None:
    _, _, section = VERDICT_PAGE.read_text(encoding="utf-8").partition("## Checks")
    section, _, _ = section.partition("\n## ")
    assert re.findall(r"^### `([^`]+)`$", section, re.MULTILINE) == [check.value for check in Check]


def test_the_readme_lists_every_check() -> None:
    assert sorted(first_words(table(README, "check", "what"))) == sorted(check.value for check in Check)


def test_every_warning_is_documented() -> None:
    sources = "".join(inspect.getsource(module) for module in (cautions, waivers, weights, reuse))
    codes = set(re.findall(r'code="([^"]+)"', sources)) | {"retry"}
    assert set(first_words(table(VERDICT_PAGE, "code", "says"))) == codes


def test_every_tag_is_documented() -> None:
    written = set(re.findall(r'"(validator\.\w+)"', inspect.getsource(annotation.version_tags)))
    assert set(first_words(table(MLFLOW_PAGE, "tag on the version", "value"))) == written | {RUN_TAG, VERDICT_TAG}


def all_errors(kind: type[ValidatorError]) -> Iterator[type[ValidatorError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from all_errors(child)


def test_every_error_code_has_a_heading_in_troubleshooting() -> None:
    headings = re.findall(r"^### `([^`]+)`", TROUBLE_PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == {f"{e.word}[{e.code}]" for e in (ValidatorError, *all_errors(ValidatorError))}


def test_the_layers_on_the_design_page_are_those_that_lint_enforces() -> None:
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"][
        0
    ]
    (shown,) = [text for text in blocks(ROOT / "docs/design.md", "text") if text.startswith("cli")]
    names = [re.split(r"\s{2,}", line)[0] for line in shown.splitlines()]
    assert [re.split(r"[ ,|]+", name) for name in names] == [re.split(r"[ :|]+", layer) for layer in layers["layers"]]


# --- Commands ---------------------------------------------------------------------------------------------------


def command_lines() -> Iterator[tuple[str, str]]:
    """Yield (where, line) for every command line of ours in pages and recipes, as far as it is written out."""
    for page in PAGES:
        for text in blocks(page, "sh", "text", "bash"):
            for line in text.splitlines():
                if match := re.search(r"(?:^\$ |^\s*|^.*\.venv/bin/)(validator .*)$", line):
                    yield name_of(page), match[1]
        for span in re.findall(r"`(validator\s[^`]+)`", prose(page)):
            yield name_of(page), " ".join(span.split())
    for path in sorted(ROOT.glob("pipelines/*.sh")):  # what calls them is run by tests/pipelines
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"(validator \w+ .*)", line):
                yield name_of(path), match[1].replace('"$@"', "--key gate.key.pub" if "promote" in line else "")


COMMAND_LINES = list(dict.fromkeys(command_lines()))


def resolve(words: list[str]) -> None:
    """Parse a command line the way the program does, without running it.

    Raises:
        click.UsageError: there is no such command, option or argument.
    """
    group: click.Command = app
    context = app.make_context("validator", list(words)) if words else None
    while isinstance(group, click.Group) and context is not None:
        rest = [*context._protected_args, *context.args]
        if not rest:
            return  # a group that is only named
        name, command, arguments = group.resolve_command(context, rest)
        assert command is not None
        if not arguments:
            return  # a command that is only named
        group, context = command, command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize(("where", "line"), COMMAND_LINES, ids=[f"{w}: {line}" for w, line in COMMAND_LINES])
def test_every_command_line_can_be_parsed(where: str, line: str) -> None:
    words = shlex.split(re.sub(r"\s(?:>|\|+) .*$", "", line), comments=True)
    with contextlib.suppress(click.exceptions.Exit):  # --help, --version
        resolve(words[1:])


def test_a_command_line_that_does_not_exist_is_found() -> None:
    for line in ("chekc models:/a/1", "check models:/a/1 --polcy cpu", "check a b", "golden mend x"):
        with pytest.raises(click.UsageError):
            resolve(line.split())


def test_there_are_command_lines_of_every_kind() -> None:
    commands = {line.split()[1] for _, line in COMMAND_LINES}
    assert commands >= {"check", "golden", "backends", "report", "schema", "demo"}
    assert {where for where, _ in COMMAND_LINES} >= {"README.md", "docs/mlflow.md", "pipelines/check.sh"}


def test_the_readme_has_the_two_commands_of_a_fresh_machine() -> None:
    section = README.read_text(encoding="utf-8").partition("## Try it")[2].partition("\n## ")[0]
    commands = re.findall(r"^```sh\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)
    assert commands == [RUN_THE_DEMO, RUN_THE_TESTS]


def test_ci_runs_the_second_command() -> None:
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.split(" --require")[0] == RUN_THE_TESTS]
    assert f"- run: {RUN_THE_TESTS}" in (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")


# --- Links ------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Return the anchors that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKS = [
    (page, target)
    for page in PAGES
    for target in dict.fromkeys(re.findall(r"\]\(([^)\s]+)\)", prose(page)))
    if not target.startswith(("http://", "https://"))
]


@pytest.mark.parametrize(("page", "target"), LINKS, ids=[f"{name_of(p)}: {t}" for p, t in LINKS])
def test_every_link_leads_somewhere(page: Path, target: str) -> None:
    file, _, anchor = target.partition("#")
    path = (page.parent / file).resolve() if file else page
    assert path.exists()
    if anchor:
        assert anchor in anchors(path)


def test_the_schema_lies_where_the_page_says() -> None:
    assert f"`{name_of(SCHEMA_PATH)}`" in VERDICT_PAGE.read_text(encoding="utf-8")


def test_the_changelog_begins_with_what_is_not_released() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"


def test_a_model_of_several_inputs_is_logged_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow_pytorch, torch = pytest.importorskip("mlflow.pytorch"), pytest.importorskip("torch")

    class Pooled(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(10, 3)

        def forward(self, ids: Any, mask: Any) -> Any:
            return (self.table(ids) * mask.unsqueeze(-1)).sum(1)

    def save(model: Any, *, input_example: Any, signature: Any, **_: Any) -> None:
        mlflow_pytorch.save_model(model, str(tmp_path / "model"), input_example=input_example, signature=signature)

    (program,) = (text for text in blocks(MLFLOW_PAGE, "python") if "ModelSignature" in text)
    monkeypatch.setattr(mlflow_pytorch, "log_model", save)
    exec(program, {"model": Pooled().eval()})  # noqa: S102 - the page's own lines
    (stored,) = (tmp_path / "model").rglob("*.pt2")
    ids = torch.ones((5, 4), dtype=torch.int64)
    assert torch.export.load(stored).module()(ids, ids).shape == (5, 3), "the batch size varies"
