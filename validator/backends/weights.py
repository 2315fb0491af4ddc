"""Are the initialisers of an ONNX file the tensors of the program? Bit for bit, or through a folding that is known.

Says which tensor is not the model's, whatever the inputs: a stale export, weights that went through float16, two that
were exchanged. Matches by name first; what has no name of the program's by its bytes; what has other bytes by what an
exporter may have computed ahead. What then stands for nothing is reported, and is stale if it is close to exactly one
tensor that is missing.
"""

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from validator.backends.constants import Constants, Floats, Norm, read_constants
from validator.backends.interface import NAMES_LIMIT, DifferenceKind, TensorDifference, WeightsFacts
from validator.backends.onnx_file import open_onnx, paired_biases
from validator.backends.onnx_file import read_constants as read_initialisers
from validator.backends.refusals import clean_line
from validator.backends.torch_program import TorchProgram, load_program

Array = NDArray[Any]

NAME_LENGTH = 200

ROUNDINGS = 16
"""How far arithmetic of a few steps may be from fp64, in unit roundoffs of what is added up. A batch norm takes five
roundings; an eps ten times too large moves a float32 weight 90 times as far as this."""

ROUNDOFF = MappingProxyType({"float16": 2.0**-11, "bfloat16": 2.0**-8})
"""Unit roundoff of narrow floats; of all others float32's counts, because exporters fold in no wider format."""

CLOSE = 0.5
"""RMS difference over the tensor's own spread. Two trained states of one tensor are closer, two tensors drawn
independently at 1.4."""

SAMPLED = 4096
"""Elements by which closeness is estimated before a whole tensor is read."""

MOSTLY = 0.25
"""Share of elements that are equal bit for bit, and not zero, from which two tensors are states of one."""

TINY = MappingProxyType({"float16": 2.0**-24})
LEAST_NORMAL = 2.0**-126
"""Below it nothing in float32 and bfloat16 has digits; float16 has the steps that `TINY` says."""


def reach(size: Floats | float, dtype: np.dtype[Any]) -> Floats | float:
    """Return the largest absolute difference that rounding to a dtype explains in a sum of terms of that size."""
    return ROUNDINGS * ROUNDOFF.get(dtype.name, 2.0**-24) * size + TINY.get(dtype.name, LEAST_NORMAL)


BFLOAT16: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))

NARROW = {torch.bfloat16: BFLOAT16} | {
    getattr(torch, name): np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))
    for name, code in (
        ("float8_e4m3fn", onnx.TensorProto.FLOAT8E4M3FN),
        ("float8_e5m2", onnx.TensorProto.FLOAT8E5M2),
    )
}
"""Element types that torch has and numpy lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A batch norm folded into the contraction before it."""

    norm: Norm
    weight: str
    """The contraction's weight."""
    form: "Form"


