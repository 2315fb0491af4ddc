"""Every format of every situation: complete, within the limits of where it goes, and deaf to what names say."""

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import jsonschema
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import (
    GPU,
    Situation,
    document_of,
    evidence_of,
    failing,
    failing_on_cpu,
    golden_dataset,
    passing,
    situations,
)
from tests.report.conftest import MatchSnapshot
from tests.report.hostile import NASTY_TEXT, poison, poisoned
from tests.report.test_terminal import hostile_documents
from validator.errors import UsageError
from validator.judge import Status, Verdict
from validator.policy import Policy
from validator.report.comment import COMMENT_LIMIT, marker, render_comment
from validator.report.formats import FILES, Format, Material, render, write_reports
from validator.report.github import (
    ANNOTATIONS_MAX,
    SUMMARY_LIMIT_BYTES,
    render_annotations,
    render_outputs,
    render_summary,
)
from validator.report.gitlab import render_code_quality
from validator.report.groups import first_step
from validator.report.junit import render_junit
from validator.report.model import VerdictDocument, WaiverRecord, WarningRecord
from validator.report.samples import COLUMNS, samples_table
from validator.report.sarif import render_sarif


def excused() -> VerdictDocument:
    """A fail that somebody answers for."""
    waiver = WaiverRecord(owner="Ada [x](http://evil)", reason="known\n::error::", ticket=None, expires="2026-12-31")
    document = failing_on_cpu()
    findings = tuple(
        f.model_copy(update={"status": Status.WAIVED, "waiver": waiver}) if f.status is Status.EXCEEDED else f
        for f in document.findings
    )
    return document.model_copy(update={"findings": findings, "verdict": Verdict.PASS})


DOCUMENTS = dict(situations()) | {"hostile": poisoned(), "waived": excused()}
SARIF_SCHEMA = json.loads((Path(__file__).parent / "schemas" / "sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
SARIF = jsonschema.Draft4Validator(SARIF_SCHEMA)


pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


@dataclass(frozen=True)
class AnyDocument:
    """A document that says in few words what it is made of."""

    document: VerdictDocument = field(repr=False)
    made_of: object


@st.composite
def any_document(draw: st.DrawFn) -> AnyDocument:
    if draw(st.booleans()):
        return AnyDocument(draw(hostile_documents()), "anything")
    name = draw(st.sampled_from(sorted(DOCUMENTS)))
    names = draw(st.lists(NASTY_TEXT, min_size=1, max_size=12))
    return AnyDocument(poison(DOCUMENTS[name], names), (name, names))


hostile = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], max_examples=20)


# --- Every format -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [f for f in Format if f not in (Format.CSV, Format.PARQUET)])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_document_alone_is_enough_and_gives_the_same_bytes_every_time(
    name: str, chosen: Format, tmp_path: Path
) -> None:
    material = Material(document=DOCUMENTS[name], folder=tmp_path)
    once = render(chosen, material)
    assert len(once) == len(FILES[chosen])
    assert render(chosen, material) == once


def test_files_that_two_formats_share_are_written_once(tmp_path: Path) -> None:
    material = Material(document=failing(), folder=tmp_path)
    written = write_reports([Format.JUNIT, Format.GITLAB], material, tmp_path / "ci")
    assert [path.name for path in written] == ["junit.xml", "gl-code-quality-report.json"]
    assert sorted(p.name for p in (tmp_path / "ci").iterdir()) == ["gl-code-quality-report.json", "junit.xml"]


@pytest.mark.parametrize("chosen", [Format.CSV, Format.PARQUET])
def test_formats_of_the_table_of_samples_say_when_it_is_not_there(chosen: Format, tmp_path: Path) -> None:
    material = Material(document=failing(), folder=tmp_path)
    with pytest.raises(UsageError, match=r"samples\.csv cannot be read"):
        render(chosen, material)
    (tmp_path / "samples.csv").write_text("backend,output\n")
    with pytest.raises(UsageError, match="not the table of samples"):
        render(chosen, material)


def test_parquet_holds_the_numbers_of_the_csv_typed(tmp_path: Path) -> None:
    policy = Policy(required=("eager-cpu", "onnxruntime-cpu"), batch_size=16)
    table = samples_table(policy, evidence_of(Situation()), golden_dataset())
    (tmp_path / "samples.csv").write_text(table)
    material = Material(document=passing(), folder=tmp_path)
    assert render(Format.CSV, material) == (table.encode(),)
    (content,) = render(Format.PARQUET, material)
    rows = pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist()
    lines = list(csv.DictReader(io.StringIO(table)))
    assert len(rows) == len(lines)
    assert tuple(rows[0]) == COLUMNS
    assert rows[0]["error_ratio"] is None  # the baseline has none
    assert [row["max_abs_error"] for row in rows] == [float(line["max_abs_error"]) for line in lines]
    assert [row["sample_id"] for row in rows] == [line["sample_id"] for line in lines]
    assert isinstance(rows[0]["top1_reference"], int)


