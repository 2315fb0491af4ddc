"""`validator budget` and `validator calibrate`: exit codes, and what they say."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import validator.calibrate
from validator.boundary import run
from validator.calibrate import CalibrationRefused, CalibrationRequest, CalibrationResult, Measured
from validator.cli.budget import budget
from validator.cli.calibrate import calibrate
from validator.policy import BUILT_IN

HEAD = 'required = ["eager-cpu", "onnxruntime-cpu"]\n'
BUDGET = '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = {}\n'
BINDING = '[calibration]\nweights = "sha256:{}"\n'


@pytest.fixture
def write(tmp_path: Path):
    def writer(name: str, text: str) -> str:
        (tmp_path / name).write_text(HEAD + text, encoding="utf-8")
        return str(tmp_path / name)

    return writer


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = int(run(lambda: budget, list(words), debug=False))
    return code, *capsys.readouterr()


def test_a_loosened_budget_exits_1_and_stands_first(write, capsys) -> None:
    old = write("old.toml", BUDGET.format(3))
    new = write("new.toml", "samples_min = 9\n" + BUDGET.format(4))
    code, out, err = said(capsys, "diff", old, new)
    assert code == 1
    assert out.startswith("loosened   budget.onnxruntime-cpu.error_ratio: 3.0 -> 4.0\n")
    assert out.splitlines()[-1].startswith("loosened: ")
    assert "not both" not in err


def test_a_tightened_budget_exits_0(write, capsys) -> None:
    code, out, _ = said(capsys, "diff", write("old.toml", BUDGET.format(4)), write("new.toml", BUDGET.format(3)))
    assert code == 0
    assert "tightened  budget.onnxruntime-cpu.error_ratio: 4.0 -> 3.0" in out


def test_equal_policies_exit_0_and_have_no_change(write, capsys) -> None:
    code, out, _ = said(capsys, "diff", write("old.toml", ""), write("new.toml", "# a comment\n"))
    assert (code, out) == (0, "nothing is loosened: 0 changes\n")


@pytest.mark.parametrize(("weights", "options"), [("b", ()), ("a", ("--model-changed",)), ("b", ("--model-changed",))])
def test_a_model_and_a_looser_budget_in_one_change_are_called_out(write, capsys, weights, options) -> None:
    old = write("old.toml", BUDGET.format(3) + BINDING.format("a"))
    new = write("new.toml", BUDGET.format(4) + BINDING.format(weights))
    code, _, err = said(capsys, "diff", old, new, *options)
    assert code == 1
    assert "one change may touch a model or loosen a policy, not both" in err


def test_another_model_with_the_same_budgets_exits_0(write, capsys) -> None:
    old, new = (write(f"{w}.toml", BUDGET.format(3) + BINDING.format(w)) for w in "ab")
    assert said(capsys, "diff", old, new, "--model-changed")[0] == 0


@pytest.mark.parametrize("text", [None, "required = [", BUDGET.format("inf"), BUDGET.format("nan"), "sandbox = true"])
@pytest.mark.parametrize("place", [0, 1])
def test_a_diff_with_a_file_that_cannot_be_read_exits_2(write, capsys, tmp_path, text, place) -> None:
    bad = str(tmp_path / "nowhere.toml") if text is None else write("bad.toml", text)
    files = ["cpu", "cpu"]
    files[place] = bad
    code, out, err = said(capsys, "diff", *files)
    assert code == 2
    assert err.startswith("error[policy]")
    assert out == ""


def test_lint_reads_every_file_and_exits_2_if_one_cannot_be_used(write, capsys) -> None:
    good = write("good.toml", BUDGET.format(3) + BINDING.format("a"))
    bad, worse = write("bad.toml", BUDGET.format(-1)), write("worse.toml", "foo = 1")
    code, out, err = said(capsys, "lint", bad, good, worse)
    assert code == 2
    assert out == f"{good}: can be used, 0 warnings\n"
    assert err.count("error[policy]") == 2
    assert "is not a limit that can fail" in err


def test_lint_warns_and_exits_0(write, capsys) -> None:
    soon = (datetime.now(UTC).date() + timedelta(days=3)).isoformat()
    waiver = '[[waiver]]\ncheck = "exact"\nbackend = "onnxruntime-cpu"\nowner = "Ada"\nreason = "x"\nexpires = '
    code, out, _ = said(capsys, "lint", write("p.toml", waiver + soon))
    assert code == 0
    assert "no calibration" in out
    assert f"expires on {soon}" in out


def test_lint_without_a_file_is_a_usage_error(capsys) -> None:
    assert said(capsys, "lint")[0] == 2


def test_show_prints_limits_bindings_waivers_and_the_digest(write, capsys) -> None:
    waiver = '[[waiver]]\ncheck = "exact"\nbackend = "onnxruntime-cpu"\nowner = "Ada\\u001b[31m"\nreason = "x"\n'
    path = write("p.toml", BUDGET.format(3) + waiver + "expires = 2026-12-31\n" + BINDING.format("a"))
    code, out, _ = said(capsys, "show", path)
    assert code == 0
    row = next(line for line in out.splitlines() if line.startswith("onnxruntime-cpu"))
    assert row.split()[:3] == ["onnxruntime-cpu", "any", "3"]
    assert row.endswith("budget")
    assert "measured on  weights sha256:a" in out
    assert "exact of onnxruntime-cpu: Ada" in out
    assert "\x1b" not in out
    assert "sha256:" in out.splitlines()[-1]


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_policies_can_be_shown(capsys, name) -> None:
    code, out, _ = said(capsys, "show", name)
    assert code == 0
    assert "default of ieee" in out


# --- calibrate ----------------------------------------------------------------------------------------------------

MEASURED = Measured(
    backend="onnxruntime-cpu",
    output="logits",
    error_ratio=12.0,
    largest=6.0,
    variant="as it is",
    families=0,
    default=10.0,
)


def calibrated(monkeypatch, result, *words: str) -> int:
    def use_case(request: CalibrationRequest, registry: object, progress: object) -> CalibrationResult:
        if isinstance(result, Exception):
            raise result
        return CalibrationResult(
            policy=BUILT_IN["cpu"], measured=result, path=request.output, left_out=("mine (deterministic): no GPU",)
        )

    monkeypatch.setattr(validator.calibrate, "calibrate", use_case)
    arguments = ["models:/a/3", "--tracking-uri", "sqlite:////nowhere.db", *words]
    return int(run(lambda: calibrate, arguments, debug=False))


def test_calibrate_prints_every_budget_and_warns_of_loose_ones(monkeypatch, capsys) -> None:
    assert calibrated(monkeypatch, (MEASURED,), "--output", "p.toml") == 0
    out, err = capsys.readouterr()
    assert "onnxruntime-cpu  logits        6  12  as it is; no other kernel family ran" in out
    assert out.splitlines()[-1].startswith("written: p.toml, 1 budgets, sha256:")
    assert "output logits: 12 is looser than the default 10" in err
    assert "left out: mine (deterministic): no GPU" in err


def test_a_refused_calibration_exits_3(monkeypatch, capsys) -> None:
    assert calibrated(monkeypatch, CalibrationRefused("no budget can be measured"), "--output", "p.toml") == 3
    assert "inconclusive[calibration]: no budget can be measured" in capsys.readouterr().err


def test_calibrate_asks_where_the_policy_goes(monkeypatch, capsys) -> None:
    assert calibrated(monkeypatch, ()) == 2
    assert "--output" in capsys.readouterr().err
