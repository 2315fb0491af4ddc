"""ONNX Runtime: exactly the provider that was asked for, and a list of what really ran where.

ONNX Runtime falls back to the CPU without an error, and its Python API has no switch that always stops it. So the
providers, their options and the provider of every node are read back after the session is built.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch

from validator.backends.binding import bind_names
from validator.backends.catalog import SEED, Backend, Setting
from validator.backends.fingerprint import fingerprint
from validator.backends.interface import BackendRefusal, Environment, ModelFile, RefusalKind, Session
from validator.backends.knobs import UNREADABLE, read_seed, read_variables, seed_everything
from validator.backends.onnx_file import vet_onnx
from validator.backends.refusals import clean_line, model_refusal, refusal_from, require_device

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"

LEVELS = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

SHAPE_OPERATORS = frozenset(
    [
        *("Shape", "Size", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Slice", "Reshape", "Identity"),
        *("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Range", "ReduceProd"),
        *("Equal", "Where", "ConstantOfShape", "Constant"),
    ]
)
"""Operators that ONNX Runtime puts on the CPU on purpose where they compute shapes.

A node counts as shape arithmetic only if it is one of these *and* every tensor it reads or writes is declared in the
file as an integer or bool of rank 0 or 1 (the data input of Shape and Size may be anything: only its shape is read).
"""
_INTEGERS = frozenset({onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL})


def open_session(row: Backend, model: ModelFile) -> Session:
    """Build a session on one row of the catalog.

    Raises:
        BackendRefusal: no such device or provider; a file that is unsafe, or that does not load.
    """
    facts = vet_onnx(model.path)
    require_device(row)
    seed_everything()
    onnxruntime.set_seed(SEED)
    session = _build(row, model.path)
    return OnnxSession(row, model, session, facts.outputs)


class OnnxSession:
    """A session of ONNX Runtime."""

    def __init__(self, row: Backend, model: ModelFile, session: Any, outputs: tuple[str, ...]) -> None:
        self._row = row
        self._session = session
        self._feeds, how_in = _bind_inputs([value.name for value in session.get_inputs()], model.input_names)
        own = tuple(value.name for value in session.get_outputs())
        names = model.output_names if model.output_names is not None else outputs
        self._outputs, how_out = bind_names(own, names, what="output")
        placement, nodes_elsewhere = read_placement(row, session, model.path)
        self._nodes_elsewhere = nodes_elsewhere
        self._notes = {"inputs": how_in, "outputs": how_out, **placement}

    def run(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run one batch; see `interface.Session`."""
        try:
            feeds = {own: to_ort(inputs[golden]) for own, golden in self._feeds.items()}
            values = self._session.run_with_ort_values(None, feeds)
            return {name: from_ort(value) for name, value in zip(self._outputs, values, strict=True)}
        except BackendRefusal:
            raise
        # The runtime raises classes of its own that share no base but Exception.
        except Exception as error:
            raise refusal_from(error, "run") from error

    def environment(self) -> Environment:
        """Read every setting back from the session, now."""
        options = self._session.get_provider_options()
        providers = self._session.get_providers()
        settings: dict[str, Setting] = {
            "device": _device(providers, options),
            "provider": providers[0] if providers else UNREADABLE,
            "nodes_elsewhere": self._nodes_elsewhere,
            "graph_optimization": _level(self._session),
            "deterministic": bool(self._session.get_session_options().use_deterministic_compute),
            "seed": read_seed(self._row),
        }
        if self._row.device_type == "cuda":
            cuda = options.get(CUDA, {})
            settings["use_tf32"] = {"0": False, "1": True}.get(cuda.get("use_tf32", ""), UNREADABLE)
            settings["cudnn_conv_algo_search"] = cuda.get("cudnn_conv_algo_search", UNREADABLE)
        settings |= read_variables(self._row)
        return Environment(
            settings=settings,
            fingerprint=fingerprint(device_index=self._row.device_index),
            notes=self._notes | self._more_notes(options, providers),
        )

    def _more_notes(self, options: dict[str, dict[str, str]], providers: list[str]) -> dict[str, str]:
        chosen = self._session.get_session_options()
        return {
            "providers": ", ".join(providers),
            "provider options": "; ".join(f"{k}={v}" for k, v in sorted(options.get(providers[0], {}).items()) if v),
            "threads": f"intra {chosen.intra_op_num_threads}, inter {chosen.inter_op_num_threads}",
            "onnxruntime seed": f"{SEED}, set and not readable",
        }


