"""One function from bytes to nothing for each reader of bytes that somebody else wrote.

A reader may raise what its `Target` declares. Anything else that comes out is a fault of the program: another
exception, an assertion of the target about what was accepted, too much time or too much memory.
"""

import contextlib
import io
import json
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from token import NAME
from tokenize import tokenize
from xml.etree import ElementTree as ET

from cryptography.hazmat.primitives.asymmetric import ed25519

from validator.attest.bundle import read_bundle, read_signatory
from validator.attest.canonical import write_canonical
from validator.attest.envelope import read_statement
from validator.attest.judgement import judge_statement
from validator.attest.keys import Ed25519Signer, public_key_of
from validator.attest.statement import Statement
from validator.backends.catalog import BASELINE, CATALOG
from validator.backends.interface import BackendRefusal
from validator.backends.onnx_file import open_onnx, paired_biases, read_constants, vet_onnx
from validator.backends.pt2_file import vet_pt2
from validator.contents import identify
from validator.errors import (
    BackendError,
    ClearanceRefused,
    GoldenError,
    IntegrityError,
    PolicyError,
    UriError,
    UsageError,
)
from validator.golden.arrays import read_npy, read_npz, read_safetensors
from validator.golden.dataset import GoldenDataset, open_golden
from validator.golden.format import MANIFEST_NAME
from validator.golden.images import read_images
from validator.golden.input_example import read_input_example
from validator.golden.output_spec import read_outputs
from validator.golden.sample import Sample
from validator.golden.writer import write_golden
from validator.policy import Limits, Policy, parse_policy
from validator.policy_diff import diff_policies, lint_policy, loosens
from validator.report.formats import Format, Material, render
from validator.report.model import read_document
from validator.report.terminal import render_last_line, render_terminal
from validator.subject import format_model_uri, parse_model_uri, read_model_data
from validator.verify import open_clearance
from validator.worker.frames import LENGTH, check_frame, prefix_bytes
from validator.worker.intake import Intake
from validator.worker.protocol import (
    ExportJob,
    Job,
    Pass,
    PassKind,
    ProbeJob,
    ProtocolError,
    RunJob,
    SurveyJob,
    WeightsJob,
)
from validator.worker.spool import Spool, SpooledFrame

CORPUS = Path(__file__).with_name("corpus")


@dataclass(frozen=True, kw_only=True)
class Target:
    """One reader."""

    name: str
    read: Callable[[bytes], None]
    declared: tuple[type[Exception], ...]
    """How it may say no."""

    def run(self, data: bytes) -> bool:
        """Read, and say whether the bytes were accepted. Raises what is a fault of the program."""
        try:
            self.read(data)
        except self.declared:
            return False
        return True

    def seeds(self) -> dict[str, bytes]:
        """Return the corpus by file name: valid documents, and what was once read wrongly."""
        return {path.name: path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())}


TARGETS: dict[str, Target] = {}


def target(*declared: type[Exception]) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Enter a function into `TARGETS` under its name."""

    def enter(read: Callable[[bytes], None]) -> Callable[[bytes], None]:
        name = read.__name__.removeprefix("read_").replace("_", "-")
        TARGETS[name] = Target(name=name, read=read, declared=declared)
        return read

    return enter


@contextlib.contextmanager
def folder_of(**files: bytes) -> Iterator[Path]:
    """Write files into a folder of their own; two underscores in a name stand for the dot."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        for key, data in files.items():
            (folder / key.replace("__", ".")).write_bytes(data)
        yield folder


