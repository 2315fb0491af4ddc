"""Write the valid documents that fuzzing starts from: `python -m fuzz.make_corpus`.

Run it again after a format has changed. What a fuzzer found lies beside them under other names and stays.
"""

import io
import json
import pickle
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.numpy import save

from fuzz.targets import CORPUS, GATE
from tests import builders
from tests.attest.instance import Instance
from tests.attest.world import predicate
from validator.attest.canonical import write_canonical
from validator.attest.envelope import seal_statement
from validator.attest.statement import make_statement
from validator.backends.interface import Environment, ExportFacts, ModelFacts, SurveyFacts, TensorFacts, WeightsFacts
from validator.golden.format import GoldenManifest, Group, InputSpec, ShardFile, Stratum
from validator.worker.protocol import HEADER, Closing, FrameHeader, Refusal

URIS = (
    "models:/alexnet/3",
    "models:/alexnet@champion",
    "models:/alexnet/latest",
    "models:/m-0123456789abcdef",
    "runs:/0123456789abcdef/model/inner",
)

MLMODEL = """\
artifact_path: model
flavors:
  python_function:
    data: data
    loader_module: mlflow.pytorch
    env: {conda: conda.yaml, virtualenv: python_env.yaml}
  pytorch:
    code: null
    model_data: data
    pytorch_version: 2.14.1
model_size_bytes: 61100840
saved_input_example_info:
  artifact_path: input_example.json
  serving_input_path: serving_input_example.json
  type: ndarray
signature:
  inputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]'
  outputs: '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 2]}}]'
  params: null
utc_time_created: '2026-11-30 15:02:40.123456'
"""

POLICY = """\
required = ["eager-cpu", "onnxruntime-cpu", "mine"]
golden = "models:/golden/4"
golden_digest = "sha256:51aa07c2"
samples_min = 16
batch_size = 32
formats.pickle = false

[checks]
repeat_samples = 8
batch_sizes = [1, 2, 7]
batch_invariance = "if-dynamic"
reference = "fp64"

[decisions]
flip_rate = 0.1
accuracy_drop = 0.0

[worker]
deadline_s = 600.0
threads = 2

[backends.mine]
like = "eager-cuda"
summary = "my own"

[[budget]]
backend = "onnxruntime-cpu"
error_ratio = 3.5
error_ratio_element = 9.0

[[budget]]
backend = "onnxruntime-cpu"
output = "logits"
error_ratio = 4.0

[[waiver]]
check = "error-ratio"
backend = "onnxruntime-cpu"
owner = "ml-platform"
reason = "known"
ticket = "OPS-7"
expires = 2026-12-31

[calibration]
weights = "sha256:66"
golden = "sha256:55"
reference = "fp64"
environment.onnxruntime-cpu = { onnxruntime = "1.31.1", cpu = "x86_64" }

[calibration.provenance]
tool = "validator 0.1.0"
created_utc = "2026-11-30T15:02:00Z"
command = ["validator", "calibrate"]
variant = [{ backend = "onnxruntime-cpu", output = "logits", variant = "as it is", error_ratio = 0.9 }]
left_out = ["onednn: none"]
"""

OUTPUTS = """\
[heading]
period = 6.283185307179586
[boxes]
unordered = "rows"
with = ["classes"]
valid_mask = "mask"
[classes]
[best]
tie_break = "any"
scores = "logits"
[logits]
labelled = true
[level]
one_lsb = true
batched = false
"""


def write_corpus() -> None:
    """Write every document into the folder of its target."""
    for path, data in documents():
        (CORPUS / path).parent.mkdir(parents=True, exist_ok=True)
        (CORPUS / path).write_bytes(data)


