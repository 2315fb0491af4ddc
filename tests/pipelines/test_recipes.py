"""The shell recipes: with a stand-in for `validator` that ends in every way, and with the program on real models."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipelines.conftest import (
    HEALTHY,
    PICKLE,
    PIPELINES,
    TRAINING,
    Ended,
    Replay,
    World,
    make_recording,
    run,
)
from validator.cli.main import app
from validator.errors import ExitCode

CHECK, PROMOTE, RELEASE = (PIPELINES / name for name in ("check.sh", "promote.sh", "release.sh"))
VERDICTS = {0: "pass", 1: "fail", 2: None, 3: "inconclusive", 4: "refused", 130: None}


def verdict_document(verdict: str | None) -> str | None:
    return None if verdict is None else json.dumps({"findings": [{"verdict": "pass"}], "verdict": verdict}, indent=2)


# --- check.sh with a stand-in -------------------------------------------------------------------------------------

FAKE = """#!/bin/sh
printf '%s\\n' "$@" > "$FAKE_FOLDER/arguments"
key=
while [ $# -gt 0 ]; do
  if [ "$1" = --output ]; then output=$2; fi
  if [ "$1" = --sign-key ]; then key=$2; fi
  shift
done
if [ -n "$key" ]; then stat -c '%a %F' "$key" > "$FAKE_FOLDER/key"; cat "$key" >> "$FAKE_FOLDER/key"; fi
if [ -n "$FAKE_DOCUMENT" ]; then mkdir -p "$output" && printf '%s' "$FAKE_DOCUMENT" > "$output/verdict.json"; fi
exit "$FAKE_CODE"
"""


class Recipe:
    """Runs a recipe with a stand-in for `validator` on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "validator-report"
        (folder / "bin").mkdir()
        fake = folder / "bin" / "validator"
        fake.write_text(FAKE, encoding="utf-8")
        fake.chmod(0o755)

    def run(self, code: int, document: str | None, *words: str, script: Path = CHECK, **environment: str) -> int:
        env = {
            "PATH": f"{self.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "FAKE_FOLDER": str(self.folder),
            "FAKE_CODE": str(code),
            "FAKE_DOCUMENT": document or "",
            **environment,
        }
        return run([script, *(words or ("models:/alexnet/3",))], cwd=self.folder, env=env).returncode

    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe(tmp_path)


@pytest.mark.parametrize(("code", "verdict"), VERDICTS.items())
def test_the_recipe_ends_with_the_programs_exit_code(recipe: Recipe, code: int, verdict: str | None) -> None:
    assert recipe.run(code, verdict_document(verdict)) == code


def test_the_recipe_knows_every_exit_code() -> None:
    assert set(VERDICTS) == set(ExitCode)


@pytest.mark.parametrize(
    "document", [None, "", "{", "[]", "{}", '{"verdict": null}', '{"verdict": "PASS"}', '{"findings": "pass"}']
)
def test_without_a_readable_document_nothing_is_cleared(recipe: Recipe, document: str | None) -> None:
    assert recipe.run(0, document) == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize("verdict", ["fail", "inconclusive", "refused", ""])
def test_a_document_that_says_no_outweighs_exit_code_0(recipe: Recipe, verdict: str) -> None:
    assert recipe.run(0, verdict_document(verdict)) == ExitCode.INCONCLUSIVE


def test_a_document_that_says_pass_does_not_outweigh_another_exit_code(recipe: Recipe) -> None:
    assert recipe.run(3, verdict_document("pass")) == ExitCode.INCONCLUSIVE


def test_an_interpreter_that_did_not_start_is_no_failed_model(recipe: Recipe) -> None:
    assert recipe.run(1, None) == ExitCode.INCONCLUSIVE


def test_an_earlier_pass_is_not_read_as_this_runs(recipe: Recipe) -> None:
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(verdict_document("pass") or "", encoding="utf-8")
    (recipe.report / "clearance.json").write_text("{}", encoding="utf-8")
    assert recipe.run(0, None) == ExitCode.INCONCLUSIVE
    assert list(recipe.report.iterdir()) == []


def test_an_earlier_document_that_cannot_be_removed_stops_the_recipe(recipe: Recipe) -> None:
    (recipe.report / "verdict.json").mkdir(parents=True)
    assert recipe.run(0, None) == ExitCode.INCONCLUSIVE


def test_without_the_program_nothing_is_cleared(recipe: Recipe) -> None:
    (recipe.folder / "bin" / "validator").write_text("#!/nonexistent/python\n", encoding="utf-8")
    assert recipe.run(0, None) not in (ExitCode.PASS, ExitCode.FAIL)


def test_the_recipe_hands_on_its_options_and_decides_on_the_folder(recipe: Recipe) -> None:
    words = ("models:/alexnet/3", "--golden", "a folder", "--output", "elsewhere")
    assert recipe.run(0, verdict_document("pass"), *words, REPORT_FOLDER="out put") == ExitCode.PASS
    assert (recipe.folder / "out put" / "verdict.json").exists()
    given = recipe.arguments()
    assert given == ["check", *words[1:], "--output", "out put", "--", "models:/alexnet/3"]
    parameters = parse(given)
    assert (parameters["uri"], parameters["output"]) == ("models:/alexnet/3", Path("out put"))


def parse(words: list[str]) -> dict[str, object]:
    """Return what the program makes of a command line."""
    context = app.make_context("validator", list(words))
    name, command, arguments = app.resolve_command(context, [*context._protected_args, *context.args])
    assert command is not None
    return command.make_context(name, arguments, parent=context).params


def test_a_model_that_is_named_like_an_option_is_no_option(recipe: Recipe) -> None:
    assert recipe.run(2, None, "--help") == ExitCode.USAGE
    assert recipe.arguments()[-2:] == ["--", "--help"]


def test_a_key_that_is_handed_over_as_a_link_becomes_a_private_copy_that_does_not_stay(recipe: Recipe) -> None:
    (recipe.folder / "..data").write_text("a key\n", encoding="utf-8")
    (recipe.folder / "gate.key").symlink_to("..data")
    assert recipe.run(0, verdict_document("pass"), SIGN_KEY="gate.key", TMPDIR=str(recipe.folder)) == ExitCode.PASS
    assert (recipe.folder / "key").read_text(encoding="utf-8") == "600 regular file\na key\n"
    words = recipe.arguments()
    copy = Path(words[words.index("--sign-key") + 1])
    assert copy.parent == recipe.folder
    assert not copy.exists()


def test_a_key_that_cannot_be_read_stops_the_recipe_before_the_check(recipe: Recipe) -> None:
    assert recipe.run(0, verdict_document("pass"), SIGN_KEY="nowhere") == ExitCode.USAGE
    assert not (recipe.folder / "arguments").exists()


@pytest.mark.parametrize("script", [CHECK, PROMOTE, RELEASE], ids=lambda path: path.name)
def test_a_recipe_says_what_it_needs(tmp_path: Path, script: Path) -> None:
    ended = subprocess.run([script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.USAGE
    assert ended.stderr.startswith("usage: ")


# --- promote.sh with a stand-in -----------------------------------------------------------------------------------


def pinned(verdict: str, uri: str = "models:/alexnet/3") -> str:
    return json.dumps({"subject": {"name": "alexnet", "pinned_uri": uri}, "verdict": verdict})


def test_what_is_promoted_is_what_the_document_pins(recipe: Recipe) -> None:
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(pinned("pass", "models:/a b/3"), encoding="utf-8")
    words = ("champion", "--key", "gate.key.pub", "--expect-current", "2")
    assert recipe.run(0, None, *words, script=PROMOTE) == ExitCode.PASS
    given = recipe.arguments()
    parameters = parse(given)
    assert given[0] == "promote"
    assert (parameters["uri"], parameters["alias"], parameters["expect_current"]) == ("models:/a b/3", "champion", 2)
    assert parameters["clearance"] == Path("validator-report/clearance.json")


@pytest.mark.parametrize("code", [0, 2, 3, 4, 130])
def test_promote_ends_with_the_programs_exit_code(recipe: Recipe, code: int) -> None:
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(pinned("pass"), encoding="utf-8")
    assert recipe.run(code, None, "champion", script=PROMOTE) == code


def test_a_promotion_whose_interpreter_did_not_start_is_no_failed_model(recipe: Recipe) -> None:
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(pinned("pass"), encoding="utf-8")
    assert recipe.run(1, None, "champion", script=PROMOTE) == ExitCode.INCONCLUSIVE


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (pinned("fail"), ExitCode.REFUSED),
        (pinned("inconclusive"), ExitCode.REFUSED),
        ("{", ExitCode.INCONCLUSIVE),
        ('{"verdict": "pass"}', ExitCode.INCONCLUSIVE),
        (None, ExitCode.INCONCLUSIVE),
    ],
)
def test_nothing_is_promoted_without_a_pass(recipe: Recipe, document: str | None, code: ExitCode) -> None:
    if document is not None:
        recipe.report.mkdir()
        (recipe.report / "verdict.json").write_text(document, encoding="utf-8")
    assert recipe.run(0, None, "champion", script=PROMOTE) == code
    assert not (recipe.folder / "arguments").exists()


@pytest.mark.parametrize(
    "uri", ["models:/alexnet@champion", "models:/alexnet", "models:/a/b/3", "models://3", "runs:/a/3"]
)
def test_a_document_that_pins_no_version_promotes_nothing(recipe: Recipe, uri: str) -> None:
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(pinned("pass", uri), encoding="utf-8")
    assert recipe.run(0, None, "champion", script=PROMOTE) == ExitCode.REFUSED
    assert not (recipe.folder / "arguments").exists()


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        ("", ExitCode.PASS),
        ("models:/alexnet/3", ExitCode.PASS),
        ("models:/alexnet@candidate", ExitCode.PASS),
        ("models:/alexnet/2", ExitCode.REFUSED),
        ("models:/alex/3", ExitCode.REFUSED),
        ("models:/alexnet2@candidate", ExitCode.REFUSED),
        ("models:/*@candidate", ExitCode.REFUSED),
    ],
)
def test_the_document_does_not_choose_the_model(recipe: Recipe, expected: str, code: ExitCode) -> None:
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(pinned("pass"), encoding="utf-8")
    assert recipe.run(0, None, "champion", script=PROMOTE, EXPECT_URI=expected) == code
    assert (recipe.folder / "arguments").exists() == (code == ExitCode.PASS)