# --- The comment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pass", "fail", "inconclusive-no-gpu", "refused", "waived"])
def test_comments_are_as_committed(name: str, match_snapshot: MatchSnapshot) -> None:
    match_snapshot(f"{name}.comment.md", render_comment(DOCUMENTS[name], report_url="https://ci.example/report.html"))


def test_a_comment_names_the_page_only_where_one_is_written(tmp_path: Path) -> None:
    material = Material(document=failing(), folder=tmp_path)
    page, comment = "`report.html` and `verdict.json` are among the artifacts", tmp_path / "comment.md"
    write_reports([Format.MD], material, tmp_path)
    assert page not in comment.read_text(encoding="utf-8")
    assert "`validator report --format html`" in comment.read_text(encoding="utf-8")
    write_reports([Format.MD, Format.HTML], material, tmp_path)
    assert page in comment.read_text(encoding="utf-8")
    write_reports([Format.MD], material, tmp_path)  # the page of the call before lies there
    assert page in comment.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_comment_and_summary_say_in_one_sentence_whether_the_model_may_be_promoted(name: str) -> None:
    document = DOCUMENTS[name]
    passes = document.verdict is Verdict.PASS
    said = "It may be promoted: " if passes else "It may not be promoted: "
    assert said in render_summary(document)
    is_short = passes and all(f.status is Status.WITHIN for f in document.findings)
    assert (said in render_comment(document)) is not is_short


def test_a_pass_says_how_to_promote_it_and_a_fail_how_to_mend_it() -> None:
    text, command = first_step(passing())
    assert text == "promote it with its clearance, which a check with --sign-key writes"
    assert command == "validator promote models:/alexnet/3 --alias ALIAS --key KEY.pub"
    text, command = first_step(failing_on_cpu())
    assert text is not None
    assert text.startswith("export the ONNX file again")
    assert command is not None
    assert command.endswith(" --onnx model.onnx")


def test_a_junit_failure_says_how_much_of_what_limit_in_its_message() -> None:
    root = ET.fromstring(render_junit(failing_on_cpu()))  # noqa: S314 - our own text
    messages = [e.get("message", "") for e in root.iter("failure") if e.get("type") == "error-ratio"]
    assert messages
    assert all(re.search(r": [\d,.]+ of [\d,.]+$", message) for message in messages)


@hostile
@given(made=any_document(), report_url=st.none() | NASTY_TEXT)
def test_any_comment_has_its_size_and_no_markup_of_others(made: AnyDocument, report_url: str | None) -> None:
    document = made.document
    text = render_comment(document, report_url=report_url)
    lines = text.split("\n")
    assert len(text) <= COMMENT_LIMIT
    assert lines[0] == marker(document)
    assert lines[2].startswith("### ")
    assert text.count("<!--") == 1
    assert_no_markup(text)


def assert_no_markup(text: str) -> None:
    """Nothing but our own tags, and no line that a runner would take for a command."""
    assert all(line.isprintable() and not line.lstrip().startswith("::") for line in text.split("\n"))
    assert "##[" not in text
    bare = re.sub(r"(?s)^(`{3,})sh\n.*?\n\1$", "", text, flags=re.MULTILINE)
    bare = re.sub(r"\\.|@&#8203;|`[^`\n]*`", "", bare)  # from the left: an escaped character, or a span of code
    bare = re.sub(r"</?(?:details|summary)>|<!-- [^>]* -->", "", bare)
    assert not re.search(r"[<>@`]", bare), bare
    assert not re.search(r"(?i)(?<!\()(?:https?|ftp)://", bare)


def test_models_whose_names_are_alike_have_comments_of_their_own() -> None:
    names = ["a b", "a-b", "a-b-c8687a08", "a/b", "a--b", "A-b", "-->", "", "é"]
    markers = {
        marker(d.model_copy(update={"subject": d.subject.model_copy(update={"name": name, "title": name})}))
        for d in [passing()]
        for name in names
    }
    assert len(markers) == len(names)
    assert all(re.fullmatch(r"<!-- validator:comment:[\w.-]* -->", m) and "--" not in m[4:-3] for m in markers)


