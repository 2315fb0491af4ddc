"""A PyTorch model, loaded afresh: one object for `torch.export` programs, pickled modules and TorchScript.

Loaded for one use only: moving a program to a device and casting it change it in place, and `ExportedProgram.module()`
shares its tensors. Whoever needs the model again loads the file again.
"""

import importlib
import inspect
import logging
import pickle
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from torch.utils import _pytree as pytree

from validator.backends.binding import bind_names
from validator.backends.pt2_file import vet_pt2
from validator.backends.refusals import model_refusal, refusal_from

EXPORTED = "torch.export"

Call = Callable[[list[torch.Tensor]], object]


@dataclass(slots=True, kw_only=True)
class TorchProgram:
    """A loaded model. Mutable on purpose: the fp64 rewrite and the move to a device change it."""

    module: torch.nn.Module
    exported: torch.export.ExportedProgram | None
    """The program whose tensors `module` shares; None for pickles and TorchScript."""
    names: tuple[str, ...]
    """Its inputs, in its order."""
    spellings: tuple[tuple[str, ...], ...]
    """The same inputs under other names: `batch.ids` for `batch_ids`."""
    required: int
    """How many of the inputs must be given."""
    call: Call
    """Takes the bound inputs in the order of `names`; returns what the model returns."""
    training: tuple[str, ...] = ()
    """Modules that were in training mode in the file; for exported programs see `probe`."""
    notes: dict[str, str] = field(default_factory=dict)

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield parameters, buffers and lifted constants."""
        seen: set[int] = set()
        for module in self.module.modules():
            held = [*module.parameters(recurse=False), *module.buffers(recurse=False), *vars(module).values()]
            for tensor in held:
                if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor

    def bind(self, golden: Sequence[str]) -> tuple[tuple[str, ...], str]:
        """Match the inputs with the dataset's: for each own input the golden name that feeds it, and how.

        Raises:
            BackendRefusal: the model's fault.
        """
        own, spellings = self.names, self.spellings
        if self.required <= len(golden) < len(own):  # optional arguments that the dataset leaves out
            named = tuple(name for name in own if name in golden)
            own = named if len(named) == len(golden) else own[: len(golden)]
            spellings = ()
            if own != self.names[: len(own)]:
                raise model_refusal("bind", f"the dataset leaves a gap in the inputs {', '.join(self.names)}")
        return bind_names(own, golden, what="input", alternatives=spellings)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence what torch says while it loads and exports: warnings are errors in our tests, and noise elsewhere."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.onnx", "torch.export.pt2_archive")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def load_program(path: Path, model_format: str, device: torch.device) -> TorchProgram:
    """Load a model file onto a device. `.pt2` archives are vetted first.

    Raises:
        BackendRefusal: format for an unsafe archive, model for one that does not load.
    """
    if model_format == EXPORTED:
        facts = vet_pt2(path)
        if any(".torchvision." in name for name in facts.operators):
            importlib.import_module("torchvision")  # registers its operators
    try:
        with quiet_libraries():
            return _load(path, model_format, device)
    # Loading runs the model's own code: anything may come out of it, and all of it is the model's.
    except Exception as error:
        raise refusal_from(error, "load") from error


def _load(path: Path, model_format: str, device: torch.device) -> TorchProgram:
    """Load by format."""
    match model_format:
        case "torch.export":
            return from_exported(torch.export.load(path), device)
        case "pickle":
            return _from_module(_unpickle(path), device)
        case "torchscript":
            script = torch.jit.load(path, map_location=device)  # type: ignore[no-untyped-call]
            return _from_script(script, device)
        case _:
            raise model_refusal("load", f"unknown model format {model_format!r}")


# --- torch.export ------------------------------------------------------------------------------------------------


def from_exported(program: torch.export.ExportedProgram, device: torch.device) -> TorchProgram:
    """Make a callable of an exported program, which is used up by it."""
    notes = {}
    held = [t for t in [*program.state_dict.values(), *program.constants.values()] if isinstance(t, torch.Tensor)]
    if needs_move(program, held, device):
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, str(device))
        notes["moved"] = f"to {device} by torch.export.passes.move_to_device_pass"
    module = program.module()
    spec = program.call_spec.in_spec
    slots = _input_slots(program)
    names = tuple(name for name, constant in slots if constant is _BOUND)
    spellings = _spellings(program, spec, [constant is _BOUND for _, constant in slots])

    def call(tensors: list[torch.Tensor]) -> object:
        given = iter(tensors)
        leaves = [next(given) if constant is _BOUND else constant for _, constant in slots]
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return module(*args, **kwargs)

    return TorchProgram(
        module=module,
        exported=program,
        names=names,
        spellings=spellings,
        required=len(names),
        call=call,
        notes=notes,
    )


def needs_move(program: torch.export.ExportedProgram, held: list[torch.Tensor], device: torch.device) -> bool:
    """Whether anything in the program lies or is made on another device."""
    if any(tensor.device != device for tensor in held):
        return True
    for node in program.graph.nodes:
        named = node.kwargs.get("device")
        value = node.meta.get("val")
        if named is not None and torch.device(named) != device:
            return True
        if isinstance(value, torch.Tensor) and value.device != device:
            return True
    return False


_BOUND = object()


def _input_slots(program: torch.export.ExportedProgram) -> list[tuple[str, object]]:
    """Return (name, constant or _BOUND) for each leaf of the program's inputs."""
    slots: list[tuple[str, object]] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        if isinstance(spec.arg, TensorArgument):
            slots.append((spec.arg.name, _BOUND))
        elif isinstance(spec.arg, ConstantArgument):
            slots.append((spec.arg.name, spec.arg.value))
        else:
            raise model_refusal("bind", f"the input {spec.arg} is a number that varies, which no dataset can feed")
    return slots