def documents() -> Iterator[tuple[str, bytes]]:
    """Yield path and content."""
    yield from ((f"model-uri/{number}.txt", uri.encode()) for number, uri in enumerate(URIS))
    yield "mlmodel/pytorch.yaml", MLMODEL.encode()
    yield "model-input-example/array.bin", MLMODEL.encode() + b"\0[[0.5, 1.5], [2.5, null]]"
    yield "policy/full.toml", POLICY.encode()
    yield "policy/small.toml", b'required = ["eager-cpu", "onnxruntime-cpu"]\n'
    yield "two-policies/full.bin", POLICY.encode() + b"\0" + POLICY.replace("3.5", "3.25").encode()
    yield "two-policies/small.bin", b"samples_min = 8\n\0samples_min = 9\n"
    yield "output-declarations/full.toml", OUTPUTS.replace("[classes]\n", "").encode()
    for name in ("verdict", "verdict-for-reports"):
        yield f"{name}/fail.json", builders.failing_on_cpu().to_json().encode()
    yield "verdict/pass.json", builders.document_of(builders.Situation()).to_json().encode()
    yield "clearance/signed.json", seal_statement(make_statement(predicate()), GATE)
    with tempfile.TemporaryDirectory() as folder:
        yield "keyless-bundle/signed.json", Instance(Path(folder)).sign(write_canonical(make_statement(predicate())))
    yield "signed-statement/statement.json", write_canonical(make_statement(predicate()))
    yield from ((f"worker-stream/{name}.bin", data) for name, data in streams())
    yield "frame/two-outputs.bin", frame(0, 4)
    yield from ((f"golden-dataset/{name}.bin", data) for name, data in datasets())
    yield from ((f"npz-source/{name}.npz", data) for name, data in archives())
    yield "npy-source/floats.npy", array_file(np.arange(6, dtype=np.float32).reshape(3, 2))
    yield "safetensors-source/two.safetensors", save({"x": np.ones((2, 3), np.float32), "y": np.zeros(2, np.int64)})
    yield from ((f"image/{name}", data) for name, data in images())
    yield from ((f"onnx/{name}.onnx", model.SerializeToString()) for name, model in onnx_models())
    program = exported_program()
    yield "file-kind/program.zip", program
    yield "file-kind/model.onnx", next(model.SerializeToString() for _, model in onnx_models())
    yield "file-kind/tensors.safetensors", save({"x": np.ones((2, 3), np.float32)})
    yield "file-kind/pickle.pkl", pickle.dumps([1, 2], protocol=0)
    yield "file-kind/text.txt", b"#!/bin/sh\n"
    yield "pt2/program.pt2", program
    yield from ((f"pt2-record/{name}.bin", data) for name, data in records(program))
    for number, text in enumerate(("s77", "2*s77 + 1", "Eq(Mod(s77, 2), 0)", "Max(1, s77 - 3) <= 8", "sym_max(s0, 1)")):
        yield f"pt2-expression/{number}.txt", text.encode()


def frame(start: int, stop: int) -> bytes:
    """Return the first samples of a pass as a worker packs them."""
    count = stop - start
    header = FrameHeader(pass_name="main", start=start, stop=stop, dtypes={"y": "float32", "z": "complex128"})
    return save(
        {"y": np.ones((count, 2), np.float32), "z": np.ones((count, 2), np.float64)},
        metadata={"frame": header.model_dump_json()},
    )


def streams() -> Iterator[tuple[str, bytes]]:
    """Yield what an honest worker answers to each kind of job."""

    def message(kind: bytes, payload: bytes | str) -> bytes:
        data = payload if isinstance(payload, bytes) else payload.encode()
        return HEADER.pack(kind, len(data)) + data

    def closing(**frames: int) -> bytes:
        environment = Environment(settings={"threads": 1}, fingerprint={"torch": "2.14.1"})
        return message(
            b"C",
            Closing(
                job_id="job",
                nonce="0" * 32,
                frames=frames,
                environment=environment,
                seconds={"load": 0.5},
                peak_memory_bytes=1,
            ).model_dump_json(),
        )

    facts = ModelFacts(
        inputs=(TensorFacts(name="x", dtype="float32", shape=(None, 2)),),
        outputs=("y",),
        static_batch=None,
        training=(),
        parameter_dtypes={"float32": 6},
    )
    weights = WeightsFacts.model_validate({
        "equal": 2, "rearranged": 0, "folded": 0, "converted": 0, "differing": 0, "differences": [], "unexplained": 0,
        "unexplained_names": [], "tensors": 2, "missing": 0, "missing_names": [],
    })  # fmt: skip
    survey = SurveyFacts.model_validate(
        {"model": facts, "sizes": {"x": ()}, "layers": (), "margins": (), "refused": ((1, "too wide"),)}
    )
    refusal = Refusal.model_validate(
        {"job_id": "job", "nonce": "0" * 32, "kind": "model", "stage": "run", "message": "no such operator"}
    )
    yield "run", b"r" + message(b"F", frame(0, 2)) + message(b"F", frame(2, 4)) + closing(main=2)
    yield "probe", b"p" + message(b"P", facts.model_dump_json()) + closing()
    yield "weights", b"w" + message(b"W", weights.model_dump_json()) + closing()
    yield "survey", b"s" + message(b"S", survey.model_dump_json()) + closing()
    export = ExportFacts(path="model.onnx", message="opset 20").model_dump_json()
    yield "export", b"e" + message(b"E", export) + message(b"W", weights.model_dump_json()) + closing()
    yield "refusal", b"r" + message(b"X", refusal.model_dump_json())