# --- Building ----------------------------------------------------------------------------------------------------


def _build(row: Backend, path: Path) -> Any:
    """Create the session; what the native side says on the way is kept for the refusal."""
    provider = CUDA if row.device_type == "cuda" else CPU
    if provider not in onnxruntime.get_available_providers():
        raise BackendRefusal(
            RefusalKind.UNAVAILABLE, "device", f"this build of ONNX Runtime {onnxruntime.__version__} has no {provider}"
        )
    options = _session_options(row)
    with _captured_stderr() as said:
        try:
            if provider == CUDA:
                onnxruntime.preload_dlls()
            session = onnxruntime.InferenceSession(path, options, providers=[_provider(row)])
        except Exception as error:
            raise _missing_kernel(error, provider, path) or refusal_from(error, "load") from error
    found = session.get_providers()
    if not found or found[0] != provider:
        raise BackendRefusal(RefusalKind.UNAVAILABLE, "device", f"{provider} did not start: {_cause(said)}")
    session.disable_fallback()
    return session


_NO_KERNEL = re.compile(r"NOT_IMPLEMENTED.*implementation for (\w+)|'tensor\(b?float16\)'.*operator \((\w+)\)")
"""How ONNX Runtime says that an operator does not exist for a dtype: no kernel is built in, or the opset has none."""

_REDUCED = {onnx.TensorProto.FLOAT16: "float16", onnx.TensorProto.BFLOAT16: "bfloat16"}


def _missing_kernel(error: Exception, provider: str, path: Path) -> BackendRefusal | None:
    """Say that this runtime cannot compute in a file's reduced precision, if that is what happened.

    Nothing is wrong with such a model, and nothing is known about it either: its author chose a dtype, not a runtime.
    """
    found = _NO_KERNEL.search(str(error))
    if found is None:
        return None
    graph = onnx.load(path, load_external_data=False).graph
    dtypes = sorted({_REDUCED[t.data_type] for t in graph.initializer if t.data_type in _REDUCED})
    if not dtypes:
        return None
    what = f"no {found[1] or found[2]} in {' and '.join(dtypes)} on {provider}"
    return BackendRefusal(
        RefusalKind.UNAVAILABLE,
        "load",
        f"ONNX Runtime {onnxruntime.__version__} has {what}, which says nothing about the model",
    )


def _session_options(row: Backend) -> Any:
    """Return options for one row: sequential, fixed threads, placement recorded."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVELS[row.graph_optimization]
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = row.deterministic
    options.log_severity_level = 2
    options.add_session_config_entry(RECORD_PLACEMENT, "1")
    return options


def _provider(row: Backend) -> Any:
    """Return the one provider that is asked for, with its options."""
    if row.device_type != "cuda":
        return CPU
    return (
        CUDA,
        {
            "device_id": str(row.device_index),
            "use_tf32": "1" if row.use_tf32 else "0",
            "cudnn_conv_algo_search": row.cudnn_conv_algo_search,
        },
    )


@contextlib.contextmanager
def _captured_stderr() -> Iterator[list[str]]:
    """Collect what native code writes to standard error: the only place where a fallback gives its reason."""
    lines: list[str] = []
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines.extend(file.read().decode(errors="replace").splitlines())


def _cause(said: list[str]) -> str:
    """Pick the line that says why a provider did not start."""
    for mark in ("with error:", "Failed to load library", "Failed to create", "CUDA failure", "error"):
        for line in said:
            if mark in line:
                return clean_line(line.partition("with error:")[2] if "with error:" in line else line)
    return "no reason given"


# --- Reading back ------------------------------------------------------------------------------------------------


def _device(providers: list[str], options: dict[str, dict[str, str]]) -> str:
    """Return the device of the first provider."""
    if providers[:1] == [CUDA]:
        index = options.get(CUDA, {}).get("device_id")
        return f"cuda:{index}" if index is not None else UNREADABLE
    return "cpu" if providers == [CPU] else UNREADABLE


def _level(session: Any) -> str:
    """Return the graph optimisation level in the catalog's words."""
    level = session.get_session_options().graph_optimization_level
    return next((name for name, value in LEVELS.items() if value == level), UNREADABLE)


