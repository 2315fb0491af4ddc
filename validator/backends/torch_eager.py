"""PyTorch on CPU and CUDA: fp32, fp64 and autocast rows, eager or through torch.compile."""

import contextlib
from collections.abc import Iterable

import torch

from validator.backends.binding import flatten_outputs, tensor_leaves
from validator.backends.catalog import Backend, Setting
from validator.backends.compiler import Compilation, require_compiler
from validator.backends.double import require_double, to_double
from validator.backends.fingerprint import fingerprint
from validator.backends.interface import BackendRefusal, Environment, ModelFile, Session
from validator.backends.knobs import UNREADABLE, more_notes, read_autocast, read_knobs, set_knobs
from validator.backends.perturb import Perturbation, move_one_ulp
from validator.backends.refusals import model_refusal, refusal_from, require_device
from validator.backends.torch_program import TorchProgram, load_program

_REDUCED = (torch.float16, torch.bfloat16)


def open_session(row: Backend, model: ModelFile) -> Session:
    """Load a model on one row of the catalog. Sets torch's global switches: one session per process.

    Raises:
        BackendRefusal: no such device or compiler, or a model that does not load.
    """
    require_device(row)
    if row.compile is not None:
        require_compiler(row)
    device = torch.device(f"{row.device_type}:{row.device_index}" if row.device_type != "cpu" else "cpu")
    program = load_program(model.path, model.format, device)
    session = TorchSession(row, model, program, device)
    # After loading and rewriting: torch.export uses cudnn.flags(), which raises once the new switches are set, and
    # which leaves them unset behind itself.
    set_knobs(row)
    return session


class TorchSession:
    """A program on a device."""

    def __init__(self, row: Backend, model: ModelFile, program: TorchProgram, device: torch.device) -> None:
        self._row = row
        self._device = device
        self._own_reduced = reduced_dtypes(program)
        if row.autocast is not None:
            drop_dtype_assertions(program.module)
        self._program = to_double(program, device) if row.dtype == "float64" else program
        if row.memory_format == "channels_last":
            use_channels_last(self._program)
        self._compilation = Compilation.of(self._program.module) if row.compile is not None else None
        self._feeds, how = self._program.bind(model.input_names)
        self._notes = {**self._program.notes, "inputs": how, "threads": str(torch.get_num_threads())}
        self._devices: set[str] = {str(tensor.device) for tensor in self._program.tensors()}
        self._dtypes: set[torch.dtype] = {t.dtype for t in self._program.tensors() if t.is_floating_point()}
        self._autocast: Setting = UNREADABLE
        self._formats: set[str] = set()
        self._perturbation: Perturbation | None = None
        self._generator: torch.Generator | None = None

    def run(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run one batch; see `interface.Session`."""
        try:
            tensors = [self._place(inputs[name]) for name in self._feeds]
            self._formats |= formats_of(tensors)
            with torch.inference_mode(), self._autocasting(), self._compiling():
                self._autocast = read_autocast(self._row.device_type)
                value = self._program.call(tensors)
            self._observe(value)
            if self._row.dtype == "float64":
                require_double(value)
            # Outside inference mode, and always a copy: an output may be a view of a buffer that the next run changes.
            return {
                name: tensor.detach().to("cpu", copy=True).contiguous()
                for name, tensor in flatten_outputs(value).items()
            }
        except BackendRefusal:
            raise
        # Running a model runs its code: whatever it raises is the model's, but for a machine that ran out.
        except Exception as error:
            raise refusal_from(error, "run") from error

    def perturb(self, seed: int) -> None:
        """Move parameters, buffers and what is run from now on by one ulp; see `interface.Perturbable`."""
        if self._perturbation is None:
            module = self._program.module
            self._perturbation = Perturbation([*module.parameters(), *module.buffers()])
        self._generator = torch.Generator().manual_seed(seed)
        self._perturbation.apply(self._generator)

    def environment(self) -> Environment:
        """Read every setting back from the libraries, now."""
        settings = read_knobs(self._row)
        settings["device"] = "+".join(sorted(self._devices)) or UNREADABLE
        settings["dtype"] = self._computed_dtype()
        settings["autocast"] = self._autocast
        settings["memory_format"] = self._memory_format()
        settings["compile"] = "off" if self._compilation is None else self._compilation.setting
        compiled = {} if self._compilation is None else self._compilation.notes()
        return Environment(
            settings=settings,
            fingerprint=fingerprint(device_index=self._row.device_index),
            notes=self._notes | compiled | more_notes(),
        )

    def _place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Move an input to the device and lay it out as the row asks; the reference's floating inputs become fp64."""
        if self._generator is not None:
            tensor = move_one_ulp(tensor, self._generator)
        if self._row.memory_format == "channels_last" and tensor.ndim == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        if self._row.dtype == "float64" and tensor.is_floating_point():
            return tensor.to(self._device, torch.float64)
        if self._row.dtype == "float64" and tensor.is_complex():
            return tensor.to(self._device, torch.complex128)
        return tensor.to(self._device)

    def _compiling(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._compilation is None else self._compilation.watching()

    def _autocasting(self) -> contextlib.AbstractContextManager[object]:
        if self._row.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self._row.device_type, dtype=getattr(torch, self._row.autocast))

    def _observe(self, value: object) -> None:
        """Note where the outputs lie and, unless autocast chooses it, their dtype."""
        leaves = tensor_leaves(value)
        if not leaves:
            raise model_refusal("run", "the model returned no tensor")
        # A shape that the model returns may lie on the CPU without having been computed anywhere else.
        floating = [leaf for leaf in leaves if leaf.is_floating_point() or leaf.is_complex()]
        self._devices |= {str(leaf.device) for leaf in floating or leaves}
        if self._row.autocast is None:
            self._dtypes |= {leaf.dtype for leaf in leaves if leaf.is_floating_point()}

    def _computed_dtype(self) -> str:
        """Return the floating dtype, those joined by + where there are several.

        Reduced dtypes that the model itself stores or casts to are its own function, not the row's doing.
        """
        dtypes = self._dtypes - self._own_reduced
        if not dtypes and self._devices:
            # A model of integers, or one in float16 throughout: there is nothing that the row could have decided.
            return self._row.dtype
        return "+".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes)) or UNREADABLE

    def _memory_format(self) -> str:
        """Return the layout of what the session placed, those joined by + where there are several.

        A model's own layout of its weights is its own function where the row does not ask for another.
        """
        formats = self._formats
        if self._row.memory_format == "channels_last":
            formats = formats | formats_of(self._program.tensors())
        return "+".join(sorted(formats)) or "contiguous"