# --- JUnit --------------------------------------------------------------------------------------------------------


def read_xml(text: str) -> ET.Element:
    return ET.fromstring(text.encode())  # noqa: S314 - we have just written it


@pytest.mark.parametrize("name", DOCUMENTS)
def test_junit_tells_failures_from_errors_and_has_every_finding(name: str) -> None:
    document = DOCUMENTS[name]
    root = read_xml(render_junit(document))
    statuses = [f.status for f in document.findings]
    assert int(root.attrib["tests"]) == len(root.findall("testsuite/testcase")) == len(statuses)
    assert int(root.attrib["failures"]) == len(root.findall(".//failure")) == statuses.count(Status.EXCEEDED)
    unknown = statuses.count(Status.NOT_MEASURED) + statuses.count(Status.REFUSED)
    assert int(root.attrib["errors"]) == len(root.findall(".//error")) == unknown
    assert int(root.attrib["skipped"]) == len(root.findall(".//skipped")) == statuses.count(Status.WAIVED)
    cases = [(case.attrib["classname"], case.attrib["name"]) for case in root.iter("testcase")]
    assert len(set(cases)) == len(cases)


@hostile
@given(made=any_document())
def test_any_document_is_xml_that_says_what_it_says(made: AnyDocument) -> None:
    document = made.document
    root = read_xml(render_junit(document))
    tags = {"testsuites", "testsuite", "testcase", "failure", "error", "skipped"}
    assert {element.tag for element in root.iter()} <= tags
    assert all(v.isprintable() for element in root.iter() for v in element.attrib.values())
    assert len(root.findall(".//failure")) == sum(f.status is Status.EXCEEDED for f in document.findings)


# --- SARIF --------------------------------------------------------------------------------------------------------


def sarif_results(document: VerdictDocument) -> list[dict[str, Any]]:
    log = json.loads(render_sarif(document))
    SARIF.validate(log)
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    return list(run["results"])


def test_numbers_are_no_code_scanning_alerts() -> None:
    assert sarif_results(failing()) == []
    assert sarif_results(passing()) == []


def test_what_is_refused_and_what_is_waived_is_scanned() -> None:
    (broken,) = sarif_results(DOCUMENTS["refused"])
    assert (broken["ruleId"], broken["level"]) == ("refused", "error")
    excused = sarif_results(DOCUMENTS["waived"])
    assert excused
    assert all(r["ruleId"] == "waived" and r["suppressions"][0]["status"] == "accepted" for r in excused)


def test_warnings_about_trust_are_scanned_and_point_to_the_policy() -> None:
    document = passing().model_copy(
        update={
            "warnings": (WarningRecord(code="sandbox", message="m [x](y)"), WarningRecord(code="batch", message="n")),
            "policy": passing().policy.model_copy(update={"origin": "gates/policy 1.toml"}),
        }
    )
    (result,) = sarif_results(document)
    location = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert (result["ruleId"], result["level"], location) == ("sandbox", "warning", "gates/policy%201.toml")
    assert result["message"]["text"].endswith(r"m \[x\](y)")


def test_a_warning_keeps_its_fingerprint_when_another_kind_comes_before_it() -> None:
    sandbox, batch = (WarningRecord(code=code, message="m") for code in ("sandbox", "batch"))
    alone, behind = (
        passing().model_copy(update={"warnings": warnings})
        for warnings in ((sandbox, sandbox), (batch, sandbox, sandbox))
    )
    alerts = [[r["partialFingerprints"] for r in sarif_results(document)] for document in (alone, behind)]
    assert alerts[0] == alerts[1]
    assert alerts[0][0] != alerts[0][1]
    assert [i["fingerprint"] for i in issues(alone)] == [i["fingerprint"] for i in issues(behind)][1:]


def test_models_whose_long_names_differ_in_the_middle_have_alerts_of_their_own() -> None:
    prints = set()
    for letter in "ab":
        subject = DOCUMENTS["refused"].subject.model_copy(update={"name": "x" * 150 + letter + "y" * 100})
        (result,) = sarif_results(DOCUMENTS["refused"].model_copy(update={"subject": subject}))
        prints.add(result["partialFingerprints"]["finding/v1"])
    assert len(prints) == 2


@pytest.mark.parametrize("origin", ["default", "/etc/policy.toml", "../policy.toml", "", "."])
def test_a_policy_that_is_no_file_of_the_repository_is_not_pointed_to(origin: str) -> None:
    refused = DOCUMENTS["refused"]
    document = refused.model_copy(update={"policy": refused.policy.model_copy(update={"origin": origin})})
    (result,) = sarif_results(document)
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "verdict.json"


