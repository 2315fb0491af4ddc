"""What a program holds, and what an exporter may make of it: its tensors, its norms, its constant expressions.

An exporter computes ahead whatever depends on no input. So the tensors of an ONNX file are those of the program, or
what became of them: a batch norm multiplied into the convolution before it, the gates of an LSTM in another order, a
slice, a merge, a normalised weight.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export.graph_signature import InputKind

from validator.backends.torch_program import TorchProgram

Floats = NDArray[np.float64]

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)

_CONTRACTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
                           "conv_transpose3d", "linear"})  # fmt: skip
_NORMS = frozenset({"batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm:
    """A batch norm over running statistics: y = (x - mean) * scale + shift, in fp64, each of shape (channels,)."""

    title: str
    names: tuple[str, ...]
    """Of its tensors."""
    follows: str | None
    """The weight of the contraction that it normalises; None: not known."""
    scale: Floats
    """weight / sqrt(running_var + eps)."""
    mean: Floats
    shift: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """The tensors of a program."""

    tensors: Mapping[str, torch.Tensor]
    """By the name in the state dict, detached, on the CPU."""
    used: frozenset[str]
    """Those that the program's function depends on, as far as is known."""
    norms: tuple[Norm, ...]
    exported: torch.export.ExportedProgram | None
    """None: the program has no graph to look into."""

    def expressions(self) -> Iterator[tuple[frozenset[str], torch.Tensor]]:
        """Yield (names that it is made of, value) for what an exporter may compute ahead, one at a time."""
        yield from _recurrent_forms(self.tensors)
        if self.exported is not None:
            yield from _constant_expressions(self.exported, self.tensors)


def read_constants(program: TorchProgram) -> Constants:
    """List what a loaded program holds. Shares its memory."""
    exported = program.exported
    if exported is None:
        tensors = {name: t.detach() for name, t in program.module.state_dict().items() if isinstance(t, torch.Tensor)}
        return Constants(
            tensors=tensors, used=frozenset(tensors), norms=tuple(_module_norms(program.module)), exported=None
        )
    held = {**exported.constants, **exported.state_dict}
    tensors = {name: t.detach() for name, t in held.items() if isinstance(t, torch.Tensor)}
    names = _placeholders(exported)
    used = {names[node.name] for node in exported.graph.nodes if node.name in names and node.users}
    return Constants(
        tensors=tensors,
        used=frozenset(used & tensors.keys()),
        norms=tuple(_graph_norms(exported, tensors)),
        exported=exported,
    )


def _placeholders(exported: torch.export.ExportedProgram) -> dict[str, str]:
    """Return placeholder -> name in the state dict."""
    return {
        spec.arg.name: str(spec.target)
        for spec in exported.graph_signature.input_specs
        if spec.kind in _HELD and hasattr(spec.arg, "name")
    }


# --- Batch norms ---------------------------------------------------------------------------------------------------


def _graph_norms(exported: torch.export.ExportedProgram, tensors: Mapping[str, torch.Tensor]) -> Iterator[Norm]:
    """Find the batch norms of a graph, and what each of them follows."""
    names = _placeholders(exported)
    for node in exported.graph.nodes:
        if node.op != "call_function" or _operator(node) not in _NORMS:
            continue
        schema = node.target._schema  # noqa: SLF001
        given = {argument.name: value for argument, value in zip(schema.arguments, node.args, strict=False)}
        given |= dict(node.kwargs)
        parts = [_name_of(given.get(key), names) for key in ("weight", "bias", "running_mean", "running_var")]
        if parts[2] is None or parts[3] is None:
            continue
        before = given.get("input")
        follows = None
        if isinstance(before, torch.fx.Node) and _operator(before) in _CONTRACTIONS and len(before.args) > 1:
            follows = _name_of(before.args[1], names)
        with contextlib.suppress(KeyError):
            yield _norm(parts, tensors, float(given["eps"]), follows)


def _module_norms(module: torch.nn.Module) -> Iterator[Norm]:
    """Find the batch norms of a module by what they hold; works for TorchScript, too."""
    tensors = module.state_dict()
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        eps = getattr(part, "eps", None)
        if not isinstance(eps, float) or f"{prefix}running_var" not in tensors:
            continue
        names = [f"{prefix}{key}" for key in ("weight", "bias", "running_mean", "running_var")]
        yield _norm([name if name in tensors else None for name in names], tensors, eps, None)


