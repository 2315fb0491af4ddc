"""A signed check from end to end: what was checked is what verifies."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.check.conftest import Checker
from tests.fakes import FakeRegistry
from validator.attest.keys import KeyType, create_key_files, load_public_key
from validator.errors import KeyFileError
from validator.judge import Verdict
from validator.verify import VerifyRequest, verify


def test_a_signed_pass_verifies_until_a_byte_is_another(
    run: Checker, program: Path, registry: FakeRegistry, tmp_path: Path
) -> None:
    """The check exports the ONNX file itself, so it is found in the run, and beside the clearance."""
    key = tmp_path / "gate.key"
    create_key_files(key, KeyType.ED25519, {})
    result = run(program, sign_key=key, lifetime=timedelta(hours=1))
    assert result.verdict is Verdict.PASS
    assert result.clearance == tmp_path / "report" / "clearance.json"
    now, keys = datetime.now(UTC), (load_public_key(tmp_path / "gate.key.pub"),)
    for clearance in (None, result.clearance):
        verification = verify(VerifyRequest(uri="models:/net/1", keys=keys, clearance=clearance), registry, now)
        assert [claim.message for claim in verification.claims if not claim.holds] == []
        assert verification.holds
    with (tmp_path / "registered" / "data" / "model.pt2").open("ab") as stream:
        stream.write(b"!")
    verification = verify(VerifyRequest(uri="models:/net/1", keys=keys), registry, now)
    assert [claim.name for claim in verification.claims if not claim.holds] == ["bytes", "weights"]


def test_a_fail_is_not_signed_and_an_earlier_clearance_is_gone(
    run: Checker, program: Path, stale_onnx: Path, tmp_path: Path
) -> None:
    key = tmp_path / "gate.key"
    create_key_files(key, KeyType.P256, {})
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "clearance.json").write_text("{}")
    result = run(program, sign_key=key, onnx=str(stale_onnx))
    assert (result.verdict, result.clearance) == (Verdict.FAIL, None)
    assert not (tmp_path / "report" / "clearance.json").exists()


def test_a_key_that_cannot_be_used_ends_the_check_before_anything_is_touched(
    run: Checker, program: Path, registry: FakeRegistry, tmp_path: Path
) -> None:
    with pytest.raises(KeyFileError):
        run(program, sign_key=tmp_path / "gone.key")
    assert not (tmp_path / "report").exists()
    assert registry.annotations == {}
