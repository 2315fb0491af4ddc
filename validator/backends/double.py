"""The fp64 reference: the same function, computed in double precision.

`module.double()` is not enough for an exported program: `.float()` leaves assertions that the dtype is float32,
`softmax(dtype=torch.float32)` stays float32 without a word, and so do factories without a dtype and lifted constants.
The rewrite therefore works on the graph.

A cast to float16 or bfloat16 in a model of float32 weights was written by its author: it is part of the function and
is kept. In a model whose own weights are float16 or bfloat16 (see `working_dtype`) that dtype is how numbers are stored
and not what is computed: casts to it are widened like those to float32, and the stored weights keep their values.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from validator.backends.binding import tensor_leaves
from validator.backends.refusals import model_refusal
from validator.backends.torch_program import TorchProgram, from_exported, quiet_libraries

STAGE = "fp64"
Wider = Mapping[torch.dtype, torch.dtype]
WIDER: Wider = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_HALVES = {torch.float16: (torch.float16, torch.complex32), torch.bfloat16: (torch.bfloat16,)}
"""Dtypes that store a model's numbers where its weights are in the key."""
_ERASED = ("aten::_assert_tensor_metadata",)
_BITS = ("aten::view.dtype", "aten::view_copy.dtype")
"""Reinterpret the bits of a tensor: no meaning in another precision."""
_VIEWS = ("aten::view.",)
"""Fail unless the memory layout is the one that the program was exported with. Kernels for fp64 and those of another
device choose their own; `reshape` is the same function and looks at the layout first."""


def working_dtype(program: TorchProgram) -> torch.dtype | None:
    """Return the floating dtype that a program's numbers are stored in: that of most of its weights.

    Weights are parameters of two dimensions and more, each counted once whatever its size: those that are contracted
    with activations. Norms that stay in float32 among bfloat16 matrices change nothing, nor does one large table in
    float16 among float32 matrices. Where there are none, all floating parameters and buffers count. The wider of two
    dtypes that are equally frequent; None where the program holds no floating tensor.
    """
    held = [*program.module.parameters(), *program.module.buffers()]
    floating = [tensor for tensor in held if tensor.is_floating_point()]
    weights = [t for t in floating if t.ndim >= 2 and isinstance(t, torch.nn.Parameter)] or floating
    counts = Counter(tensor.dtype for tensor in weights)
    return max(counts, key=lambda dtype: (counts[dtype], dtype.itemsize), default=None)


def to_double(program: TorchProgram, device: torch.device) -> TorchProgram:
    """Rewrite a program to compute in fp64, in place; the note `fp64` says what was changed.

    Raises:
        BackendRefusal: the model does something that has no meaning in fp64.
    """
    working = working_dtype(program)
    halves = _HALVES.get(working, ()) if working is not None else ()
    wider = {**WIDER, **{dtype: torch.complex128 if dtype.is_complex else torch.float64 for dtype in halves}}
    program = _rewrite(program, wider, device)
    if halves:
        name = str(working).removeprefix("torch.")
        program.notes[STAGE] += f"; the weights are {name}, so casts to it are storage and were widened"
    return program


def _rewrite(program: TorchProgram, wider: Wider, device: torch.device) -> TorchProgram:
    if program.exported is not None:
        return _double_exported(program, wider, device)
    if isinstance(program.module, torch.jit.ScriptModule):
        program.module.double()
        changed = _widen_script(program.module, wider)
        program.call = _in_double(program.call, {})
        program.notes[STAGE] = f"TorchScript: parameters and buffers cast, {changed} casts widened"
        return program
    _widen_tensors(program.module)
    program.call = _in_double(program.call, wider)
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


def _double_exported(program: TorchProgram, wider: Wider, device: torch.device) -> TorchProgram:
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
            _rewrite_graph(module, wider, counts)
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


