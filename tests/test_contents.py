"""What a file is, told by its content."""

import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from validator.contents import Kind, identify

ELF = b"\x7fELF\x02\x01\x01" + b"\x00" * 60


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_DOT_", "."), content)
    return buffer.getvalue()


def saved(write) -> bytes:
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def tarred() -> bytes:
    def write(buffer):
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            archive.addfile(tarfile.TarInfo("a"), io.BytesIO())

    return saved(write)


def exported() -> bytes:
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(2),))
    return saved(lambda buffer: torch.export.save(program, buffer))


def an_onnx_file() -> bytes:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out])
    return onnx.helper.make_model(graph).SerializeToString()


FILES = [
    ("model.pt2", exported(), Kind.PROGRAM),
    ("model.txt", exported(), Kind.PROGRAM),
    ("model.onnx", an_onnx_file(), Kind.ONNX),
    ("MLmodel", b"flavors:\n  pytorch: {}\n", Kind.TEXT),
    ("input_example.json", b"[[0.0, 1.0]]", Kind.TEXT),
    ("empty", b"", Kind.TEXT),
    ("w.safetensors", safetensors.numpy.save({"w": np.zeros(3, np.float32)}), Kind.TENSORS),
    ("w.npy", saved(lambda b: np.save(b, np.zeros(3))), Kind.TENSORS),
    ("w.npz", saved(lambda b: np.savez(b, a=np.zeros(3))), Kind.TENSORS),
    ("w.npy", saved(lambda b: np.save(b, np.array([{}], dtype=object))), Kind.PICKLE),
    ("model.pth", saved(lambda b: torch.save({"a": torch.zeros(2)}, b)), Kind.PICKLE),
    ("weights.bin", pickle.dumps({"a": 1}), Kind.PICKLE),
    ("notes.txt", pickle.dumps({"a": print}, protocol=0), Kind.PICKLE),
    ("notes.json", pickle.dumps([1, 2], protocol=1), Kind.PICKLE),
    ("old.pt", saved(lambda b: torch.save([1], b, _use_new_zipfile_serialization=False)), Kind.PICKLE),
    ("picture.png", zipped(a__data_DOT_pkl=b"anything"), Kind.PICKLE),
    ("hidden.zip", zipped(a=pickle.dumps(1)), Kind.PICKLE),
    ("loader.py", b"import os\n", Kind.CODE),
    ("run", b"#!/bin/sh\nid\n", Kind.CODE),
    ("package.whl", zipped(a__b_DOT_py=b"import os"), Kind.CODE),
    ("libops.so", ELF, Kind.NATIVE),
    ("weights.bin", ELF, Kind.NATIVE),
    ("data.zip", zipped(a=ELF), Kind.NATIVE),
    ("archive.pt2", zipped(m__models__model_DOT_json=b"{}", m__data__aotinductor__a_DOT_so=ELF), Kind.NATIVE),
    ("model.gz", gzip.compress(b"anything"), Kind.ARCHIVE),
    ("model.tar", tarred(), Kind.ARCHIVE),
    ("text.zip", zipped(a=b"text"), Kind.ARCHIVE),
    ("broken.zip", b"PK\x03\x04 and nothing else", Kind.ARCHIVE),
    ("noise", bytes(range(128, 256)), Kind.UNKNOWN),
    ("nul.txt", b"text\x00text", Kind.UNKNOWN),
]


@pytest.mark.parametrize(("name", "content", "kind"), FILES, ids=[f"{name}-{kind.name}" for name, _, kind in FILES])
def test_a_file_is_what_it_holds(tmp_path: Path, name: str, content: bytes, kind: Kind) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert identify(path) is kind


@given(st.binary(max_size=300))
def test_any_bytes_are_something_and_a_pickle_is_never_text(tmp_path_factory: pytest.TempPathFactory, noise) -> None:
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(noise)
    assert identify(path) in Kind
    path.write_bytes(pickle.dumps(noise))
    assert identify(path) is Kind.PICKLE
    path.write_bytes(pickle.dumps(noise, protocol=0))
    assert identify(path) is Kind.PICKLE


def test_a_member_that_is_encrypted_cannot_be_named(tmp_path: Path) -> None:
    content = bytearray(zipped(a=b"text"))
    directory = content.index(b"PK\x01\x02")
    content[directory + 8] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert identify(tmp_path / "a.zip") is Kind.ARCHIVE


@pytest.mark.parametrize(
    ("beside", "kind"), [(pickle.dumps(1), Kind.PICKLE), (ELF, Kind.NATIVE), (b"text", Kind.ARCHIVE)]
)
@pytest.mark.parametrize("harm", ["encrypted", "damaged"])
def test_a_member_that_cannot_be_read_hides_nothing_of_the_others(
    tmp_path: Path, harm: str, beside: bytes, kind: Kind
) -> None:
    content = bytearray(zipped(a=bytes(range(256)), b=beside))
    if harm == "encrypted":
        content[content.index(b"PK\x01\x02") + 8] |= 1
    else:
        start = content.index(b"PK\x03\x04") + 31
        content[start : start + 20] = b"\xff" * 20
    (tmp_path / "a.zip").write_bytes(content)
    assert identify(tmp_path / "a.zip") is kind
