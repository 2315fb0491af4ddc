"""Checking again: what an earlier check proved is reused, every candidate is run, and the verdict says so."""

import json
from pathlib import Path

import pytest

from tests.check.conftest import POLICY, Checker
from validator.attest.envelope import read_envelope, read_statement, verify_signature
from validator.attest.keys import KeyType, create_key_files, load_public_key
from validator.cache.store import CachePlace
from validator.check import CheckResult
from validator.executors.local import LocalExecutor
from validator.judge import Verdict
from validator.report.annotation import description_block
from validator.report.terminal import render_terminal
from validator.worker.protocol import Job

LAXER = POLICY + '[[budget]]\nbackend = "onnxruntime-cpu"\nerror_ratio = 50.0\n'


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that workers got."""
    names: list[str] = []
    submit = LocalExecutor.submit

    def listen(executor: LocalExecutor, job: Job) -> None:
        names.append(job.job_id)
        submit(executor, job)

    monkeypatch.setattr(LocalExecutor, "submit", listen)
    return names


def evidence(result: CheckResult) -> dict[str, object]:
    """Everything that was measured and found; neither who, when and how fast, nor what the policy allows."""
    document = json.loads(result.document.to_json())
    for backend in document["backends"]:
        del backend["seconds"], backend["peak_memory_bytes"], backend["reused"]
    del document["onnx"]["reused"], document["export"]["path"]  # in the scratch folder of the one check and the other
    return {key: document[key] for key in ("subject", "onnx", "golden", "facts", "reference", "export", "weights")} | {
        key: document[key] for key in ("backends", "findings", "warnings", "control", "verdict")
    }


def test_a_second_check_runs_neither_the_reference_nor_the_export_again(
    run: Checker, program: Path, tmp_path: Path, submitted: list[str]
) -> None:
    """Three checks: one that computes everything, one that reuses, and one with another limit, signed."""
    place = CachePlace(folder=tmp_path / "cache", key_file=tmp_path / "cache.key")
    first = run(program, cache=place)
    assert submitted == ["probe", "reference", "eager-cpu", "export", "onnxruntime-cpu"]
    assert [backend.reused for backend in first.document.backends] == [None, None, None]

    submitted.clear()
    second = run(None, cache=place)
    assert submitted == ["probe", "eager-cpu", "onnxruntime-cpu"]
    assert evidence(second) == evidence(first)
    assert second.document.onnx is not None
    reused = second.document.backends[0].reused
    assert reused is not None
    assert (reused.check_id, reused.created_utc) == (first.document.check_id, first.document.created_utc)
    assert [backend.reused for backend in second.document.backends] == [reused, None, None]
    assert second.document.onnx.reused == reused
    said = f"reference and export of check {reused.check_id}, {reused.created_utc}"
    assert said in render_terminal(second.document, color=False, width=120, verbose=False)
    assert "reused: reference and export of check" in description_block(second.document, report_uri="verdict.json")

    submitted.clear()
    create_key_files(tmp_path / "gate.key", KeyType.ED25519, {})
    third = run(None, cache=place, policy=LAXER, sign_key=tmp_path / "gate.key")
    assert (third.verdict, submitted) == (Verdict.PASS, ["probe", "eager-cpu", "onnxruntime-cpu"])
    assert third.clearance is not None
    keys = (load_public_key(tmp_path / "gate.key.pub"),)
    statement = read_statement(verify_signature(read_envelope(third.clearance.read_bytes()), keys))
    assert [(r.what, r.check_id, r.created) for r in statement.predicate.reused] == [
        ("reference", reused.check_id, reused.created_utc),
        ("export", reused.check_id, reused.created_utc),
    ]