@contextlib.contextmanager
def accepted() -> Iterator[None]:
    """Allow nothing any more: what was accepted may not be refused by what comes after."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"accepted, and then {type(error).__name__}: {error}") from error


def text_of(data: bytes) -> str:
    """Return text, whatever the bytes are: a command line can hold anything, too."""
    return data.decode("utf-8", errors="replace")


# --- What names a model -------------------------------------------------------------------------------------------


@target(UriError)
def read_model_uri(data: bytes) -> None:
    """Read a model URI. An accepted one has a canonical text that means the same."""
    uri = parse_model_uri(text_of(data))
    with accepted():
        canonical = format_model_uri(uri)
        assert parse_model_uri(canonical) == uri, canonical
        assert format_model_uri(parse_model_uri(canonical)) == canonical


@target(IntegrityError)
def read_mlmodel(data: bytes) -> None:
    """Read MLmodel. What it says lies within the model."""
    with folder_of(MLmodel=data) as folder:
        found = read_model_data(folder)
        if found is not None:
            assert (folder / found).resolve().is_relative_to(folder.resolve()), found


@target(GoldenError)
def read_model_input_example(data: bytes) -> None:
    """Read MLmodel and the input example that it names, with a zero byte between, and make a dataset of it."""
    model, _, example = data.partition(b"\0")
    with folder_of(MLmodel=model, input_example__json=example) as folder:
        _write_and_open(read_input_example(folder, input_name="input"), folder / "golden")


# --- What decides -------------------------------------------------------------------------------------------------


@target(PolicyError, BackendError)
def read_policy(data: bytes) -> None:
    """Read a policy. An accepted one has positive finite limits for everything, and is itself."""
    policy = parse_policy(text_of(data), origin="policy.toml")
    with accepted():
        _check_policy(policy)
        assert not diff_policies(policy, policy)
        assert Policy.model_validate(policy.model_dump()) == policy


@target(PolicyError, BackendError)
def read_two_policies(data: bytes) -> None:
    """Compare two policies with a zero byte between. What is not called looser has no looser limit."""
    texts = [text_of(part) for part in data.split(b"\0", 1)]
    old, new = (parse_policy(text, origin="policy.toml") for text in (texts[0], texts[-1]))
    with accepted():
        _compare_policies(old, new)


def _compare_policies(old: Policy, new: Policy) -> None:
    if loosens(diff_policies(old, new)):
        return
    assert set(old.required) <= set(new.required)
    assert new.samples_min >= old.samples_min
    assert {(w.check, w.backend, w.output) for w in new.waiver} <= {(w.check, w.backend, w.output) for w in old.waiver}
    names = {b.output for b in (*old.budget, *new.budget)} | {"an output without a budget"}
    for row in CATALOG.values():
        for output in names - {None}:
            before, after = old.limits_for(row, str(output)), new.limits_for(row, str(output))
            assert all(getattr(after, k) <= getattr(before, k) for k in Limits.model_fields), (row.name, output)


def _check_policy(policy: Policy) -> None:
    """Look at everything that a check would look at."""
    today = date(2026, 12, 1)
    assert policy.required
    assert set(policy.required) - {BASELINE}
    assert policy.digest.startswith("sha256:")
    assert policy.digest == policy.model_copy(update={"calibration": policy.calibration}).digest
    for row in (*CATALOG.values(), *policy.rows.values()):
        for output in {b.output or "any" for b in policy.budget} | {"any"}:
            limits = policy.limits_for(row, output).model_dump().values()
            assert all(math.isfinite(limit) and limit > 0 for limit in limits)
    for limit in (policy.worker.deadline_s, policy.decisions.flip_rate, policy.decisions.accuracy_drop):
        assert limit is None or (math.isfinite(limit) and limit >= 0)
    for waiver in policy.waiver:
        assert type(waiver.expires) is date
        assert waiver.state(today) is not None
    assert all(isinstance(line, str) for line in lint_policy(policy, today))


@target(GoldenError)
def read_output_declarations(data: bytes) -> None:
    """Read what outputs are declared to mean."""
    with folder_of(outputs__toml=data) as folder:
        for spec in read_outputs(folder / "outputs.toml").values():
            assert spec.period is None or (math.isfinite(spec.period) and spec.period > 0)


# --- What was decided ---------------------------------------------------------------------------------------------


@target(UsageError)
def read_verdict(data: bytes) -> None:
    """Read a verdict. An accepted one is written as it was meant, and printing it is harmless."""
    document = read_document(data, origin="verdict.json")
    with accepted():
        text = document.to_json()
        assert read_document(text, origin="verdict.json").to_json() == text
        for shown in (
            render_last_line(document, color=False),
            render_terminal(document, color=False, width=80, verbose=False),
            render_terminal(document, color=False, width=80, verbose=True),
        ):
            unprintable = {character for character in shown if not character.isprintable()} - {"\n"}
            assert not unprintable, unprintable


REPORTS = (Format.HTML, Format.MD, Format.JUNIT, Format.SARIF, Format.GITHUB, Format.GITLAB)


@target(UsageError)
def read_verdict_for_reports(data: bytes) -> None:
    """Render a verdict in every other format. XML and JSON can be read, and only our own lines are commands."""
    document = read_document(data, origin="verdict.json")
    with accepted():
        material = Material(document=document, folder=Path("/nowhere"))
        files = {f"{kind}/{n}": content for kind in REPORTS for n, content in enumerate(render(kind, material))}
        assert ET.fromstring(files["junit/0"]).tag == "testsuites"
        assert json.loads(files["sarif/0"])["version"] == "2.1.0"
        assert isinstance(json.loads(files["gitlab/1"]), list)
        assert files["html/0"].count(b"<script") == files["html/0"].count(b"</script")
        commands = ("::error", "::warning", "::notice")
        assert all(line.startswith(commands) for line in files["github/1"].decode().splitlines() if line)


GATE = Ed25519Signer(key=ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
"""The key that signed `corpus/clearance/signed.json`."""


@cache
def _signed() -> bytes:
    return (CORPUS / "clearance/signed.json").read_bytes()


@target()
def read_clearance(data: bytes) -> None:
    """Open a clearance. Only the bytes that were signed are believed."""
    statement, claims = open_clearance(data, (public_key_of(GATE),))
    assert claims
    assert (statement is not None) == all(claim.holds for claim in claims)
    assert statement is None or data == _signed(), "bytes verify that were never signed"


@target(ClearanceRefused)
def read_keyless_bundle(data: bytes) -> None:
    """Read a bundle and whom it names, before anything is verified. It has one text, and convinces nobody."""
    bundle = read_bundle(data)
    assert write_canonical(bundle) == data
    statement, claims = open_clearance(data, (public_key_of(GATE),))
    assert statement is None
    assert not claims[-1].holds
    signatory = read_signatory(bundle)
    assert signatory.identity
    assert signatory.issuer


@target(ClearanceRefused)
def read_signed_statement(data: bytes) -> None:
    """Read a payload as if its signature had been verified. It has one text, and can be judged at any time."""
    statement = read_statement(data)
    with accepted():
        _judge_statement(statement, data)


def _judge_statement(statement: Statement, data: bytes) -> None:
    assert write_canonical(statement) == data
    for now in (datetime.min.replace(tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)):
        claims = list(judge_statement(statement, now))
        assert {"verdict", "checks", "created", "expires"} <= {claim.name for claim in claims}


# --- What a worker says -------------------------------------------------------------------------------------------

_NONCE = "0" * 32
_SAMPLES = 4
_COMMON = {"job_id": "job", "nonce": _NONCE, "model_path": "model.pt2", "model_format": "torch.export", "threads": 1}
_GOLDEN = {**_COMMON, "golden_path": "golden", "golden_digest": "sha256:" + "0" * 64}
JOBS: dict[bytes, Job] = {
    b"r": RunJob.model_validate(
        {
            **_GOLDEN,
            "backend": CATALOG["onnxruntime-cpu"],
            "passes": [Pass(kind=PassKind.MAIN, batch_size=2, ranges=((0, _SAMPLES),))],
            "input_names": ["x"],
        }
    ),
    b"p": ProbeJob.model_validate(_GOLDEN),
    b"s": SurveyJob.model_validate({**_GOLDEN, "samples": 4, "peaks_per_layer": 1, "margins_per_output": 1}),
    b"e": ExportJob.model_validate({**_GOLDEN, "export_path": "model.onnx"}),
    b"w": WeightsJob.model_validate({**_COMMON, "onnx_path": "model.onnx"}),
}
"""First byte of a stream -> the job that it answers."""


@target(ProtocolError)
def read_worker_stream(data: bytes) -> None:
    """Take a worker's messages. In whatever pieces they come the answer is the same, and what is taken can be read."""
    job, stream = JOBS.get(data[:1], JOBS[b"r"]), data[1:]
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        whole, parts = Path(name, "whole"), Path(name, "parts")
        refusals: list[str | None] = []
        for path, size in ((whole, max(len(stream), 1)), (parts, 7)):
            refusals.append(_feed(job, stream, path, size))
        assert refusals[0] == refusals[1], refusals
        assert whole.read_bytes()[: parts.stat().st_size] == parts.read_bytes()[: whole.stat().st_size]
        if refusals[0] is not None:
            raise ProtocolError(refusals[0])