def _spellings(program: torch.export.ExportedProgram, spec: Any, is_bound: list[bool]) -> tuple[tuple[str, ...], ...]:
    """Return the inputs' names as dotted paths, where the program says what its arguments are called."""
    signature = program.module_call_graph[0].signature
    arguments = list(signature.forward_arg_names or ()) if signature is not None else []
    placeholders = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    names: list[str] = []
    for path, _ in pytree.tree_flatten_with_path(placeholders)[0]:
        keys = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path[1:]]
        if getattr(path[0], "idx", 1) == 0 and keys[0].isdecimal() and int(keys[0]) < len(arguments):
            keys[0] = arguments[int(keys[0])]
        names.append(".".join(keys))
    return (tuple(name for name, bound in zip(names, is_bound, strict=True) if bound),)


# --- Pickles and TorchScript ---------------------------------------------------------------------------------------


def _unpickle(path: Path) -> torch.nn.Module:
    """Unpickle a module with the standard unpickler, whatever module the artifact names. Runs its code."""
    value = torch.load(path, map_location="cpu", weights_only=False, pickle_module=pickle)
    if not isinstance(value, torch.nn.Module):
        raise model_refusal("load", f"the pickle holds a {type(value).__name__}, not a torch.nn.Module")
    return value


def _from_module(module: torch.nn.Module, device: torch.device) -> TorchProgram:
    """Put a module in evaluation mode, saying what was not."""
    training = tuple(name or "(root)" for name, part in module.named_modules() if part.training)
    module.eval().to(device)
    parameters = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)
    ]
    plain = [p for p in parameters if p.kind is not p.VAR_POSITIONAL]
    return TorchProgram(
        module=module,
        exported=None,
        names=tuple(p.name for p in plain),
        spellings=(),
        required=sum(p.default is p.empty for p in plain),
        call=lambda tensors: module(*tensors),
        training=training,
    )


def _from_script(module: Any, device: torch.device) -> TorchProgram:
    """Put a script module in evaluation mode; its schema says what the inputs are called."""
    training = tuple(name or "(root)" for name, part in module.named_modules() if getattr(part, "training", False))
    module.eval().to(device)
    arguments = module.forward.schema.arguments[1:]
    return TorchProgram(
        module=module,
        exported=None,
        names=tuple(a.name for a in arguments),
        spellings=(),
        required=sum(not a.has_default_value() for a in arguments),
        call=lambda tensors: module(*tensors),
        training=training,
    )
