"""The installed program, as a shell sees it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.builders import failing, passing
from validator.cli.exits import OWN, exit_codes
from validator.cli.main import COMMANDS, app
from validator.errors import ExitCode

HEAVY = ("torch", "onnxruntime", "mlflow", "numpy", "pydantic", "onnx", "rich")
PROGRAM = [sys.executable, "-m", "validator"]


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR") and not k.startswith("MLFLOW")}
    return {**kept, **more}


def run(*arguments: str, cwd: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True, text=True, check=False, timeout=120, cwd=cwd,
        env=environment(PYTHONPATH=str(Path(__file__).parents[2]), **more),
    )  # fmt: skip


@pytest.fixture
def verdict(tmp_path: Path) -> Path:
    path = tmp_path / "verdict.json"
    path.write_text(failing().to_json(), encoding="utf-8")
    return path


HELPS = (
    [],
    *([name] for name in COMMANDS),
    ["golden", "show"],
    ["golden", "verify"],
    ["key", "create"],
    ["budget", "diff"],
)


@pytest.mark.parametrize("path", HELPS, ids=" ".join)
def test_every_help_fits_80_columns_and_ends_in_the_exit_codes(path: Sequence[str]) -> None:
    done = run(*path, "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    table = [f"{int(code):<3}  {meaning}" for code, meaning in exit_codes(" ".join(path)).items()]
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[-len(table) - 1 :] == ["Exit codes:", *table]
    assert lines[-1].split() == ["130", "interrupted"]
    assert run(*path, "-h").stdout == done.stdout


def test_exit_codes_are_told_of_commands_that_exist() -> None:
    context = app.make_context("validator", ["schema"])
    for path in OWN:
        command: click.Command = app
        for name in path.split():
            assert isinstance(command, click.Group)
            found = command.get_command(context, name)
            assert found is not None, path
            command = found


def test_only_a_command_that_judges_can_fail() -> None:
    fails = [path for path in ("", *COMMANDS, *OWN) if ExitCode.FAIL in exit_codes(path)]
    assert fails == ["", "check", "budget diff"]


@pytest.mark.parametrize("path", [[], ["check"], ["golden"], ["report"]], ids=" ".join)
def test_help_imports_nothing_heavy(path: list[str]) -> None:
    script = (
        "import sys; from validator.boundary import _load_app, run; "
        f"code = run(_load_app, {[*path, '--help']!r}, debug=False); "
        f"print(int(code), sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == "0 []\n"


def test_help_lists_every_command_whole() -> None:
    text = run("--help").stdout
    for name, entry in COMMANDS.items():
        assert f"  {name}" in text
        assert entry.summary in text


def test_the_help_of_check_has_three_examples() -> None:
    assert run("check", "--help").stdout.count("    validator check models:/") == 3


def test_no_option_turns_a_block_into_0() -> None:
    text = run("check", "--help").stdout
    assert not [w for w in ("--force", "--skip", "--ignore", "--exit-zero", "--allow", "--warn-only") if w in text]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "error[usage]: no command chek: did you mean check?\n"),
        (["xyzzy"], "error[usage]: no command xyzzy: there are check, "),
        (["check"], "error[usage]: missing argument 'URI'\n  see validator check --help"),
        (["check", "models:/a/1", "--polcy", "x"], "did you mean "),
        (["check", "models:/a/1", "--color", "red"], "error[usage]: invalid value for '--color'"),
        (["check", "a", "b"], "error[usage]: got unexpected extra argument"),
        (["backends", "onnxruntime-gp"], "error[backend]: no backend onnxruntime-gp\n  did you mean onnxruntime-gpu?"),
        (["report", "gone.json"], "error[usage]: gone.json cannot be read: no such file or directory"),
        (["golden", "creat"], "error[usage]: no such command 'creat'"),
        ([], "Usage: validator [OPTIONS] COMMAND"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_usage_errors_exit_2_and_say_so_on_stderr(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_the_version_is_told() -> None:
    import validator

    assert run("--version").stdout == f"validator {validator.__version__}\n"


def test_completion_is_clicks_own() -> None:
    done = run(_VALIDATOR_COMPLETE="bash_complete", COMP_WORDS="validator ch", COMP_CWORD="1")
    assert "check" in done.stdout


# --- report, schema, backends -------------------------------------------------------------------------------------


def test_a_verdict_is_shown_again_and_exits_0_whatever_it_says(verdict: Path) -> None:
    done = run("report", str(verdict))
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("fail: alexnet version 2: ")
    assert run("report", str(verdict.parent)).stdout == done.stdout
    assert run("report", str(verdict), "--quiet").stdout == done.stdout.splitlines()[-1] + "\n"
    assert "eager-cuda " in run("report", str(verdict), "--verbose").stdout


def test_a_verdict_is_written_in_other_formats_beside_it_or_elsewhere(verdict: Path, tmp_path: Path) -> None:
    done = run("report", str(verdict), "--format", "junit,github", "--output", str(tmp_path / "ci"))
    assert done.returncode == 0, done.stderr
    names = ["junit.xml", "github-summary.md", "github-annotations.txt", "github-outputs.txt"]
    assert done.stdout.splitlines() == [str(tmp_path / "ci" / name) for name in names]
    assert run("report", str(verdict.parent), "--format", "md").stdout == f"{verdict.parent / 'comment.md'}\n"
    assert (verdict.parent / "comment.md").read_text(encoding="utf-8").startswith("<!-- validator:comment:alexnet -->")
    missing = run("report", str(verdict), "--format", "parquet")
    assert missing.returncode == 2
    assert "samples.csv cannot be read" in missing.stderr


@pytest.mark.parametrize(
    ("option", "variables", "is_colored"),
    [
        ("auto", {}, False),
        ("auto", {"FORCE_COLOR": "1"}, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ("auto", {"NO_COLOR": ""}, False),
        ("always", {"NO_COLOR": "1"}, True),
        ("never", {"FORCE_COLOR": "1"}, False),
    ],
)
def test_the_option_wins_over_no_color_over_force_color(
    verdict: Path, option: str, variables: dict[str, str], *, is_colored: bool
) -> None:
    done = run("report", str(verdict), "--color", option, **variables)
    assert ("\x1b[" in done.stdout) == is_colored


def test_names_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    document = passing()
    subject = document.subject.model_copy(update={"title": "模型"})
    path = tmp_path / "verdict.json"
    path.write_text(document.model_copy(update={"subject": subject}).to_json(), encoding="utf-8")
    done = run("report", str(path), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.startswith("\\u6a21\\u578b")


def test_the_schema_is_printed() -> None:
    assert json.loads(run("schema").stdout)["title"] == "Verdict of validator, schema 1.0"


def test_backends_lists_the_catalog_and_the_knobs_of_one() -> None:
    from validator.backends.catalog import CATALOG

    listed = run("backends").stdout
    assert [line.split()[0] for line in listed.splitlines()[1:]] == list(CATALOG)
    knobs = run("backends", "onnxruntime-gpu").stdout
    assert "use_tf32" in knobs
    assert "CUDAExecutionProvider" in knobs


def test_backends_shows_the_rows_of_a_policy(tmp_path: Path) -> None:
    text = 'required = ["eager-cpu", "mine"]\n[backends.mine]\nlike = "onnxruntime-cpu"\ngraph_optimization = "basic"\n'
    (tmp_path / "policy.toml").write_text(text)
    assert "mine " in run("backends", "--policy", "policy.toml", cwd=tmp_path).stdout.splitlines()[-1]
    knobs = run("backends", "mine", "--policy", "policy.toml", cwd=tmp_path).stdout
    assert "basic" in knobs
    unknown = run("backends", "mine", cwd=tmp_path)
    assert (unknown.returncode, unknown.stdout) == (2, "")


# --- Streams and signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["schema"], ["--help"], ["backends"], ["--version"]], ids=" ".join)
def test_a_full_standard_output_is_an_error_not_0(arguments: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert done.returncode == 3
    assert done.stderr.startswith("inconclusive[report]: standard output cannot be written: no space left")


def test_a_full_standard_error_changes_nothing() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([*PROGRAM, "chek"], stdout=subprocess.PIPE, stderr=full, check=False, timeout=60)
    assert done.returncode == 2


def test_a_closed_pipe_ends_quietly_and_is_neither_a_pass_nor_a_fail() -> None:
    with subprocess.Popen([*PROGRAM, "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 3


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_never_pass(closed: str) -> None:
    command = f"{sys.executable} -m validator backends {closed}"
    assert subprocess.run(["/bin/sh", "-c", command], check=False, timeout=60).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_signals_end_it_with_130(number: signal.Signals, tmp_path: Path) -> None:
    """Whatever it is doing: here it waits for a policy that never comes."""
    pipe = tmp_path / "policy.toml"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [*PROGRAM, "budget", "show", str(pipe)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        writer = _open_writer(pipe)
        process.send_signal(number)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            os.close(writer)
            process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert b"interrupted: nothing is cleared" in err


def _open_writer(pipe: Path) -> int:
    """Open a named pipe as soon as somebody reads it: then the command is running."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.05)
    raise TimeoutError


@pytest.mark.parametrize("group", ["guard", "key", "golden", "budget", "cache"])
def test_the_list_of_commands_of_a_group_cuts_no_sentence(group: str) -> None:
    shown = CliRunner().invoke(app, [group, "--help"]).output
    assert "..." not in shown.partition("Commands:")[2]