def _feed(job: Job, stream: bytes, path: Path, size: int) -> str | None:
    """Return why a stream was refused, if it was."""
    with path.open("wb") as spool:
        intake = Intake(job, spool, spool_limit_bytes=1 << 20)
        try:
            for start in range(0, len(stream), size):
                intake.feed(stream[start : start + size])
            intake.check_end()
        except ProtocolError as error:
            return str(error)
    if intake.last is not None:
        assert intake.last.nonce == _NONCE
    with accepted():
        _read_spool(Spool(path=path, frames=tuple(intake.frames)))
    return None


def _read_spool(spool: Spool) -> None:
    for pass_name in spool.passes():
        for header, outputs in spool.read_pass(pass_name):
            assert outputs.keys() == header.dtypes.keys()


@target(ProtocolError)
def read_frame(data: bytes) -> None:
    """Check a frame. Afterwards reading the whole cannot fail."""
    end = prefix_bytes(data[: LENGTH.size], len(data))
    header = check_frame(data[:end], len(data))
    with folder_of(spool=data) as folder, accepted():
        frame = SpooledFrame(header=header, offset=0, length=len(data))
        _read_spool(Spool(path=folder / "spool", frames=(frame,)))


# --- What goes in -------------------------------------------------------------------------------------------------

SHARD = "shard__safetensors"