def _norm(parts: list[str | None], tensors: Mapping[str, torch.Tensor], eps: float, follows: str | None) -> Norm:
    weight, bias, mean, variance = (None if name is None else tensors[name].double().numpy() for name in parts)
    assert mean is not None and variance is not None  # noqa: S101, PT018 - the callers looked
    names = tuple(name for name in parts if name is not None)
    return Norm(
        title=names[-1].removesuffix("running_var").removesuffix("."),
        names=names,
        follows=follows,
        scale=(np.ones_like(mean) if weight is None else weight) / np.sqrt(variance + eps),
        mean=mean,
        shift=np.zeros_like(mean) if bias is None else bias,
    )


def _operator(node: torch.fx.Node) -> str:
    """Return `conv2d` for aten.conv2d.default."""
    return str(node.target).split(".")[1] if str(node.target).startswith("aten.") else ""


def _name_of(value: object, names: Mapping[str, str]) -> str | None:
    return names.get(value.name) if isinstance(value, torch.fx.Node) else None


# --- What is computed ahead ------------------------------------------------------------------------------------------

_GATES = {4: (0, 3, 1, 2), 3: (1, 0, 2), 1: (0,)}
"""Gates -> where ONNX's order finds them in PyTorch's: LSTM iofc of ifgo, GRU zrh of rzn, and a plain RNN's one."""

_RECURRENT = re.compile(r"(?P<prefix>.*?)weight_hh_l(?P<layer>\d+)")


def _recurrent_forms(tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[frozenset[str], torch.Tensor]]:
    """Yield W, R and B as ONNX's LSTM, GRU and RNN take them: gates in its order, both directions in one tensor."""
    for name in tensors:
        match = _RECURRENT.fullmatch(name)
        if match is None or tensors[name].ndim != 2:
            continue
        gates = tensors[name].shape[0] // max(1, tensors[name].shape[1])
        if gates not in _GATES:
            continue
        layer, prefix = match["layer"], match["prefix"]
        ends = [end for end in (f"l{layer}", f"l{layer}_reverse") if f"{prefix}weight_hh_{end}" in tensors]
        for parts in (("weight_ih",), ("weight_hh",), ("bias_ih", "bias_hh")):
            rows = [[f"{prefix}{part}_{end}" for part in parts] for end in ends]
            names = frozenset(part for row in rows for part in row)
            if names <= tensors.keys():
                value = torch.stack([torch.cat([_reorder(tensors[part], gates) for part in row]) for row in rows])
                yield names, value


def _reorder(tensor: torch.Tensor, gates: int) -> torch.Tensor:
    """Put the gates, blocks of the first dimension, into ONNX's order."""
    blocks = tensor.chunk(gates)
    return torch.cat([blocks[index] for index in _GATES[gates]])


def _constant_expressions(
    exported: torch.export.ExportedProgram, tensors: Mapping[str, torch.Tensor]
) -> Iterator[tuple[frozenset[str], torch.Tensor]]:
    """Run the part of a graph that depends on no input; each value is let go after its last use."""
    names = _placeholders(exported)
    known: dict[torch.fx.Node, tuple[frozenset[str], Any]] = {}
    users = Counter({node: len(node.users) for node in exported.graph.nodes})
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in names and names[node.name] in tensors:
            known[node] = (frozenset({names[node.name]}), tensors[names[node.name]])
        elif node.op == "call_function":
            if all(source in known for source in node.all_input_nodes) and _is_pure(node):
                sources = frozenset[str]().union(*(known[source][0] for source in node.all_input_nodes))
                # What the graph could not compute without an input, the exporter could not either.
                with contextlib.suppress(Exception), torch.no_grad():
                    arguments = torch.fx.map_arg((node.args, node.kwargs), lambda source: known[source][1])
                    known[node] = (sources, node.target(*arguments[0], **arguments[1]))
                    if isinstance(known[node][1], torch.Tensor):
                        yield known[node]
            for source in node.all_input_nodes:
                users[source] -= 1
                if not users[source]:
                    known.pop(source, None)


def _is_pure(node: torch.fx.Node) -> bool:
    """Whether running a node again gives the same and changes nothing."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001
        return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags  # noqa: SLF001
    return getattr(target, "__module__", None) == "_operator"