def read_placement(row: Backend, session: Any, path: Path) -> tuple[dict[str, str], int]:
    """Return notes on the provider of every node, and how many nodes ran elsewhere; -1 where it was not recorded."""
    provider = CUDA if row.device_type == "cuda" else CPU
    try:
        assigned = [
            (part.ep_name, node) for part in session.get_provider_graph_assignment_info() for node in part.get_nodes()
        ]
    except (AttributeError, RuntimeError, onnxruntime.capi.onnxruntime_pybind11_state.Fail) as error:
        return {"placement": f"not recorded: {clean_line(str(error))}"}, -1
    if not assigned:
        return {"placement": "not recorded: no node was listed"}, -1
    counts = Counter(name for name, _ in assigned)
    strays = [(name, node) for name, node in assigned if name != provider]
    shapes = _ShapeNodes(path) if strays and provider == CUDA else None
    elsewhere = [(name, n) for name, n in strays if shapes is None or name != CPU or not shapes.holds(n)]
    notes = {"placement": ", ".join(f"{count} nodes on {name}" for name, count in sorted(counts.items()))}
    if len(strays) > len(elsewhere):
        kinds = Counter(node.op_type for pair in strays if pair not in elsewhere for node in pair[1:])
        notes["shape arithmetic on the CPU"] = ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    if elsewhere:
        named = [f"{node.op_type} {node.name} on {name}" for name, node in elsewhere]
        notes["nodes elsewhere"] = clean_line(", ".join(named))
    return notes, len(elsewhere)


class _ShapeNodes:
    """Knows which nodes of a file compute nothing but shapes."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path, load_external_data=False)
        graph = onnx.shape_inference.infer_shapes(model).graph
        self._nodes = {node.name: node for node in graph.node if node.name}
        self._small: set[str] = set()
        for value in [*graph.value_info, *graph.input, *graph.output]:
            tensor = value.type.tensor_type
            if tensor.elem_type in _INTEGERS and tensor.HasField("shape") and len(tensor.shape.dim) <= 1:
                self._small.add(value.name)
        self._small |= {t.name for t in graph.initializer if t.data_type in _INTEGERS and len(t.dims) <= 1}

    def holds(self, assigned: Any) -> bool:
        """Whether a placed node is shape arithmetic; False for whatever the optimiser made up."""
        node = self._nodes.get(assigned.name)
        if node is None or node.op_type != assigned.op_type or assigned.domain not in ("", "ai.onnx"):
            return False
        if node.op_type not in SHAPE_OPERATORS:
            return False
        names = [*node.output, *([] if node.op_type in ("Shape", "Size") else node.input)]
        return all(name in self._small for name in names if name)


# --- Tensors -----------------------------------------------------------------------------------------------------


def _bind_inputs(own: list[str], golden: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Return own input -> golden input. The exporter prunes inputs that the model does not use."""
    if set(own) <= set(golden):
        unused = [name for name in golden if name not in own]
        return {name: name for name in own}, "by name" + (f", unused: {', '.join(unused)}" if unused else "")
    feeds, how = bind_names(own, golden, what="input")
    return dict(zip(own, feeds, strict=True)), how


def to_ort(tensor: torch.Tensor) -> Any:
    """Return a CPU tensor as a value of ONNX Runtime, bfloat16 included, which NumPy does not know."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        bits = tensor.view(torch.uint16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())


def from_ort(value: Any) -> torch.Tensor:
    """Return an output as a CPU tensor of its own memory."""
    if not value.is_tensor():
        raise model_refusal("run", f"an output is a {value.data_type()}, not a tensor")
    if value.data_type() == "tensor(string)":
        raise model_refusal("run", "an output is a tensor of strings")
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(value._ortvalue)  # noqa: SLF001 - the public method refuses bool
    if value.data_type() == "tensor(bool)":
        tensor = tensor.to(torch.bool)
    return tensor.to("cpu", copy=True).contiguous()
