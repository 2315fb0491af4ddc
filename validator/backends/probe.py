"""What can be said about a model before it is compared: its inputs, its batch, its mode, its ONNX export.

What the file claims about the batch is not believed: a program exported from a batch of 2 says `[2, inf]` and runs a
batch of 1, and a signature of -1 may hide a baked size. So sizes are tried.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from validator.backends.binding import flatten_outputs
from validator.backends.double import working_dtype
from validator.backends.interface import BackendRefusal, ExportFacts, ModelFacts, RefusalKind, TensorFacts, WeightsFacts
from validator.backends.onnx_export import export_onnx
from validator.backends.refusals import model_refusal, refusal_from
from validator.backends.torch_program import TorchProgram, load_program
from validator.backends.weights import compare_weights

TRIED_BATCHES = (1, 2, 3)
_CPU = torch.device("cpu")


class Golden(Protocol):
    """What is needed of `validator.golden.GoldenDataset`."""

    @property
    def inputs(self) -> Any:
        """Its inputs, each with a name, in the dataset's order."""
        ...

    def read_torch(self, start: int, stop: int) -> dict[str, torch.Tensor]:
        """Return samples start..stop, batch dimension first."""
        ...


def probe(path: Path, model_format: str, golden: Golden) -> ModelFacts:
    """Look at a model file and run it on a few batches on the CPU.

    Args:
        path: the model file.
        model_format: `torch.export`, `pickle` or `torchscript`.
        golden: where the inputs come from; its first sample is enough.

    Raises:
        BackendRefusal: format or model: unsafe, does not load, or runs on no batch at all.
    """
    program = load_program(path, model_format, _CPU)
    sample = golden.read_torch(0, 1)
    feeds = _feeds(program, golden)
    inputs = _inputs(program, [sample[name] for name in feeds])
    claimed = _claimed_batch(program)
    buffers = _buffer_copies(program.module)
    fits = _fits(inputs, [sample[name] for name in feeds])
    # A dataset that does not fit says nothing about the program: the gate will say so from the inputs alone.
    worked, outputs = _try_batches(program, [sample[name] for name in feeds], claimed) if fits else ([], None)
    static_batch = worked[0] if len(worked) == 1 else None
    mutated = _mutated_buffers(program, buffers)
    working = working_dtype(program)
    return ModelFacts(
        inputs=inputs,
        outputs=outputs,
        static_batch=static_batch,
        training=program.training or tuple(training_operators(program)),
        parameter_dtypes=_parameter_dtypes(program),
        working_dtype=None if working is None else _name(working),
        mutated_buffers=mutated,
    )


def export(
    path: Path, model_format: str, golden: Golden, *, static_batch: int | None, destination: Path
) -> tuple[ExportFacts, WeightsFacts | None]:
    """Export a model file to ONNX.

    Args:
        path: the model file.
        model_format: `torch.export`, `pickle` or `torchscript`.
        golden: where the example comes from; its first sample is enough.
        static_batch: the only batch size that the program accepts, as the probe found it.
        destination: the ONNX file to write.

    Raises:
        BackendRefusal: format or model: unsafe, or does not load.

    Returns:
        What became of it, and how the initialisers of the file compare with the program's tensors; None without a file.
    """
    program = load_program(path, model_format, _CPU)
    sample = golden.read_torch(0, 1)
    feeds, _ = program.bind([spec.name for spec in golden.inputs])
    example = [repeated(sample[name], static_batch or 2) for name in feeds]
    facts = export_onnx(program, example, destination, static=static_batch is not None)
    return facts, None if facts.path is None else compare_weights(program, destination)


# --- Inputs and batch --------------------------------------------------------------------------------------------


def _feeds(program: TorchProgram, golden: Golden) -> tuple[str, ...]:
    """Return what feeds each input; nothing where the program declares another number of inputs than the dataset has.

    Raises:
        BackendRefusal: another number, and the program declares none that the gate could hold against the dataset's.
    """
    try:
        return program.bind([spec.name for spec in golden.inputs])[0]
    except BackendRefusal:
        if declared_inputs(program) is None:
            raise
        return ()


def _inputs(program: TorchProgram, sample: list[torch.Tensor]) -> tuple[TensorFacts, ...]:
    """Return the declared inputs; a module declares none, so there the dtype is the dataset's and the shape unknown."""
    declared = declared_inputs(program)
    if declared is not None:
        return tuple(
            TensorFacts(name=name, dtype=_name(value.dtype), shape=_shape(value.shape))
            for name, value in zip(program.names, declared, strict=True)
        )
    return tuple(
        TensorFacts(name=name, dtype=_name(tensor.dtype), shape=None)
        for name, tensor in zip(program.names, sample, strict=False)
    )


def declared_inputs(program: TorchProgram) -> list[torch.Tensor] | None:
    """Return the fake tensors of an exported program's inputs."""
    if program.exported is None:
        return None
    values = {node.name: node.meta.get("val") for node in program.exported.graph.nodes if node.op == "placeholder"}
    return [value for name in program.names if isinstance(value := values.get(name), torch.Tensor)]