@hostile
@given(made=any_document())
def test_any_document_is_a_log_of_the_schema(made: AnyDocument) -> None:
    document = made.document
    sarif_results(document)


# --- GitHub -------------------------------------------------------------------------------------------------------


@hostile
@given(made=any_document(), report_url=st.none() | NASTY_TEXT)
def test_any_summary_has_its_size_and_no_markup_of_others(made: AnyDocument, report_url: str | None) -> None:
    document = made.document
    text = render_summary(document, report_url=report_url)
    assert len(text.encode()) < SUMMARY_LIMIT_BYTES
    assert text.startswith("### ")
    assert_no_markup(text)


def test_a_summary_that_is_too_long_is_cut_between_sections_and_says_so() -> None:
    document = failing()
    many = tuple(replace_fingerprint(b, {f"key-{i}": "v" * 190 for i in range(900)}) for b in document.backends)
    text = render_summary(document.model_copy(update={"backends": many}))
    assert len(text.encode()) < SUMMARY_LIMIT_BYTES
    assert text.endswith("\n\ncut: 1 sections, see report.html\n")
    assert "worst samples" in text


def replace_fingerprint(backend: Any, fingerprint: dict[str, str]) -> Any:
    return backend.model_copy(update={"fingerprint": fingerprint})


@hostile
@given(made=any_document())
def test_annotations_are_ten_commands_at_most_and_each_is_one(made: AnyDocument) -> None:
    document = made.document
    lines = render_annotations(document).rstrip("\n").split("\n")
    assert 1 <= len(lines) <= ANNOTATIONS_MAX
    for line in lines:
        assert re.fullmatch(r"::(error|warning|notice) (file=[^:,]+,line=1,)?title=[^:,]*::.*", line), line
        assert line.isprintable()
        assert not re.search(r"%(?!25|0D|0A|3A|2C)", line)
    assert f"title=validator {document.verdict}::" in lines[0]


def test_the_first_annotation_has_the_counts_and_the_rest_are_groups() -> None:
    lines = render_annotations(failing()).splitlines()
    assert lines[0].startswith("::error title=validator fail::alexnet version 2: 13 of 136 findings exceeded, worst")
    assert lines[1].startswith("::error title=exceeded%3A weights::initialiser head.weight")
    assert render_annotations(passing()).startswith("::notice title=validator pass::")


@hostile
@given(made=any_document())
def test_no_name_sets_an_output(made: AnyDocument) -> None:
    document = made.document
    lines = render_outputs(document).rstrip("\n").split("\n")
    names = [line.split("=", 1)[0] for line in lines]
    assert len(names) == len(set(names)) == 9
    assert f"verdict={document.verdict}" in lines
    assert all(re.fullmatch(r"[a-z-]+=.*", line) and line.isprintable() for line in lines)


# --- GitLab -------------------------------------------------------------------------------------------------------


def issues(document: VerdictDocument) -> Iterator[dict[str, Any]]:
    for issue in json.loads(render_code_quality(document)):
        assert {"description", "check_name", "severity", "fingerprint", "location"} == set(issue)
        assert issue["severity"] in ("info", "minor", "major", "critical", "blocker")
        assert issue["location"]["lines"]["begin"] == 1
        assert issue["description"].isprintable()
        yield issue


def test_an_issue_keeps_its_fingerprint_when_only_numbers_and_versions_change() -> None:
    before = list(issues(failing()))
    other = failing()
    other = other.model_copy(
        update={
            "subject": other.subject.model_copy(update={"version": 9, "title": "alexnet version 9"}),
            "findings": tuple(
                f.model_copy(update={"measured": None if f.measured is None else f.measured * 2, "message": "other"})
                for f in other.findings
            ),
        }
    )
    after = list(issues(other))
    assert [i["fingerprint"] for i in before] == [i["fingerprint"] for i in after]
    assert [i["description"] for i in before] != [i["description"] for i in after]
    assert len({i["fingerprint"] for i in before}) == len(before) == 13


def test_another_model_has_other_fingerprints() -> None:
    one = {i["fingerprint"] for i in issues(failing())}
    situation = replace(GPU, model_name="vgg", outcomes={})
    document = document_of(situation).model_copy(update={"findings": failing().findings})
    assert one.isdisjoint(i["fingerprint"] for i in issues(document))


@hostile
@given(made=any_document())
def test_any_document_is_a_list_of_issues(made: AnyDocument) -> None:
    document = made.document
    for _ in issues(document):
        pass