@pytest.mark.parametrize("script", [CHECK, PROMOTE, RELEASE], ids=lambda path: path.name)
def test_no_recipe_imports_from_the_current_folder(recipe: Recipe, script: Path) -> None:
    for name in ("json", "secrets"):
        (recipe.folder / f"{name}.py").write_text("open('imported', 'w').close()\n", encoding="utf-8")
    (recipe.folder / "gate.key").write_text("a key\n", encoding="utf-8")
    recipe.report.mkdir()
    (recipe.report / "verdict.json").write_text(pinned("pass"), encoding="utf-8")
    words = {CHECK: ["models:/alexnet/3"], PROMOTE: ["champion"], RELEASE: ["models:/alexnet/3", "champion"]}[script]
    keys = {"SIGN_KEY": "gate.key", "PUBLIC_KEY": "gate.key.pub", "SMOKE_TEST": "true"}
    assert recipe.run(0, pinned("pass"), *words, script=script, **keys) == ExitCode.PASS
    assert not (recipe.folder / "imported").exists()


# --- With the program ---------------------------------------------------------------------------------------------


def test_a_healthy_version_ends_with_0_and_a_clearance(recorded: Callable[[str], Path]) -> None:
    folder = recorded(HEALTHY)
    assert (folder / "code").read_text() == "0", (folder / "log").read_text()
    assert (folder / "report" / "clearance.json").exists()