def _fits(inputs: tuple[TensorFacts, ...], sample: list[torch.Tensor]) -> bool:
    """Whether one sample, batch dimension first, is what the declared inputs take."""
    return len(inputs) == len(sample) and all(
        _name(tensor.dtype) == facts.dtype
        and (
            facts.shape is None
            or (
                len(facts.shape) == tensor.ndim
                and all(want in (None, size) for want, size in zip(facts.shape[1:], tensor.shape[1:], strict=True))
            )
        )
        for facts, tensor in zip(inputs, sample, strict=True)
    )


def _shape(sizes: Any) -> tuple[int | None, ...]:
    """Return sizes with None for those that vary."""
    return tuple(size if isinstance(size, int) else None for size in sizes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _claimed_batch(program: TorchProgram) -> int | None:
    """Return the batch size that the program's inputs are declared with; None where any of them varies."""
    shapes = [_shape(value.shape) for value in declared_inputs(program) or ()]
    sizes = {shape[0] for shape in shapes if shape}
    return sizes.pop() if len(sizes) == 1 else None


def _try_batches(
    program: TorchProgram, sample: list[torch.Tensor], claimed: int | None
) -> tuple[list[int], tuple[str, ...]]:
    """Run copies of one sample; return the batch sizes that worked, and the flattened output names.

    Raises:
        BackendRefusal: none worked: the first one's reason.
    """
    worked: list[int] = []
    outputs: tuple[str, ...] = ()
    refusals: list[BackendRefusal] = []
    for size in dict.fromkeys([*([claimed] if claimed else []), *TRIED_BATCHES]):
        try:
            with torch.no_grad():
                names = tuple(flatten_outputs(program.call([repeated(tensor, size) for tensor in sample])))
        except BackendRefusal as refusal:
            refusals.append(refusal)
        # Running a model runs its code: anything may come out of it.
        except Exception as error:  # noqa: BLE001
            refusals.append(refusal_from(error, "run"))
        else:
            worked.append(size)
            outputs = names
    _refuse_unless_run(worked, outputs, refusals)
    return worked, outputs


def _refuse_unless_run(worked: list[int], outputs: tuple[str, ...], refusals: list[BackendRefusal]) -> None:
    """Raise if no batch worked, or if what stopped one was the machine."""
    for refusal in refusals:
        if refusal.kind is RefusalKind.UNAVAILABLE:
            raise refusal
    if not worked:
        raise refusals[0]
    if not outputs:
        raise model_refusal("run", "the model returned no tensor")


def repeated(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return `size` copies of the one sample, shape (size, *sample)."""
    return torch.cat([tensor[:1]] * size)


# --- Mode and state ----------------------------------------------------------------------------------------------


def training_operators(program: TorchProgram) -> Iterator[str]:
    """Name the operators of an exported program that compute what they compute in training.

    Read from the operators' own schemas: the argument `train` or `training`, or `use_input_stats`. A norm without
    running statistics always uses those of the batch, a dropout of probability 0 does nothing: neither counts.
    """
    for module in program.module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001
                arguments = _arguments(node)
                if _is_training(arguments):
                    yield f"{node.name}: {node.target}"


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Return every argument of an operator by its name, defaults included."""
    schema = node.target._schema  # type: ignore[union-attr]  # noqa: SLF001
    found = {argument.name: argument.default_value for argument in schema.arguments if argument.has_default_value()}
    found |= {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
    return found | dict(node.kwargs)


def _is_training(arguments: dict[str, Any]) -> bool:
    """Whether these arguments ask for what happens in training only."""
    probability = arguments.get("p", arguments.get("dropout", arguments.get("dropout_p")))
    is_inert = isinstance(probability, int | float) and probability == 0
    if "dropout_p" in arguments:  # attention has no training flag: whoever passes a probability means it
        return not is_inert
    asked = [arguments[name] for name in ("train", "training", "use_input_stats") if name in arguments]
    if not asked or asked[0] is False:
        return False
    if "running_mean" in arguments:
        return arguments["running_mean"] is not None
    return not is_inert


def _parameter_dtypes(program: TorchProgram) -> dict[str, int]:
    """Return dtype -> number of elements over parameters and buffers, shared ones once."""
    source: Any = program.module if program.exported is None else program.exported
    counts: dict[str, int] = {}
    seen: set[int] = set()
    for _, tensor in [*source.named_parameters(), *source.named_buffers()]:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            counts[_name(tensor.dtype)] = counts.get(_name(tensor.dtype), 0) + tensor.numel()
    return dict(sorted(counts.items()))


def _buffer_copies(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of every buffer. Version counters would not do: batch_norm writes without moving them."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


def _mutated_buffers(program: TorchProgram, before: dict[str, torch.Tensor]) -> tuple[str, ...]:
    """Name the buffers that forward writes to: those that the signature lists, and those that did change."""
    listed = set(program.exported.graph_signature.buffers_to_mutate.values()) if program.exported else set()
    changed = {
        name
        for name, buffer in program.module.named_buffers()
        if name not in before or not _is_same(buffer, before[name])
    }
    return tuple(sorted(listed | changed))


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same values, NaN being equal to itself."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    return bool(((tensor == other) | (tensor.isnan() & other.isnan())).all())
