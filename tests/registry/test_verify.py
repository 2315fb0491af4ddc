"""A clearance against MLflow itself: the bytes are hashed as they were when they were staged."""

from pathlib import Path

from tests.attest.world import GATE, NOW, predicate, refused
from tests.registry.conftest import MlflowWorld
from validator.attest.envelope import seal_statement
from validator.attest.keys import public_key_of
from validator.attest.statement import ModelBinding, OnnxBinding, make_statement
from validator.manifest import measure_folder
from validator.registry.interface import Annotation, resolve_text
from validator.verify import VerifyRequest, verify

FILES = {"MLmodel": b"flavors: {}\n", "data/model.pt2": b"weights"}


def test_a_clearance_in_the_run_is_found_and_holds_after_mlflows_own_download(
    embedded: MlflowWorld, name: str, tmp_path: Path
) -> None:
    import mlflow

    number = embedded.register(name, FILES)
    uri = f"models:/{name}/{number}"
    subject = resolve_text(embedded.registry, uri)
    staged = embedded.registry.stage(subject, tmp_path / "staged")
    exported = tmp_path / "onnx" / "model.onnx"
    exported.parent.mkdir()
    exported.write_bytes(b"graph")
    assert subject.creation_timestamp_ms is not None
    model = ModelBinding(
        registry_uri=subject.registry_uri,
        name=name,
        version=number,
        creation_timestamp_ms=subject.creation_timestamp_ms,
        digest=staged.manifest.digest,
        weights_digest=staged.weights_digest,
    )
    onnx = OnnxBinding(
        digest=measure_folder(exported.parent).digest,
        origin="torch.onnx.export(dynamo=True) by this check",
        source="exported",
    )
    clearance = tmp_path / "clearance.json"
    clearance.write_bytes(seal_statement(make_statement(predicate(model=model, onnx=onnx)), GATE))
    embedded.registry.annotate(
        Annotation(
            subject=subject,
            check_id="0123456789abcdef",
            verdict="pass",
            run_name="net v1 pass",
            description_block="pass",
            artifacts={"clearance.json": clearance, "onnx/model.onnx": exported},
        )
    )
    embedded.set_alias(name, "champion", number)
    request = VerifyRequest(uri=uri, keys=(public_key_of(GATE),), alias="champion")
    verification = verify(request, embedded.registry, NOW)
    assert [claim.message for claim in verification.claims if not claim.holds] == []
    assert verification.holds

    mlflow.set_tracking_uri(embedded.uri)
    downloaded = mlflow.artifacts.download_artifacts(uri, dst_path=str(tmp_path / "downloaded"))
    assert (Path(downloaded) / "registered_model_meta").is_file()
    (clearance.parent / "elsewhere").mkdir()
    by_folder = VerifyRequest(uri=downloaded, keys=(public_key_of(GATE),), clearance=clearance)
    assert verify(by_folder, None, NOW).holds
    (Path(downloaded) / "data/model.pt2").write_bytes(b"WEIGHTS")
    assert refused(verify(by_folder, None, NOW)) == ["bytes", "weights"]
