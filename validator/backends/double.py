"""The fp64 reference: the same function, computed in double precision.

`module.double()` is not enough for an exported program: `.float()` leaves assertions that the dtype is float32,
`softmax(dtype=torch.float32)` stays float32 without a word, and so do factories without a dtype and lifted constants.
The rewrite therefore works on the graph. A cast to float16 or bfloat16 is part of the function and is kept.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from validator.backends.binding import tensor_leaves
from validator.backends.refusals import model_refusal
from validator.backends.torch_program import TorchProgram, from_exported, quiet_libraries

STAGE = "fp64"
WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_ERASED = ("aten::_assert_tensor_metadata",)
_BITS = ("aten::view.dtype", "aten::view_copy.dtype")
"""Reinterpret the bits of a tensor: no meaning in another precision."""


def to_double(program: TorchProgram, device: torch.device) -> TorchProgram:
    """Rewrite a program to compute in fp64, in place; the note `fp64` says what was changed.

    Raises:
        BackendRefusal: the model does something that has no meaning in fp64.
    """
    if program.exported is not None:
        return _double_exported(program, device)
    if isinstance(program.module, torch.jit.ScriptModule):
        program.module.double()
        program.notes[STAGE] = "TorchScript: parameters and buffers cast"
        return program
    _widen_tensors(program.module)
    program.call = _in_double(program.call)
    program.notes[STAGE] = "module: tensors cast, float32 in calls widened, default dtype float64"
    return program


def require_double(value: object) -> None:
    """Make sure that every floating output came back as fp64.

    Raises:
        BackendRefusal: one did not, so this run is no reference.
    """
    for tensor in tensor_leaves(value):
        if (tensor.dtype.is_floating_point or tensor.dtype.is_complex) and tensor.dtype not in (
            torch.float64,
            torch.complex128,
        ):
            raise model_refusal(
                STAGE, f"an output came back as {tensor.dtype}: the model casts it, so fp64 cannot be had"
            )


# --- torch.export ------------------------------------------------------------------------------------------------


def _double_exported(program: TorchProgram, device: torch.device) -> TorchProgram:
    """Rewrite each graph of the program's module."""
    exported = program.exported
    decomposed = False
    if exported is not None and _has_autocast(exported.graph_module):
        # Autocast leaves fp64 tensors alone, so the region would compute another function: as plain casts it does not.
        with quiet_libraries():
            program = from_exported(exported.run_decompositions({}), device)
        decomposed = True
    counts: dict[str, int] = {"autocast regions made casts": int(decomposed)}
    for module in list(program.module.modules()):
        if isinstance(module, torch.fx.GraphModule):
            _rewrite_graph(module, counts)
    counts["tensors widened"] = _widen_tensors(program.module)
    program.notes[STAGE] = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "nothing to rewrite"
    return program


def _has_autocast(module: torch.fx.GraphModule) -> bool:
    return any(
        "wrap_with_autocast" in str(node.target)
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
    )


def _rewrite_graph(module: torch.fx.GraphModule, counts: dict[str, int]) -> None:
    """Erase dtype assertions, widen dtype arguments and give factories without a dtype float64."""

    def count(what: str, n: int = 1) -> None:
        counts[what] = counts.get(what, 0) + n

    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        name = _schema_name(node.target)
        if name.startswith(_ERASED):
            module.graph.erase_node(node)
            count("assertions erased")
            continue
        if name in _BITS:
            raise model_refusal(STAGE, f"{node.name} reinterprets the bits of a tensor, which has no fp64 meaning")
        changed = [0]
        node.args = _widen_dtypes(node.args, changed)
        node.kwargs = _widen_dtypes(node.kwargs, changed)
        count("casts widened", changed[0])
        if _is_factory_of_float32(node):
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
            count("factories given float64")
    module.recompile()


def _schema_name(target: object) -> str:
    """Return `aten::softmax.int`, or an empty string for what has no schema."""
    return str(target._schema.name + "." + target._overloadname) if isinstance(target, torch._ops.OpOverload) else ""  # noqa: SLF001


def _widen_dtypes(value: Any, changed: list[int]) -> Any:
    """Replace float32 and complex64 anywhere in an argument."""

    def widen(item: Any) -> Any:
        if isinstance(item, torch.dtype) and item in WIDER:
            changed[0] += 1
            return WIDER[item]
        return item

    return torch.fx.node.map_aggregate(value, widen)


def _is_factory_of_float32(node: torch.fx.Node) -> bool:
    """Whether a node makes a float32 tensor out of no tensor, by the default dtype."""
    if not isinstance(node.target, torch._ops.OpOverload):  # noqa: SLF001
        return False
    arguments = {argument.name: argument for argument in node.target._schema.arguments}  # noqa: SLF001
    takes_tensors = any("Tensor" in str(argument.type) for argument in arguments.values())
    value = node.meta.get("val")
    # Without a recorded value nothing tells an integer arange from a float one; the output check then decides.
    is_float32 = isinstance(value, torch.Tensor) and value.dtype is torch.float32
    return "dtype" in arguments and not takes_tensors and node.kwargs.get("dtype") is None and is_float32


# --- Tensors and eager modules -------------------------------------------------------------------------------------


def _widen_tensors(module: torch.nn.Module) -> int:
    """Cast floating and complex parameters, buffers and constants; return how many, shared ones once."""
    done: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for name, tensor in _held(part):
            if id(tensor) not in done:
                done[id(tensor)] = _widened(tensor)
            if isinstance(tensor, torch.nn.Parameter):
                part._parameters[name] = done[id(tensor)]  # type: ignore[assignment]  # noqa: SLF001
            elif name in part._buffers:  # noqa: SLF001
                part._buffers[name] = done[id(tensor)]  # noqa: SLF001
            else:
                vars(part)[name] = done[id(tensor)]
        if isinstance(part, torch.nn.RNNBase):
            part._init_flat_weights()  # noqa: SLF001 - its list of weights is a copy of the references
    return len(done)


def _held(part: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that one module itself holds and that have a wider dtype."""
    sources = (part._parameters, part._buffers, vars(part))  # noqa: SLF001
    for source in sources:
        for name, tensor in list(source.items()):
            if isinstance(tensor, torch.Tensor) and (tensor.is_floating_point() or tensor.is_complex()):
                yield name, tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    wider = tensor.detach().to(torch.complex128 if tensor.is_complex() else torch.float64)
    return torch.nn.Parameter(wider, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else wider


class _WidenCalls(TorchFunctionMode):
    """Replace float32 by float64 in every torch call that a module makes, and `.float()` by `.double()`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        args, kwargs = pytree.tree_map_only(torch.dtype, lambda dtype: WIDER.get(dtype, dtype), (args, kwargs or {}))
        return func(*args, **kwargs)


def _in_double(call: Callable[[list[torch.Tensor]], object]) -> Callable[[list[torch.Tensor]], object]:
    """Wrap a module's call so that its casts and factories give float64."""

    def run(tensors: list[torch.Tensor]) -> object:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _WidenCalls():
                return call(tensors)
        finally:
            torch.set_default_dtype(before)

    return run