@dataclass(frozen=True, slots=True)
class Initialiser:
    """A tensor of the ONNX file, read when it is needed."""

    proto: Any
    folder: Path

    @property
    def name(self) -> str:
        """As the file has it."""
        return str(self.proto.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""
        return tuple(self.proto.dims)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.proto.data_type))

    def read(self) -> Array:
        """Read its values."""
        return np.ascontiguousarray(onnx.numpy_helper.to_array(self.proto, base_dir=str(self.folder)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What an initialiser could be, in fp64."""

    what: str
    names: frozenset[str]
    """The program's tensors in it."""
    values: Floats
    size: Floats | float
    """Of the terms that are added up to it, per element."""

    def differs(self, values: Floats, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
        """Where no rounding to a dtype explains the difference. NaN differs."""
        return np.asarray(~(abs(values - self.values) <= reach(self.size, dtype)))

    def admits(self, values: Floats, dtype: np.dtype[Any]) -> bool:
        """Whether rounding to a dtype explains every difference."""
        return values.shape == self.values.shape and not self.differs(values, dtype).any()


@dataclass(slots=True, kw_only=True)
class Account:
    """What was made of the initialisers so far."""

    counts: Counter[str] = field(default_factory=Counter)
    """`equal`, `rearranged`, `folded`, `converted`."""
    found: set[str] = field(default_factory=set)
    """The program's tensors that something stands for."""
    differences: list[TensorDifference] = field(default_factory=list)
    folds: dict[str, list[Fold]] = field(default_factory=dict)
    """Initialiser -> the norms that may be folded into it."""

    def take(self, how: str, names: Iterable[str]) -> None:
        """Note that an initialiser is accounted for."""
        self.counts[how] += 1
        self.found.update(names)

    def differ(self, initialiser: Initialiser, form: Form, unequal: NDArray[np.bool_], kind: DifferenceKind) -> None:
        """Note that an initialiser is not what it stands for."""
        self.found.update(form.names)
        self.differences.append(describe_difference(initialiser, form, unequal, kind))


def compare_files(path: Path, model_format: str, onnx_path: Path) -> WeightsFacts:
    """Compare the initialisers of an ONNX file with the tensors of a model file.

    Raises:
        BackendRefusal: format or model: one of the files is unsafe or not whole, or the model does not load.
    """
    return compare_weights(load_program(path, model_format, torch.device("cpu")), onnx_path)


def compare_weights(program: TorchProgram, path: Path) -> WeightsFacts:
    """Compare the initialisers of an ONNX file with the tensors of a program.

    Raises:
        BackendRefusal: format: the ONNX file is not safe or not whole.
    """
    model = open_onnx(path)
    constants = read_constants(program)
    initialisers = [Initialiser(proto, path.parent) for proto in read_initialisers(model)]
    account = Account()
    unnamed = [initialiser for initialiser in initialisers if not take_named(initialiser, constants, account)]
    left = take_equal([i for i in unnamed if is_comparable(i)], constants, account)
    left = take_folded(left, constants, account)
    left = take_biases(left, paired_biases(model), constants, account)
    left = take_stale(left, constants, account)
    missing = find_missing(initialisers, constants, account)
    return WeightsFacts(
        equal=account.counts["equal"],
        rearranged=account.counts["rearranged"],
        folded=account.counts["folded"],
        converted=account.counts["converted"],
        differing=len(account.differences),
        differences=tuple(account.differences[:NAMES_LIMIT]),
        unexplained=len(left),
        unexplained_names=tuple(short_name(initialiser.name) for initialiser in left[:NAMES_LIMIT]),
        tensors=len(distinct_tensors(constants)),
        missing=len(missing),
        missing_names=tuple(short_name(name) for name in missing[:NAMES_LIMIT]),
    )


def is_comparable(initialiser: Initialiser) -> bool:
    """Whether a tensor without a name of the program's could be one of it: floating, and not one number throughout."""
    if initialiser.size < 2 or not is_floating(initialiser.dtype):
        return False
    return not is_uniform(initialiser.read())


# --- By name -------------------------------------------------------------------------------------------------------


def take_named(initialiser: Initialiser, constants: Constants, account: Account) -> bool:
    """Judge an initialiser that bears the name and has the shape of one of the program's tensors."""
    tensor = constants.tensors.get(initialiser.name)
    if tensor is None or tuple(tensor.shape) != initialiser.shape:
        return False
    wanted, found = array_of(tensor), initialiser.read()
    if is_floating(wanted.dtype) != is_floating(found.dtype):
        return False  # quantised: a number of another kind
    names = frozenset({initialiser.name})
    if same_bits(wanted, found):
        account.take("equal", names)
        return True
    if wanted.dtype != found.dtype and same_bits(wanted.astype(found.dtype), found):
        account.take("converted", names)
        return True
    values = found.astype(np.float64)
    folds = list(folds_into(initialiser.name, wanted, constants))
    forms = [fold.form for fold in folds]
    account.folds[initialiser.name] = matching = [fold for fold in folds if fold.form.admits(values, found.dtype)]
    if matching:
        account.take("folded", names.union(*(fold.form.names for fold in matching)))
        return True
    plain = Form(what=initialiser.name, names=names, values=wanted.astype(np.float64), size=0.0)
    closest = min([plain, *forms], key=lambda form: rms(values - form.values))
    if closest is plain:
        kind = kind_of_difference(initialiser.name, wanted.astype(found.dtype), found, constants)
        account.differ(initialiser, plain, bits(wanted.astype(found.dtype)) != bits(found), kind)
    else:
        account.folds[initialiser.name] = [fold for fold in folds if fold.form is closest]
        unequal = closest.differs(values, found.dtype)
        account.differ(initialiser, closest, unequal, rounding(closest.values, found))
    return True


def kind_of_difference(name: str, wanted: Array, found: Array, constants: Constants) -> DifferenceKind:
    """Say what a tensor looks like that is not the one whose name it bears."""
    if wanted.ndim > 1 and wanted.shape[-1] == wanted.shape[-2] and same_bits(wanted.swapaxes(-1, -2), found):
        return DifferenceKind.TRANSPOSED
    if is_floating(wanted.dtype) and same_bits(-wanted, found):
        return DifferenceKind.SIGN
    for other, tensor in constants.tensors.items():
        if other != name and tensor.numel() == found.size and same_bits(array_of(tensor).reshape(found.shape), found):
            return DifferenceKind.EXCHANGED
    return rounding(wanted.astype(np.float64), found)


def rounding(wanted: Floats, found: Array) -> DifferenceKind:
    """Say whether values went through a narrower type: they have no more digits than it, and are near."""
    values = found.astype(np.float64)
    near = abs(values - wanted)
    for kind, dtype, unit in (
        (DifferenceKind.FLOAT16, np.dtype(np.float16), 2.0**-11),
        (DifferenceKind.BFLOAT16, BFLOAT16, 2.0**-8),
    ):
        with np.errstate(over="ignore", invalid="ignore"):
            is_narrow = np.array_equal(values.astype(np.float32).astype(dtype).astype(np.float64), values)
        if is_narrow and bool((near <= 1.01 * unit * abs(wanted) + 2.0**-24).all()):
            return kind
    return DifferenceKind.OTHER


# --- By content ------------------------------------------------------------------------------------------------------


def take_equal(left: list[Initialiser], constants: Constants, account: Account) -> list[Initialiser]:
    """Account for initialisers that have the bytes of a tensor, or of what an exporter may have made of some."""
    wanted: dict[int, set[np.dtype[Any]]] = defaultdict(set)
    for initialiser in left:
        wanted[initialiser.size].add(initialiser.dtype)
    known: dict[str, tuple[str, frozenset[str]]] = {}
    plain = ((frozenset({name}), tensor) for name, tensor in constants.tensors.items())
    for how, source in (("equal", plain), ("rearranged", constants.expressions())):
        for names, tensor in source:
            if not (tensor.is_floating_point() and tensor.numel() in wanted):
                continue
            values = array_of(tensor)
            for dtype in wanted[tensor.numel()]:
                told = how if dtype == values.dtype else "converted"
                for form in arrangements(values.astype(dtype, copy=False)):
                    moved = "rearranged" if told == "equal" and form is not values else told
                    first, others = known.get(key := digest(form), (moved, frozenset()))
                    known[key] = (first, others | names)  # equal tensors are in the file once
    rest: list[Initialiser] = []
    for initialiser in left:
        match = known.get(digest(initialiser.read()))
        if match is None:
            rest.append(initialiser)
        else:
            account.take(*match)
    return rest


def arrangements(values: Array) -> Iterator[Array]:
    """Yield the orders in which exporters write a tensor: as it is, its last two dimensions exchanged, all reversed."""
    yield values
    if values.ndim > 1:
        yield values.swapaxes(-1, -2)
    if values.ndim > 2:
        yield values.transpose()


# --- By what can be computed ahead -----------------------------------------------------------------------------------


def folds_into(name: str, weight: Array, constants: Constants) -> Iterator[Fold]:
    """Yield what a weight or a bias becomes with a batch norm behind it: W * scale, (b - mean) * scale + shift."""
    stem, _, last = name.rpartition(".")
    for norm in constants.norms:
        if weight.ndim == 1 and len(weight) == len(norm.mean):
            owner = f"{stem}.weight" if stem else "weight"
            if last == "bias" and norm.follows in (None, owner):
                yield Fold(norm=norm, weight=owner, form=folded_bias(norm, name, weight.astype(np.float64)))
        elif weight.ndim > 1 and norm.follows in (None, name):
            for scale in scales_over(norm, weight.shape):
                yield Fold(norm=norm, weight=name, form=folded_weight(norm, name, weight, scale))


def scales_over(norm: Norm, shape: tuple[int, ...]) -> Iterator[Floats]:
    """Yield how a norm's scale may lie over a weight: along its first or second dimension, or along both.

    Both, for a transposed convolution in groups: its shape is (in, out / groups, ...), and the rows of one group scale
    with that group's part of the norm.
    """
    channels = len(norm.scale)
    rest = [1] * (len(shape) - 2)
    for axis in (0, 1):
        if shape[axis] == channels:
            yield norm.scale.reshape([-1, 1, *rest] if axis == 0 else [1, -1, *rest])
    groups = channels // shape[1]
    if groups > 1 and channels == groups * shape[1] and shape[0] % groups == 0:
        yield np.repeat(norm.scale.reshape(groups, shape[1]), shape[0] // groups, axis=0).reshape([*shape[:2], *rest])


def folded_weight(norm: Norm, name: str, weight: Array, scale: Floats) -> Form:
    """Return weight * scale."""
    values = weight.astype(np.float64) * scale
    return Form(
        what=f"{name} with batch norm {norm.title} folded in",
        names=frozenset({name, *norm.names}),
        values=values,
        size=abs(values),
    )


def folded_bias(norm: Norm, name: str | None, bias: Floats | float) -> Form:
    """Return (bias - mean) * scale + shift."""
    values = (bias - norm.mean) * norm.scale + norm.shift
    size = (np.abs(bias) + np.abs(norm.mean)) * np.abs(norm.scale) + np.abs(norm.shift)
    folded = f"batch norm {norm.title} folded"
    return Form(
        what=f"{name} with {folded} in" if name else f"the bias of {folded}",
        names=frozenset({*([name] if name else []), *norm.names}),
        values=values,
        size=size,
    )


def take_folded(left: list[Initialiser], constants: Constants, account: Account) -> list[Initialiser]:
    """Account for initialisers that rounding alone tells from what can be computed from the program's tensors."""
    derived = derived_forms(left, constants)
    rest: list[Initialiser] = []
    for initialiser in left:
        found = initialiser.read()
        values, dtype = found.astype(np.float64), found.dtype
        folds = [fold for fold in weight_folds(values, dtype, constants) if fold.form.admits(values, dtype)]
        form = next((f.form for f in folds), None) or next(
            (form for form in derived[initialiser.size] if form.admits(values.reshape(form.values.shape), dtype)), None
        )
        if form is None:
            rest.append(initialiser)
            continue
        account.folds[initialiser.name] = folds
        account.take("folded", form.names)
    return rest


def weight_folds(values: Floats, dtype: np.dtype[Any], constants: Constants) -> Iterator[Fold]:
    """Yield the folds that a nameless weight could be: those that fit one element of each channel."""
    if values.ndim < 2:
        return
    for name, tensor in constants.tensors.items():
        if tensor.is_floating_point() and tuple(tensor.shape) in (values.shape, values.shape[::-1]):
            weight = array_of(tensor)
            for arranged in [a for a in arrangements(weight) if a.shape == values.shape]:
                for norm in constants.norms:
                    if norm.follows not in (None, name):
                        continue
                    for scale in scales_over(norm, arranged.shape):
                        first = tuple(slice(None) if size > 1 else 0 for size in scale.shape)
                        probe = arranged[first].astype(np.float64) * scale[first]
                        if (abs(values[first] - probe) <= reach(abs(probe), dtype)).all():
                            yield Fold(norm=norm, weight=name, form=folded_weight(norm, name, arranged, scale))


def derived_forms(left: list[Initialiser], constants: Constants) -> dict[int, list[Form]]:
    """Compute what could have been computed ahead, by number of elements, for the sizes that are asked for."""
    sizes = {initialiser.size for initialiser in left}
    forms: dict[int, list[Form]] = defaultdict(list)
    for norm in constants.norms:
        if len(norm.mean) in sizes:
            forms[len(norm.mean)].append(folded_bias(norm, None, 0.0))
    for names, tensor in constants.expressions() if sizes else ():
        if tensor.is_floating_point() and tensor.numel() in sizes:
            for form in arrangements(array_of(tensor).astype(np.float64)):
                size = float(np.max(abs(form), initial=0.0))
                what = f"a value computed from {', '.join(sorted(names)[:3]) or 'nothing'}"
                forms[tensor.numel()].append(Form(what=what, names=names, values=form, size=size))
    return forms


def take_biases(
    left: list[Initialiser], pairs: Mapping[str, str], constants: Constants, account: Account
) -> list[Initialiser]:
    """Judge biases of contractions that a batch norm was folded into: what they must be is known then."""
    rest: list[Initialiser] = []
    for initialiser in left:
        folds = account.folds.get(pairs.get(initialiser.name, ""), [])
        forms = [form for fold in folds if (form := bias_of(fold, initialiser, constants)) is not None]
        found = initialiser.read().reshape(-1)
        values = found.astype(np.float64)
        admitting = next((form for form in forms if form.admits(values, found.dtype)), None)
        if not forms:
            rest.append(initialiser)
        elif admitting is not None:
            account.take("folded", admitting.names)
        else:
            closest = min(forms, key=lambda form: rms(values - form.values))
            unequal = closest.differs(values, found.dtype)
            account.differ(initialiser, closest, unequal, rounding(closest.values, found))
    return rest


def bias_of(fold: Fold, initialiser: Initialiser, constants: Constants) -> Form | None:
    """Return the bias that belongs to a folded weight; None where it has another size."""
    name = f"{fold.weight.removesuffix('weight')}bias"
    bias = constants.tensors.get(name)
    if initialiser.size != len(fold.norm.mean) or (bias is not None and bias.numel() != initialiser.size):
        return None
    if bias is None:
        return folded_bias(fold.norm, None, 0.0)
    return folded_bias(fold.norm, name, array_of(bias).astype(np.float64))


# --- What is left ----------------------------------------------------------------------------------------------------


def take_stale(left: list[Initialiser], constants: Constants, account: Account) -> list[Initialiser]:
    """Find initialisers that are another state of exactly one tensor that is missing."""
    missing = {name for name in distinct_tensors(constants) if name not in account.found}
    sizes = {initialiser.size for initialiser in left}
    forms = {size: list(derived) for size, derived in derived_forms(left, constants).items()}
    for name in sorted(missing):
        tensor = constants.tensors[name]
        if tensor.numel() in sizes:
            for values in arrangements(array_of(tensor).astype(np.float64)):
                form = Form(what=name, names=frozenset({name}), values=values, size=0.0)
                forms.setdefault(tensor.numel(), []).append(form)
    rest: list[Initialiser] = []
    for initialiser in left:
        found = initialiser.read()
        candidates = [form for form in forms.get(initialiser.size, ()) if form.names & missing]
        stale = choose_stale(found, candidates, has_graph=constants.exported is not None)
        if stale is None:
            rest.append(initialiser)
            continue
        wanted = stale.values.astype(found.dtype).reshape(found.shape)
        kind = rounding(wanted.astype(np.float64), found)
        account.differ(initialiser, stale, bits(np.ascontiguousarray(wanted)) != bits(found), kind)
    return rest


def choose_stale(found: Array, candidates: Sequence[Form], *, has_graph: bool) -> Form | None:
    """Return the one candidate that an initialiser is another state of; None if there is none, or no single one."""
    values = found.astype(np.float64).reshape(-1)
    near = [form for form in candidates if distance(values, form.values.reshape(-1)) < CLOSE]
    if len({form.names for form in near}) != 1:
        return None
    (form, *_) = sorted(near, key=lambda form: rms(values - form.values.reshape(-1)))
    wanted = form.values.reshape(-1)
    same = float(np.mean((wanted.astype(found.dtype) == found.reshape(-1)) & (wanted != 0)))
    if same >= MOSTLY or rounding(wanted, found.reshape(-1)) is not DifferenceKind.OTHER:
        return form
    # Without a graph nobody knows what was computed ahead; and what is rescaled throughout was folded, not trained.
    is_stale = has_graph and found.ndim > 1 and not (same == 0 and is_rescaled(found, form))
    return form if is_stale else None


def is_rescaled(found: Array, form: Form) -> bool:
    """Whether every row, or every column, is a multiple of what it is in the form."""
    values = found.astype(np.float64).reshape(len(found), -1)
    wanted = form.values.reshape(values.shape)
    for axis in (0, 1):
        norm = np.sum(wanted * wanted, axis=axis, keepdims=True)
        factor = np.divide(
            np.sum(values * wanted, axis=axis, keepdims=True), norm, out=np.zeros_like(norm), where=norm > 0
        )
        if bool((abs(values - factor * wanted) <= reach(abs(values), found.dtype)).all()):
            return True
    return False


def distance(values: Floats, wanted: Floats) -> float:
    """Return the RMS difference over the standard deviation of what is wanted, by a sample; infinite for NaN."""
    step = max(1, len(values) // SAMPLED)
    spread = float(np.std(wanted[::step]))
    share = rms(values[::step] - wanted[::step]) / spread if spread > 0 else math.inf
    return share if math.isfinite(share) else math.inf


def find_missing(initialisers: Sequence[Initialiser], constants: Constants, account: Account) -> list[str]:
    """Name the tensors that no initialiser stands for. One that equals another is in the file once."""
    missing = [
        name
        for name in distinct_tensors(constants)
        if name not in account.found and not is_uniform(array_of(constants.tensors[name]))
    ]
    sizes = {constants.tensors[name].numel() for name in missing}
    present = {digest(initialiser.read()) for initialiser in initialisers if initialiser.size in sizes}
    return [name for name in missing if digest(array_of(constants.tensors[name])) not in present]


def distinct_tensors(constants: Constants) -> list[str]:
    """Name the floating tensors of more than one element that the program uses, those that share memory once."""
    distinct: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in constants.tensors.items():
        if name in constants.used and tensor.is_floating_point() and tensor.numel() > 1:
            distinct.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name)
    return list(distinct.values())


# --- Arrays ----------------------------------------------------------------------------------------------------------


def array_of(tensor: torch.Tensor) -> Array:
    """Return a tensor's values; shares its memory where that is contiguous."""
    tensor = tensor.detach().contiguous()
    dtype = NARROW.get(tensor.dtype)
    if dtype is None:
        array: Array = tensor.numpy()
        return array
    return tensor.view(torch.int16 if dtype.itemsize == 2 else torch.int8).numpy().view(dtype)


def is_floating(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds floats; those that numpy lacks are extensions, and integers of few bits among them."""
    return np.issubdtype(dtype, np.floating) or dtype.name.startswith(("bfloat", "float"))


def bits(values: Array) -> Array:
    """Return the bits of each element as an unsigned integer."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def is_uniform(values: Array) -> bool:
    """Whether a tensor is one number throughout."""
    flat = bits(values).reshape(-1)
    return bool((flat == flat[0]).all())


def same_bits(wanted: Array, found: Array) -> bool:
    """Whether two tensors of one shape are equal bit for bit: NaN too, and minus zero is not zero."""
    return wanted.dtype == found.dtype and wanted.shape == found.shape and np.array_equal(bits(wanted), bits(found))


def digest(values: Array) -> str:
    """Return a digest of dtype and bytes; not of the shape."""
    content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return f"{values.dtype.name}:{hashlib.sha256(content.tobytes()).hexdigest()}"


def rms(values: Floats) -> float:
    """Return the root of the mean square; NaN stays NaN."""
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def describe_difference(
    initialiser: Initialiser, form: Form, unequal: NDArray[np.bool_], kind: DifferenceKind
) -> TensorDifference:
    """Count and measure how an initialiser differs from what it stands for."""
    found = initialiser.read().astype(np.float64).reshape(-1)
    wanted = form.values.reshape(-1)
    absolute = abs(found - wanted)
    relative = np.divide(absolute, abs(wanted), out=np.zeros_like(absolute), where=wanted != 0)
    return TensorDifference(
        name=short_name(initialiser.name),
        stands_for=short_name(form.what),
        elements=initialiser.size,
        unequal=int(np.count_nonzero(unequal)),
        largest_absolute=finite(float(absolute.max())),
        largest_relative=finite(float(relative.max())),
        kind=kind,
    )


def finite(value: float) -> float | None:
    """Return a number that JSON has, or None."""
    return value if math.isfinite(value) else None


def short_name(name: str) -> str:
    """Return a name that may be shown: the file's author chose it."""
    line = clean_line(name)
    return line if len(line) <= NAME_LENGTH else line[: NAME_LENGTH - 3] + "..."