def test_a_version_that_was_logged_in_training_mode_ends_with_1(recorded: Callable[[str], Path]) -> None:
    folder = recorded(TRAINING)
    assert (folder / "code").read_text() == "1", (folder / "log").read_text()
    assert not (folder / "report" / "clearance.json").exists()


def test_a_server_that_is_down_ends_with_3(world: World, tmp_path: Path) -> None:
    env = world.environment(MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert run([CHECK, HEALTHY, *world.options()], cwd=tmp_path, env=env).returncode == ExitCode.INCONCLUSIVE


def test_a_pickle_ends_with_4(world: World, tmp_path: Path) -> None:
    ended = run([CHECK, PICKLE, *world.options()], cwd=tmp_path, env=world.environment())
    assert ended.returncode == ExitCode.REFUSED, ended.stderr


def holder(world: World, alias: str) -> str:
    """Return the version that an alias points to, by MLflow's own client."""
    read = (
        "import mlflow, sys;print(mlflow.MlflowClient().get_registered_model('net').aliases.get(sys.argv[1], 'none'))"
    )
    ended = run(["python3", "-W", "ignore", "-c", read, alias], cwd=world.folder, env=world.environment())
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def release(replay: Replay, recording: Path, folder: Path, alias: str, trial: str, uri: str = HEALTHY) -> Ended:
    keys = {"SIGN_KEY": str(replay.world.key), "PUBLIC_KEY": str(replay.world.public_key)}
    env = replay.environment(recording, SMOKE_TEST=trial, **keys)
    return run([RELEASE, uri, alias], cwd=folder, env=env)


def test_release_promotes_and_tries(replay: Replay, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    world = replay.world
    trial = f"printf '%s\\n' \"$PROMOTED_URI\" > {shlex.quote(str(tmp_path / 'tried'))}"
    ended = release(replay, recorded(HEALTHY), tmp_path, "released", trial)
    assert ended.returncode == ExitCode.PASS, ended.stderr
    assert (tmp_path / "tried").read_text(encoding="utf-8") == "models:/net@released\n"
    assert holder(world, "released") == "1"


def test_release_of_a_version_that_failed_moves_nothing(
    replay: Replay, recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    ended = release(replay, recorded(TRAINING), tmp_path, "failed", "true")
    assert ended.returncode == ExitCode.FAIL, ended.stderr
    assert holder(replay.world, "failed") == "none"


def test_release_stops_where_the_folder_holds_a_forged_pass(
    replay: Replay, recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    """A document that says pass beside a clearance for another version: the signature decides, not the document."""
    text = (recorded(HEALTHY) / "report" / "verdict.json").read_text(encoding="utf-8")
    forged = make_recording(tmp_path / "forged", 0, text.replace("models:/net/1", "models:/net/2"))
    clearance = (recorded(HEALTHY) / "report" / "clearance.json").read_bytes()
    (forged / "report" / "clearance.json").write_bytes(clearance)
    ended = release(replay, forged, tmp_path, "forged", "true", "models:/net@candidate")
    assert ended.returncode == ExitCode.REFUSED, ended.stderr
    assert holder(replay.world, "forged") == "none"


def test_release_says_so_when_it_cannot_take_a_version_back(
    replay: Replay, recorded: Callable[[str], Path], tmp_path: Path
) -> None:
    """The version before was never cleared, so the rollback is refused, loudly: 1 would say that the alias is back."""
    world = replay.world
    move = "import mlflow; mlflow.MlflowClient().set_registered_model_alias('net', 'tried', '2')"
    ended = run(["python3", "-W", "ignore", "-c", move], cwd=world.folder, env=world.environment())
    assert ended.returncode == 0, ended.stderr
    ended = release(replay, recorded(HEALTHY), tmp_path, "tried", "false")
    assert "the trial failed; tried goes back to its previous holder" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("release.sh: the rollback failed, too: look at models:/net@tried")
    assert ended.returncode == ExitCode.REFUSED, ended.stderr
    assert holder(world, "tried") == "1"


def test_release_ends_with_1_when_the_alias_is_back(recipe: Recipe) -> None:
    keys = {"SIGN_KEY": "gate.key", "PUBLIC_KEY": "gate.key.pub", "SMOKE_TEST": "false"}
    (recipe.folder / "gate.key").write_text("a key\n", encoding="utf-8")
    code = recipe.run(0, pinned("pass"), "models:/alexnet/3", "champion", script=RELEASE, **keys)
    assert code == ExitCode.FAIL
    expected = ["rollback", "--alias", "champion", "--key", "gate.key.pub", "--", "models:/alexnet"]
    assert recipe.arguments() == expected