# --- Programs ----------------------------------------------------------------------------------------------------


def reduced_dtypes(program: TorchProgram) -> frozenset[torch.dtype]:
    """Return the 16-bit dtypes that the model itself stores or casts to."""
    own = {tensor.dtype for tensor in program.tensors()}
    for module in program.module.modules():
        if isinstance(module, torch.fx.GraphModule):
            values = (node.meta.get("val") for node in module.graph.nodes)
            own |= {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return frozenset(own.intersection(_REDUCED))


def use_channels_last(program: TorchProgram) -> None:
    """Lay out every 4-D parameter, buffer and constant with its channels last, in place."""
    for tensor in program.tensors():
        if tensor.ndim == 4:
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def formats_of(tensors: Iterable[torch.Tensor]) -> set[str]:
    """Return the memory formats of the 4-D tensors; one that has one channel or one pixel is in both, and says none."""
    found: set[str] = set()
    for tensor in tensors:
        if tensor.ndim == 4:
            plain = tensor.is_contiguous()
            last = tensor.is_contiguous(memory_format=torch.channels_last)
            if plain != last:
                found.add("contiguous" if plain else "channels_last")
            elif not plain:
                found.add("strided")
    return found


def drop_dtype_assertions(module: torch.nn.Module) -> None:
    """Erase what export wrote down about dtypes: under autocast they differ, which is what the row asks for."""
    for part in module.modules():
        if not isinstance(part, torch.fx.GraphModule):
            continue
        for node in list(part.graph.nodes):
            if node.op == "call_function" and "_assert_tensor_metadata" in str(node.target):
                part.graph.erase_node(node)
        part.recompile()