@target(GoldenError, IntegrityError)
def read_golden_dataset(data: bytes) -> None:
    """Open a dataset of a manifest and one shard, with a zero byte between. What opens can be read to its end."""
    manifest, _, shard = data.partition(b"\0")
    with folder_of(**{MANIFEST_NAME: manifest, SHARD: shard}) as folder:
        dataset = open_golden(folder, verify=False)  # else no changed shard would be looked at
        with accepted():
            _read_to_its_end(dataset)


def _read_to_its_end(dataset: GoldenDataset) -> None:
    assert dataset.samples == len(dataset.strata)
    assert dataset.sample_id(dataset.samples - 1)
    for start, stop in dataset.batches(0, dataset.samples, max(1, dataset.samples // 4)):
        found = dataset.read_torch(start, stop)
        assert all(len(tensor) == stop - start for tensor in found.values())
        if all(spec.dtype != "bfloat16" for spec in dataset.inputs):
            assert dataset.read(start, stop).keys() == found.keys()
    dataset.read_labels()


@target(GoldenError)
def read_npz_source(data: bytes) -> None:
    """Read an archive of arrays, and make a dataset of it."""
    with folder_of(source__npz=data) as folder:
        _write_and_open(read_npz(folder / "source.npz"), folder / "golden")


@target(GoldenError)
def read_npy_source(data: bytes) -> None:
    """Read an array, and make a dataset of it."""
    with folder_of(source__npy=data) as folder:
        _write_and_open(read_npy(folder / "source.npy", input_name="x"), folder / "golden")


@target(GoldenError)
def read_safetensors_source(data: bytes) -> None:
    """Read tensors, and make a dataset of them."""
    with folder_of(source__safetensors=data) as folder:
        _write_and_open(read_safetensors(folder / "source.safetensors"), folder / "golden")


@target(GoldenError)
def read_image(data: bytes) -> None:
    """Decode an image."""
    with folder_of(image__png=data) as folder:
        (sample,) = read_images(folder, input_name="x", transforms=None)
        assert sample.inputs["x"].shape[0] == 3


def _write_and_open(samples: Iterator[Sample], folder: Path) -> None:
    dataset = write_golden(folder, samples, name="fuzz", source="fuzz")
    assert open_golden(folder) == dataset


@target()
def read_file_kind(data: bytes) -> None:
    """Say what a file is. Whatever it is, that can be said, and its name says nothing that it does not say itself."""
    with folder_of(model__bin=data, model=data) as folder:
        assert identify(folder / "model.bin") is identify(folder / "model")


# --- What runs ----------------------------------------------------------------------------------------------------


@target(BackendRefusal)
def read_onnx(data: bytes) -> None:
    """Vet an ONNX file that has a file of 64 bytes beside it, and read the constants of one that is let through."""
    with folder_of(model__onnx=data, w__data=bytes(64)) as folder:
        facts = vet_onnx(folder / "model.onnx")
        with accepted():
            assert facts.nodes > 0
            model = open_onnx(folder / "model.onnx")
            assert all(isinstance(tensor.name, str) for tensor in read_constants(model))
            paired_biases(model)


@target(BackendRefusal)
def read_pt2(data: bytes) -> None:
    """Vet an archive."""
    with folder_of(model__pt2=data) as folder:
        facts = vet_pt2(folder / "model.pt2")
        assert all(name.startswith(("torch.", "_operator.", "math.")) for name in facts.operators)


@cache
def _records() -> dict[str, bytes]:
    with zipfile.ZipFile(CORPUS / "pt2/program.pt2") as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


@target(BackendRefusal)
def read_pt2_record(data: bytes) -> None:
    """Vet a sound archive with one record replaced or added: its name, a line feed, its content."""
    name, _, content = data.partition(b"\n")
    root = next(iter(_records())).partition("/")[0]
    records = _records() | {f"{root}/{text_of(name)}": content}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for path, record in records.items():
            archive.writestr(path, record)
    read_pt2(stream.getvalue())


@target(BackendRefusal)
def read_pt2_expression(data: bytes) -> None:
    """Vet an expression within a program. Nothing in an accepted one is a way out of arithmetic."""
    document = json.loads(_records()[next(name for name in _records() if name.endswith("models/model.json"))])
    text = text_of(data)
    document["range_constraints"] = {text: {}}
    read_pt2_record(b"models/model.json\n" + json.dumps(document).encode())
    words = [word.string for word in tokenize(io.BytesIO(text.strip().encode()).readline) if word.type == NAME]
    assert not {"lambda", "import", "await", "yield", "eval", "exec", "open", "getattr"} & set(words[1:]), text
    assert not [word for word in words if word.startswith("__")], text
