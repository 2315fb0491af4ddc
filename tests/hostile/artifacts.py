"""Tiny hostile artifacts: model folders as name -> bytes, written here and nowhere else."""

import io
import json
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import onnx
import torch
from onnx import TensorProto, helper

HERE = Path(__file__).parent
MLMODEL = b"flavors:\n  pytorch:\n    model_data: data\n"
PICKLE, PROGRAM, ONNX = "data/model.pth", "data/model.pt2", "model.onnx"

Files = Mapping[str, bytes]


class _Calls:
    """Pickles as a call of `function` with one argument."""

    def __init__(self, function: Callable[[str], object], argument: str) -> None:
        self._call = (function, (argument,))

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return self._call


def pickled(model: str, places: Mapping[str, object]) -> Files:
    """A pickled module whose class, and all that it does, travels in the pickle."""
    source = "\n".join((HERE / f"{name}.py").read_text(encoding="utf-8") for name in ("attempts", "models"))
    make = f"(lambda names: (exec({source!r}, names), names[{model!r}]())[1])({{'PLACES': {dict(places)!r}}})"
    return {"MLmodel": MLMODEL, PICKLE: _saved(_Calls(eval, make))}


def pickled_names_code(places: Mapping[str, object]) -> Files:
    """A pickle that names a module of the folder `code/`, which ends the process when it is imported."""
    code = f"import os, pathlib\npathlib.Path({places['secret'] + '.owned'!r}).touch()\nos._exit(0)\n".encode()  # type: ignore[operator]
    saved = _saved(_Calls(eval, "__import__('hostile_code').Model()"))
    return {"MLmodel": MLMODEL + b"    code: code\n", "code/hostile_code.py": code, PICKLE: saved}


def _saved(value: object) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


class Small(torch.nn.Module):
    """What the healthy programs compute."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.sin(torch.arange(40, dtype=torch.float32)).reshape(4, 10)
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def exported() -> bytes:
    """A healthy torch.export program."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(Small().eval(), (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    return stream.getvalue()


def healthy(program: bytes, more: Files = MappingProxyType({})) -> Files:
    """A model folder with a healthy program, and other files."""
    return {"MLmodel": MLMODEL, PROGRAM: program, **more}


def rewritten(
    program: bytes, *, replaced: Files = MappingProxyType({}), added: Iterable[tuple[zipfile.ZipInfo | str, bytes]] = ()
) -> Files:
    """A model folder whose program's archive has other records."""
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    root = next(iter(records)).partition("/")[0]
    records |= {f"{root}/{name}": content for name, content in replaced.items()}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in records.items():
            archive.writestr(name, content)
        for info, content in added:
            if isinstance(info, str):
                archive.writestr(f"{root}/{info}", content, compress_type=zipfile.ZIP_DEFLATED)
            else:
                info.filename = f"{root}/{info.filename}"
                archive.writestr(info, content)
    return healthy(stream.getvalue())


def payload(places: Mapping[str, object]) -> bytes:
    """A pickle that writes to the user's home wherever it is loaded."""
    return _saved(_Calls(exec, f"open({places['secret'] + '.owned'!r}, 'w').close()"))  # type: ignore[operator]


def link_record(target: str) -> tuple[zipfile.ZipInfo, bytes]:
    """A record that unpacks to a symbolic link."""
    info = zipfile.ZipInfo("extra/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info, target.encode()


def edited(program: bytes, change: Callable[[dict[str, object]], None]) -> Files:
    """A model folder whose program's own document was changed."""
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("models/model.json"))
        document = json.loads(archive.read(name))
    change(document)
    return rewritten(program, replaced={"models/model.json": json.dumps(document).encode()})


def onnx_of(*nodes: onnx.NodeProto, tensors: Iterable[TensorProto] = (), domain: str = "") -> bytes:
    """An ONNX file that takes `x` and returns `output_0`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("output_0", TensorProto.FLOAT, ["batch", 10])],
        list(tensors),
    )
    imports = [helper.make_opsetid("", 18), *([helper.make_opsetid(domain, 1)] if domain else [])]
    content: bytes = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    return content


def weight(*, location: str | None = None) -> TensorProto:
    """The weight, or a reference to a file that is said to hold it."""
    values = Small().weight.detach().numpy()
    tensor = helper.make_tensor("w", TensorProto.FLOAT, [4, 10], values.tobytes(), raw=True)
    if location is not None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", "0"), ("length", "160")):
            tensor.external_data.add(key=key, value=value)
    return tensor


def onnx_bomb() -> bytes:
    """An ONNX file of a few hundred bytes that asks for 4 TB."""
    return onnx_of(
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Tile", ["y", "times"], ["large"]),
        helper.make_node("ReduceSum", ["large", "axis"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "y"], ["output_0"]),
        tensors=[
            weight(),
            helper.make_tensor("times", TensorProto.INT64, [2], [1, 10_000_000_000]),
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
        ],
    )


def onnx_external(location: str) -> bytes:
    """An ONNX file whose weight is said to lie in another file."""
    return onnx_of(helper.make_node("MatMul", ["x", "w"], ["output_0"]), tensors=[weight(location=location)])


def onnx_custom_operator(name: str = "Owned", domain: str = "com.hostile") -> bytes:
    """An ONNX file that needs somebody's library."""
    return onnx_of(helper.make_node(name, ["x"], ["output_0"], name=name, domain=domain), domain=domain)


def relative_to_stage(path: str) -> str:
    """A path out of wherever a model is staged."""
    return "../" * 12 + os.path.relpath(path, "/")
