"""`validator check` over a use case that is a stand-in: what it is asked for, and what becomes of its result."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

import validator.check
from tests.builders import failing, inconclusive_crash, passing, refused
from validator.boundary import run
from validator.cache.store import CachePlace, open_store
from validator.check import CheckRequest, CheckResult
from validator.cli.cache import cache
from validator.cli.check import check
from validator.cli.options import hide_credentials
from validator.errors import AnnotationFailed, UriError
from validator.report.formats import Format
from validator.report.model import VerdictDocument, read_document

DOCUMENTS = {"pass": passing(), "fail": failing(), "inconclusive": inconclusive_crash(), "refused": refused()}


class FakeUseCase:
    """Returns a result, and keeps what it was asked for."""

    def __init__(self, document: VerdictDocument, error: AnnotationFailed | None = None) -> None:
        self.document = document
        self.error = error
        self.requests: list[CheckRequest] = []

    def __call__(self, request: CheckRequest, registry: object, progress: object) -> CheckResult:
        self.requests.append(request)
        return CheckResult(
            document=self.document,
            verdict=self.document.verdict,
            path=request.output / "verdict.json",
            annotation_error=self.error,
        )


def invoke(monkeypatch: pytest.MonkeyPatch, use_case: FakeUseCase, *arguments: str) -> int:
    monkeypatch.setattr(validator.check, "check", use_case)
    return int(
        run(lambda: check, ["models:/alexnet/3", "--tracking-uri", "sqlite:////nowhere.db", *arguments], debug=False)
    )


@pytest.mark.parametrize(("name", "code"), [("pass", 0), ("fail", 1), ("inconclusive", 3), ("refused", 4)])
def test_verdicts_become_exit_codes_and_the_last_line(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(monkeypatch, FakeUseCase(DOCUMENTS[name])) == code
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{name}: alexnet version")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_json_prints_exactly_the_document_whatever_the_verdict(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    invoke(monkeypatch, FakeUseCase(DOCUMENTS[name]), "--json")
    out, err = capsys.readouterr()
    assert read_document(out, origin="stdout") == DOCUMENTS[name]
    assert err.splitlines()[-1].startswith(f"{name}: ")


def test_quiet_prints_the_last_line_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    invoke(monkeypatch, FakeUseCase(failing()), "-q")
    out, err = capsys.readouterr()
    assert out == f"fail: {failing().headline}\n"
    assert err == ""


def test_options_reach_the_use_case(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_case = FakeUseCase(passing())
    invoke(
        monkeypatch, use_case, "--policy", "cpu", "--golden", "golden/", "--onnx", "m.onnx", "--backend", "cudnn-off",
        "--backend", "eager-cuda", "--output", str(tmp_path), "--no-annotate",
    )  # fmt: skip
    (request,) = use_case.requests
    assert (request.uri, request.policy, request.golden, request.onnx) == (
        "models:/alexnet/3",
        "cpu",
        "golden/",
        "m.onnx",
    )
    assert request.backends == ("cudnn-off", "eager-cuda")
    assert request.output == tmp_path
    assert not request.annotate


def test_formats_reach_the_use_case_and_a_misspelt_one_is_found_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_case = FakeUseCase(passing())
    invoke(monkeypatch, use_case, "--format", "junit, md")
    assert [r.formats for r in use_case.requests] == [(Format.JUNIT, Format.MD)]
    assert invoke(monkeypatch, use_case, "--format", "junit,mdd") == 2
    assert "no format mdd: did you mean md?" in capsys.readouterr().err
    assert invoke(monkeypatch, use_case, "--format", ",") == 2
    assert len(use_case.requests) == 1


def test_the_key_comes_from_the_option_or_its_variable_and_the_lifetime_is_a_week(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_case = FakeUseCase(passing())
    monkeypatch.delenv("VALIDATOR_SIGN_KEY", raising=False)
    invoke(monkeypatch, use_case)
    invoke(monkeypatch, use_case, "--sign-key", "gate.key", "--expires-in", "12h")
    monkeypatch.setenv("VALIDATOR_SIGN_KEY", "other.key")
    invoke(monkeypatch, use_case)
    invoke(monkeypatch, use_case, "--sign-key", "gate.key")
    assert [r.sign_key for r in use_case.requests] == [None, Path("gate.key"), Path("other.key"), Path("gate.key")]
    assert [r.lifetime for r in use_case.requests[:2]] == [timedelta(days=7), timedelta(hours=12)]
    assert invoke(monkeypatch, use_case, "--expires-in", "never") == 2


def test_the_cache_is_on_by_default_and_operational_variables_may_place_it_or_turn_it_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_case = FakeUseCase(passing())
    for name in ("CACHE", "CACHE_DOMAIN", "CACHE_KEY", "CACHE_SIZE", "NO_CACHE"):
        monkeypatch.delenv(f"VALIDATOR_{name}", raising=False)
    invoke(monkeypatch, use_case)
    invoke(monkeypatch, use_case, "--no-cache")
    options = ("--cache", "c", "--cache-domain", "main", "--cache-key", "k", "--cache-size", "1GB")
    invoke(monkeypatch, use_case, *options)
    for name, value in (("CACHE", "c"), ("CACHE_DOMAIN", "main"), ("CACHE_KEY", "k"), ("CACHE_SIZE", "1GB")):
        monkeypatch.setenv(f"VALIDATOR_{name}", value)
    invoke(monkeypatch, use_case)
    monkeypatch.setenv("VALIDATOR_NO_CACHE", "1")
    invoke(monkeypatch, use_case)
    named = CachePlace(folder=Path("c"), domain="main", key_file=Path("k"), size_bytes=10**9)
    assert [r.cache for r in use_case.requests] == [CachePlace(), None, named, named, None]
    assert invoke(monkeypatch, use_case, "--cache-domain", "../x") == 2
    assert invoke(monkeypatch, use_case, "--cache-size", "much") == 2


def test_the_cache_can_be_shown_and_cleared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(CachePlace(folder=tmp_path, key_file=tmp_path / "key"))
    assert store.save("a" * 64, [b"x" * 936])
    for command, said in (("show", "1 entries, 1,000 bytes"), ("clear", "1 entries removed, 0 left")):
        assert run(lambda: cache, [command, "--cache", str(tmp_path)], debug=False) == 0
        assert said in capsys.readouterr().out
    assert store.entries() == []
    (tmp_path / "file").touch()
    assert run(lambda: cache, ["show", "--cache", str(tmp_path / "file")], debug=False) == 3


def test_without_options_the_defaults_are_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    use_case = FakeUseCase(passing())
    invoke(monkeypatch, use_case)
    (request,) = use_case.requests
    assert (request.policy, request.annotate, request.backends) == ("default", True, ())
    assert request.output == Path("validator-report")


@pytest.mark.parametrize(("name", "code"), [("pass", 3), ("fail", 1), ("refused", 4)])
def test_a_failed_annotation_never_passes_and_never_hides_the_verdict(
    name: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use_case = FakeUseCase(DOCUMENTS[name], AnnotationFailed("MLflow does not answer", hint="annotating again is safe"))
    assert invoke(monkeypatch, use_case) == code
    out, err = capsys.readouterr()
    assert "inconclusive[annotate]: MLflow does not answer\n  annotating again is safe" in err
    assert out.splitlines()[-1].startswith(f"{name}: ")


def test_an_error_of_the_use_case_prints_no_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(request: CheckRequest, registry: object, progress: object) -> CheckResult:
        raise UriError("alexnet has no version 7", hint="versions 1, 2 and 3 exist")

    monkeypatch.setattr(validator.check, "check", fail)
    assert run(lambda: check, ["models:/alexnet/7", "--tracking-uri", "sqlite:////nowhere.db"], debug=False) == 2
    assert capsys.readouterr() == ("", "error[uri]: alexnet has no version 7\n  versions 1, 2 and 3 exist\n")


def test_environment_variables_set_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    from validator.cli.main import app

    use_case = FakeUseCase(failing())
    monkeypatch.setattr(validator.check, "check", use_case)
    for name in ("POLICY", "NO_ANNOTATE", "CHECK_POLICY", "CHECK_NO_ANNOTATE"):
        monkeypatch.setenv(f"VALIDATOR_{name}", "1")
    CliRunner().invoke(app, ["check", "models:/alexnet/3", "--tracking-uri", "sqlite:////nowhere.db"])
    (request,) = use_case.requests
    assert request.policy == "default"
    assert request.annotate


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("https://user:secret@mlflow.example/x", "https://***@mlflow.example/x"),
        ("--tracking-uri=postgresql://u:p@h/db", "--tracking-uri=postgresql://***@h/db"),
        ("models:/alexnet@champion", "models:/alexnet@champion"),
        ("https://mlflow.example/a@b", "https://mlflow.example/a@b"),
    ],
)
def test_the_recorded_command_holds_no_credentials(word: str, shown: str) -> None:
    assert hide_credentials(word) == shown