def _rewrite_graph(module: torch.fx.GraphModule, wider: Wider, counts: dict[str, int]) -> None:
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
        if name.startswith(_VIEWS):
            node.target = torch.ops.aten.reshape.default
            count("views free of a layout")
        changed = [0]
        node.args = _widen_dtypes(node.args, wider, changed)
        node.kwargs = _widen_dtypes(node.kwargs, wider, changed)
        count("casts widened", changed[0])
        if _is_factory_of_float32(node):
            node.kwargs = {**node.kwargs, "dtype": torch.float64}
            count("factories given float64")
    module.recompile()


def _schema_name(target: object) -> str:
    """Return `aten::softmax.int`, or an empty string for what has no schema."""
    return str(target._schema.name + "." + target._overloadname) if isinstance(target, torch._ops.OpOverload) else ""  # noqa: SLF001


def _widen_dtypes(value: Any, wider: Wider, changed: list[int]) -> Any:
    """Replace the dtypes that become wider anywhere in an argument."""

    def widen(item: Any) -> Any:
        if isinstance(item, torch.dtype) and item in wider:
            changed[0] += 1
            return wider[item]
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
    """Replace dtypes by wider ones in every torch call that a module makes, and `.float()` by `.double()`."""

    def __init__(self, wider: Wider) -> None:
        super().__init__()
        self._wider = wider
        methods = {
            torch.float32: torch.Tensor.float,
            torch.float16: torch.Tensor.half,
            torch.bfloat16: torch.Tensor.bfloat16,
        }
        self._methods = [method for dtype, method in methods.items() if dtype in wider]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._methods:
            return args[0].double()
        args, kwargs = pytree.tree_map_only(
            torch.dtype, lambda dtype: self._wider.get(dtype, dtype), (args, kwargs or {})
        )
        return func(*args, **kwargs)


def _in_double(call: Callable[[list[torch.Tensor]], object], wider: Wider) -> Callable[[list[torch.Tensor]], object]:
    """Wrap a module's call so that its casts and factories give float64."""

    def run(tensors: list[torch.Tensor]) -> object:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _WidenCalls(wider):
                return call(tensors)
        finally:
            torch.set_default_dtype(before)

    return run


# --- TorchScript -----------------------------------------------------------------------------------------------

_SCRIPT_DTYPES = {
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex32: 8,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bfloat16: 15,
}
"""How TorchScript writes dtypes: the numbers of c10::ScalarType, which its files hold and which therefore stay."""


def _widen_script(module: Any, wider: Wider) -> int:
    """Widen the constant dtype arguments in the graphs of a script module that has not run yet; return how many."""
    numbers = {_SCRIPT_DTYPES[narrow]: _SCRIPT_DTYPES[wide] for narrow, wide in wider.items()}
    changed = 0
    for part in module.modules():
        for name in part._c._method_names():  # noqa: SLF001 - a script's graphs have no public handle that can change
            graph = part._c._get_method(name).graph  # noqa: SLF001
            changed += sum(_widen_script_node(graph, node, numbers) for node in list(_script_nodes(graph)))
    return changed


def _script_nodes(block: Any) -> Iterator[Any]:
    """Yield the nodes of a graph and of the blocks inside it."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _script_nodes(inner)


def _widen_script_node(graph: Any, node: Any, numbers: Mapping[int, int]) -> int:
    """Widen the dtype argument of one operator, if it has one and says which."""
    if not node.kind().startswith("aten::") or node.schema() == "(no schema)":
        return 0
    changed = 0
    for at, argument in enumerate(torch._C.parse_schema(node.schema()).arguments):  # noqa: SLF001
        if argument.name != "dtype":
            continue
        given = node.inputsAt(at)
        number = given.toIValue() if given.node().kind() == "prim::Constant" else None
        if isinstance(number, int) and number in numbers:
            constant = graph.insertConstant(numbers[number])
            constant.node().moveBefore(node)
            node.replaceInput(at, constant)
            changed += 1
    return changed