def datasets() -> Iterator[tuple[str, bytes]]:
    """Yield manifest and shard of small datasets."""
    for dtype in ("float32", "bfloat16"):
        stored = {"float32": "F32", "bfloat16": "BF16"}[dtype]
        width = {"F32": 4, "BF16": 2}[stored]
        header = {
            "__labels__": {"dtype": "I64", "shape": [4], "data_offsets": [0, 32]},
            "x": {"dtype": stored, "shape": [4, 2], "data_offsets": [32, 32 + 8 * width]},
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        shard = struct.pack("<Q", len(text)) + text + bytes(32 + 8 * width)
        manifest = GoldenManifest(
            name="alexnet",
            inputs=[InputSpec(name="x", dtype=dtype)],
            samples=4,
            groups=[Group(shard="shard.safetensors", start=0, stop=4, shapes={"x": [2]})],
            sample_ids=["a", "b", "c", "d"],
            labels=True,
            slices={"night": [1, 2]},
            strata={Stratum.SCALES: [3]},
            source="photos",
            files=[ShardFile(path="shard.safetensors", size_bytes=len(shard), sha256="5" * 64)],
        )
        yield dtype, manifest.canonical_text().encode() + b"\0" + shard


def array_file(array: np.ndarray) -> bytes:
    """Return an array as `.npy`."""
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def archives() -> Iterator[tuple[str, bytes]]:
    """Yield arrays as `.npz`, stored and deflated."""
    arrays = {"x": np.ones((2, 3), np.float32), "y": np.zeros((2, 1), np.int64), "labels": np.arange(2)}
    for name, write in (("stored", np.savez), ("deflated", np.savez_compressed)):
        stream = io.BytesIO()
        write(stream, **arrays)
        yield name, stream.getvalue()


def images() -> Iterator[tuple[str, bytes]]:
    """Yield a small image in every format that is read."""
    image = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for suffix in ("png", "jpeg", "webp", "bmp", "tiff"):
        stream = io.BytesIO()
        image.save(stream, suffix)
        yield f"small.{suffix}", stream.getvalue()


def onnx_models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield small models: weights within and beside, a subgraph, a function, a flag of Dropout."""
    weight = numpy_helper.from_array(np.ones(2, np.float32), "w")
    outside = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16])
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.data"), ("offset", "0"), ("length", "64")):
        outside.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 2]) for name in "xy")
    add = helper.make_node("Add", ["x", "w"], ["y"], name="add")

    def model(nodes: list[onnx.NodeProto], *initializers: onnx.TensorProto, domain: str = "") -> onnx.ModelProto:
        graph = helper.make_graph(nodes, "g", [x], [y], list(initializers))
        imports = [helper.make_opsetid("", 20)] + ([helper.make_opsetid(domain, 1)] if domain else [])
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    yield "inline", model([add], weight)
    yield "outside", model([add], outside)
    constant = helper.make_node("Constant", [], ["t"], value=numpy_helper.from_array(np.zeros((), np.bool_), "t"))
    dropout = helper.make_node("Dropout", ["x", "", "t"], ["y"], name="dropout")
    yield "dropout", model([constant, dropout])
    branch = helper.make_graph([helper.make_node("Identity", ["x"], ["z"])], "b", [], [y], [weight])
    yield "branches", model([constant, helper.make_node("If", ["t"], ["y"], then_branch=branch, else_branch=branch)])
    own = model([helper.make_node("Twice", ["x"], ["y"], domain="mine")], domain="mine")
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    own.functions.append(helper.make_function("mine", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 20)]))
    yield "function", own


class Half(torch.nn.Module):
    """A batch that varies, a weight, and sizes that depend on each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute on half of the rows."""
        return self.linear(x[: x.shape[0] // 2])


def exported_program() -> bytes:
    """Return a program as torch.export.save writes it, without traces and sample inputs, which are most of it."""
    torch.manual_seed(0)
    stream, slim = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Half(), (torch.ones(4, 2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        for node in program.graph.nodes:
            node.meta = {key: value for key, value in node.meta.items() if key == "val"}
        torch.export.save(program, stream)
    with zipfile.ZipFile(stream) as full, zipfile.ZipFile(slim, "w") as archive:
        for info in full.infolist():
            content = full.read(info)
            if "sample_inputs" in info.filename:
                content = b""
            archive.writestr(zipfile.ZipInfo(info.filename), content)
    return slim.getvalue()


def records(program: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield single records of an archive: name, line feed, content."""
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        for info in archive.infolist():
            name = info.filename.partition("/")[2]
            yield name.replace("/", "-").strip("."), name.encode() + b"\n" + archive.read(info)
    tensor = io.BytesIO()
    torch.save(torch.ones(2), tensor)
    yield "pickled", b"data/constants/extra.pt\n" + tensor.getvalue()
    yield "extra", b"extra/note.txt\nhello"


if __name__ == "__main__":
    write_corpus()
    print(f"{sum(1 for p in Path(CORPUS).rglob('*') if p.is_file())} files in {CORPUS}")
