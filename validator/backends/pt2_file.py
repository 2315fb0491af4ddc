"""Is a `.pt2` archive safe to open? Asked before torch sees it.

`torch.export.load` unpickles whatever a record says is pickled, opens bundled AOTInductor libraries, passes size
expressions to `sympy.sympify` (which calls `eval`), writes shape guards into a function that it compiles with `exec`,
and resolves operators by walking attributes from the module `torch`. So each record must be what its place in the
archive says, and each string in the program that torch would evaluate must be arithmetic. This list may only shrink:
a record or name that is not known here is refused.
"""

import ast
import io
import json
import re
import stat
import struct
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from validator.backends.interface import BackendRefusal
from validator.backends.refusals import clean_line, format_refusal

RATIO_LIMIT = 100
"""Unpacked bytes to packed bytes: torch stores without compression, so 1 is the norm."""
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
"""How a zip archive ends: the plain end, and before it what locates the end of a large one, and that."""
_SMALL_BYTES = 1 << 20
RECORD_COUNT_LIMIT = 100_000
JSON_LIMIT_BYTES = 1 << 29

_TEXT = re.compile(
    r"(archive_format|archive_version|byteorder|\.data/version|\.data/serialization_id|\.format_version)"
)
_CONFIG = re.compile(r"data/(weights|constants)/model_\1_config\.json")
"""The two that torch reads: any other one could only say something else of the same records."""
_PROGRAM = re.compile(r"models/[\w.-]+\.json")
_EXTRA = re.compile(r"extra/[\w./-]+")
_PAYLOAD = re.compile(r"data/(weights/weight_\d+|constants/tensor_\d+)")
_PICKLED = re.compile(r"data/(weights|constants|sample_inputs)/[\w.-]+\.pt")
_IDENTIFIER = re.compile(r"[\w.]*")
"""Names of values and arguments: FX writes them into Python source as they are."""
_ATTRIBUTE = re.compile(r"[\w ./:@+-]*")
"""Names of weights and modules: FX writes one that is no identifier between double quotes, and escapes nothing."""
_WORD = re.compile(r"[\w.+-]*")
_NAMING = dict.fromkeys(("name", "as_name", "forward_arg_names", "field_names"), _IDENTIFIER) | dict.fromkeys(
    (
        "target", "fqn", "class_fqn", "buffer_name", "parameter_name", "tensor_constant_name", "custom_obj_name",
        "user_input_name",
    ),
    _ATTRIBUTE,
) | dict.fromkeys(
    ("type", "verifiers", "torch_version"), _WORD
) | dict.fromkeys(
    ("as_float", "as_floats", "as_float_lists", "real", "imag"), re.compile("-?Infinity|NaN")
)  # fmt: skip
"""The keys of a program that name something, and what such a name may be; numbers that JSON has no others for, too."""
_MAPS = frozenset({
    "tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values", "custom_obj_values",
    "as_string_to_argument", "treespec_namedtuple_fields", "opset_version",
})  # fmt: skip
"""The keys of a program under which lie mappings from names."""
_QUOTED = frozenset({"as_string", "as_strings", "stack_trace"})
"""Free text: arguments, which FX writes as Python's `repr`, and what is kept for people."""
_TREES = frozenset({
    "builtins.tuple", "builtins.list", "builtins.dict", "collections.namedtuple", "collections.OrderedDict",
    "collections.deque", "torch.fx.immutable_collections.immutable_list",
    "torch.fx.immutable_collections.immutable_dict", "torch.Size",
})  # fmt: skip
"""The containers of a pytree. Not `defaultdict`: torch would import the module of its factory."""
_KEY = re.compile(r"[\w ./-]*")
"""A key of a dictionary in a pytree: FX writes those of keyword arguments into the head of a function."""
_EXPRESSION = re.compile(r"[\w .,()\[\]'+*/%<>=!&|~^-]*")
"""No comment, line end, double quote or backslash: a guard is written into a line of code, and into a text in it."""
_NAME = re.compile(r"(?!.*__)[\w.-]{1,200}")
"""A string inside an expression: a symbol or an input. sympy evaluates strings again, so never more than a name."""
_TEXT_CONTENT = re.compile(rb"[\x20-\x7e\n]{0,128}")

_OPERATOR = re.compile(
    r"(?!torch\.ops\.aten\.(from_file|save)\.)"  # they open whatever file they are told
    r"(?!torch\.ops\.prim\.(PythonOp|IgnoredPythonOp|profile\w*)\.)"  # looking them up is a segmentation fault
    r"(torch\.ops\.(aten|prim|prims|torchvision|quantized|quantized_decomposed)\.\w+\.\w+"
    r"|torch\.ops\.higher_order\.(cond|while_loop|scan|map_impl|associative_scan|invoke_subgraph|strict_mode"
    r"|wrap_with_set_grad_enabled|wrap_with_autocast|tag_activation_checkpoint|flex_attention|out_dtype)"
    r"|torch\.sym_\w+|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|truediv|mod|pow|and_|or_|getitem"
    r"|not_|lshift|rshift|index|abs|xor|invert)"
    r"|math\.(trunc|ceil|floor|sqrt|pow|log2)|torch\._sym_(sqrt|log2|ite))"
)
_CALLS = frozenset({
    "Symbol", "Integer", "Float", "Rational", "Max", "Min", "Abs", "Eq", "Ne", "Lt", "Le", "Gt",
    "Ge", "LessThan", "GreaterThan", "StrictLessThan", "StrictGreaterThan", "Equality", "Unequality",
    "And", "Or", "Not", "Mod", "FloorDiv", "ModularIndexing", "Where", "PythonMod",
    "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "LShift", "RShift", "PowByNatural",
    "FloatPow", "FloatTrueDiv", "IntTrueDiv", "IsNonOverlappingAndDenseIndicator", "TruncToFloat",
    "TruncToInt", "RoundToInt", "RoundDecimal", "ToFloat", "Identity", "Add", "Mul", "Pow",
    "floor", "ceiling", "sqrt", "max", "min", "abs", "int", "float", "bool", "round", "not",
    "size", "stride", "storage_offset", "dim", "numel", "item",
    "sym_max", "sym_min", "sym_ite", "sym_not", "sym_int", "sym_float", "sym_sqrt", "sym_sum",
})  # fmt: skip
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Constant, ast.Name, ast.Load,
    ast.Subscript, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.keyword, ast.Tuple,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Pt2Facts:
    """What can be read off the archive without loading it."""

    torch_version: str
    operators: frozenset[str]
    """Every operator that the program names."""


def vet_pt2(path: Path) -> Pt2Facts:
    """Read every record of a `.pt2` archive and make sure that loading it runs no foreign code.

    Raises:
        BackendRefusal: format; the message names the record.
    """
    try:
        _vet_ends(path)
        with zipfile.ZipFile(path) as archive:
            return _vet_archive(archive, path)
    except BackendRefusal:
        raise
    except Exception as error:  # on broken bytes zipfile and its codecs raise whatever comes up
        raise format_refusal(f"{path.name} is not a readable archive: {error}") from error


def _vet_ends(path: Path) -> None:
    """Make sure that the file is one archive from its first byte to its last, the same one to every reader.

    A `.pt2` holds archives of its own (the sample inputs). Cut short, or with something before or after it, one reader
    may take an inner archive for the whole where another does not. Of two directories in one file, zipfile takes the
    one that lies before the end, and torch the one that the end points to: so they must be one.
    """
    with path.open("rb") as stream:
        head = stream.read(4)
        tail_start = max(path.stat().st_size - _END.size - _LOCATOR.size - _END64.size, 0)
        stream.seek(tail_start)
        tail = stream.read()
    if head != b"PK\x03\x04" or not tail[-_END.size :].startswith(b"PK\x05\x06") or not tail.endswith(b"\x00\x00"):
        raise format_refusal(f"{path.name} is not a readable archive: cut short, or with something around it")
    if not _points_to_itself(tail, tail_start):
        raise format_refusal(f"{path.name} has an end that points elsewhere than to the directory before it")


def _points_to_itself(tail: bytes, tail_start: int) -> bool:
    """Whether the end of an archive says that the directory lies right before it.

    Args:
        tail: the last bytes: room for the end of a large archive, its locator and the plain end.
        tail_start: where they lie in the file.
    """
    end_at = len(tail) - _END.size
    _, disk, first, here, total, size, offset, _ = _END.unpack_from(tail, end_at)
    if tail[:end_at][-_LOCATOR.size :].startswith(b"PK\x06\x07"):
        plain, end_at = (here, total, size, offset), end_at - _LOCATOR.size - _END64.size
        if end_at < 0 or tail[end_at : end_at + 4] != b"PK\x06\x06":
            return False
        _, locator_disk, at, disks = _LOCATOR.unpack_from(tail, end_at + _END64.size)
        _, length, _, _, disk, first, here, total, size, offset = _END64.unpack_from(tail, end_at)
        is_one = (locator_disk, at, length) == (0, tail_start + end_at, _END64.size - 12) and disks <= 1
        saturated = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
        values = (here, total, size, offset)
        if not is_one or any(p not in (s, v) for p, s, v in zip(plain, saturated, values, strict=True)):
            return False
    return (disk, first) == (0, 0) and here == total and offset + size == tail_start + end_at


def _vet_archive(archive: zipfile.ZipFile, path: Path) -> Pt2Facts:
    """Vet the records, those that say what others are first."""
    records = _records(archive, path)
    configs = [name for name in records if _CONFIG.fullmatch(name)]
    raw = {name for config in configs for name in _raw_tensors(archive, records, config)}
    programs = [name for name in records if _PROGRAM.fullmatch(name)]
    if programs != ["models/model.json"]:
        raise format_refusal(f"{path.name} holds {len(programs)} programs, not the one called model.json")
    for name, info in records.items():
        if name in raw or _CONFIG.fullmatch(name) or _PROGRAM.fullmatch(name):
            continue
        _vet_record(archive, name, info)
    facts = _vet_program(_read_json(archive, records[programs[0]]), records[programs[0]].filename)
    _vet_checksums(archive)
    return facts


def _vet_checksums(archive: zipfile.ZipFile) -> None:
    """Compare every record with its checksum: torch does not, and would compute with whatever bytes are there."""
    if (damaged := archive.testzip()) is not None:
        raise format_refusal(f"the record {damaged!r} does not match its checksum: the file is damaged")


def _records(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return record name, without the archive's own root folder, -> entry; refuse bombs and odd entries."""
    infos = archive.infolist()
    if not 0 < len(infos) <= RECORD_COUNT_LIMIT:
        raise format_refusal(f"{path.name} holds {len(infos)} records")
    unpacked = sum(info.file_size for info in infos)
    if unpacked > RATIO_LIMIT * path.stat().st_size:
        raise format_refusal(f"{path.name} unpacks to {unpacked} bytes, over {RATIO_LIMIT} times its size")
    records: dict[str, zipfile.ZipInfo] = {}
    folded: set[str] = set()
    roots = {info.filename.partition("/")[0] for info in infos}
    for info in infos:
        name = info.filename.partition("/")[2]
        kind = stat.S_IFMT(info.external_attr >> 16)
        if not name or info.is_dir() or ".." in name.split("/") or name in records or kind not in (0, stat.S_IFREG):
            raise format_refusal(f"the record {info.filename!r} is not a plain file of its own name")
        if info.flag_bits & 1:
            raise format_refusal(f"the record {info.filename!r} is encrypted")
        if info.orig_filename != info.filename or name.casefold() in folded:
            raise format_refusal(f"the record {info.filename!r} is another one to torch, which ignores case")
        folded.add(name.casefold())
        records[name] = info
    if len(roots) != 1:
        raise format_refusal(f"{path.name} holds {len(roots)} root folders, not one: not written by torch.export.save")
    return records


def _read_json(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> object:
    """Parse a record as JSON."""
    if info.file_size > JSON_LIMIT_BYTES:
        raise format_refusal(f"the record {info.filename!r} holds {info.file_size} bytes of JSON")
    try:
        return json.loads(archive.read(info).decode())  # as torch does; of bytes, json would guess the encoding
    except (ValueError, RecursionError) as error:
        raise format_refusal(f"the record {info.filename!r} is not JSON: {error}") from error


def _raw_tensors(archive: zipfile.ZipFile, records: dict[str, zipfile.ZipInfo], config: str) -> set[str]:
    """Return the records that a payload configuration declares as raw bytes and never as a pickle."""
    document = _read_json(archive, records[config])
    entries = document.get("config") if isinstance(document, dict) else None
    if not isinstance(entries, dict):
        raise format_refusal(f"the record {config!r} describes no payloads")
    folder = config.rpartition("/")[0]
    raw: set[str] = set()
    pickled: set[str] = set()
    for entry in entries.values():
        path_name = entry.get("path_name") if isinstance(entry, dict) else None
        name = f"{folder}/{path_name}"
        if not _PAYLOAD.fullmatch(name):
            raise format_refusal(f"{config!r} declares {path_name!r}, which is no tensor")
        if name not in records:
            raise format_refusal(f"{config!r} declares {path_name!r}, which the archive lacks")
        (raw if entry.get("use_pickle") is False else pickled).add(name)
    return raw - pickled


def _vet_record(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> None:
    """Vet one record by the place where it lies."""
    if _TEXT.fullmatch(name):
        if not _TEXT_CONTENT.fullmatch(archive.read(info)):
            raise format_refusal(f"the record {info.filename!r} is not a short line of text")
    elif _EXTRA.fullmatch(name):
        _vet_extra(archive, info)
    elif _PAYLOAD.fullmatch(name) or _PICKLED.fullmatch(name):
        _vet_pickled(archive, info)
    else:
        raise format_refusal(f"the record {info.filename!r} is no weight, constant, program or metadata")


def _vet_extra(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Extra files are returned as text, never opened: they must be text."""
    try:
        text = archive.read(info).decode()
    except UnicodeDecodeError as error:
        raise format_refusal(f"the extra file {info.filename!r} is not text") from error
    if "\x00" in text:
        raise format_refusal(f"the extra file {info.filename!r} is not text")


def _vet_pickled(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Tensors and plain containers only, judged by torch's restricted unpickler with nothing added to its list."""
    content = archive.read(info)
    _vet_inner(content, info.filename)
    if not content:  # torch.export.save writes an empty record where there are no sample inputs
        return
    try:
        with _no_added_globals(), warnings.catch_warnings(action="ignore"):
            torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # on hostile bytes the unpickler raises whatever comes up
        raise format_refusal(
            f"the record {info.filename!r} is no tensor that torch.load(weights_only=True) accepts: "
            f"{clean_line(str(error))}"
        ) from error


def _vet_inner(content: bytes, name: str) -> None:
    """Refuse an archive within the archive that unpacks to far more than it is: torch would unpack it in memory."""
    if not content.startswith(b"PK"):
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        infos = archive.infolist()
    unpacked = sum(info.file_size for info in infos)
    if len(infos) > RECORD_COUNT_LIMIT or unpacked > max(RATIO_LIMIT * len(content), _SMALL_BYTES):
        raise format_refusal(f"the record {name!r} unpacks to {unpacked} bytes, over {RATIO_LIMIT} times its size")


@contextmanager
def _no_added_globals() -> Iterator[None]:
    """Judge by torch's own list alone: parts of torch and other libraries add classes of theirs when imported."""
    added = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        yield
    finally:
        torch.serialization.add_safe_globals(added)


# --- The program's own strings -----------------------------------------------------------------------------------


def _vet_program(document: object, record: str) -> Pt2Facts:
    """Vet each operator name and each expression that torch would evaluate."""
    if not isinstance(document, dict) or "graph_module" not in document:
        raise format_refusal(f"the record {record!r} is no torch.export program")
    operators: set[str] = set()
    for key, value in _strings(document):
        if key == "operator":
            if not _OPERATOR.fullmatch(value):
                raise format_refusal(f"the program calls {value!r}, an operator that is not torch's own")
            operators.add(value)
        elif key in ("expr_str", "guards_code", "range_constraints"):
            _vet_expression(value, key)
        elif key in ("in_spec", "out_spec"):
            _vet_tree(value, key)
        elif key == "metadata":
            if not value.isprintable() or "\\" in value:  # inductor writes it into a comment
                raise format_refusal(f"the program's metadata hold more than a line: {value[:80]!r}")
        elif key in _NAMING:
            if not _NAMING[key].fullmatch(value):
                raise format_refusal(f"the program names something {value[:80]!r} ({key}), which is no plain name")
        elif key not in _QUOTED:
            raise format_refusal(f"the program holds text under {key[:80]!r}, which torch.export does not write")
    version = document.get("torch_version")
    return Pt2Facts(
        torch_version=clean_line(version) if isinstance(version, str) else "unknown", operators=frozenset(operators)
    )


def _strings(document: object) -> Iterator[tuple[str, str]]:
    """Yield (nearest key, string) over a JSON value.

    What torch would resolve to something callable comes under the key `operator`: the target of whatever has inputs
    (a graph's nodes, as against a signature's parameters) and operators given as arguments. The names of range
    constraints are expressions, too, and those of other mappings names. Metadata is one key, but for what is kept for
    people.
    """
    stack: list[tuple[str, object]] = [("", document)]
    while stack:
        here, item = stack.pop()
        if isinstance(item, dict):
            if here == "range_constraints":
                yield from ((here, name) for name in item)
            elif here in _MAPS:
                yield from (("name", name) for name in item)
            elif here == "metadata":
                yield from (("metadata", name) for name in item)
                stack.extend((key if key in _QUOTED else here, part) for key, part in item.items())
                continue
            is_node = "inputs" in item
            stack.extend(
                ("operator" if key == "as_operator" or (key == "target" and is_node) else key, child)
                for key, child in item.items()
            )
        elif isinstance(item, list):
            stack.extend((here, part) for part in item)
        elif isinstance(item, str):
            yield here, item


def _vet_tree(text: str, key: str) -> None:
    """Accept plain containers with plain keys.

    Raises:
        BackendRefusal: format.
    """
    try:
        _, root = json.loads(text)
        stack = [root]
        while stack:
            node = stack.pop()
            stack.extend(node["children_spec"])
            kind, context = node["type"], node["context"]
            if kind == "collections.namedtuple":
                keys = [context]
            else:
                held = None if context is None else json.loads(context)
                keys = held if isinstance(held, list) else [held]
            is_plain = all(part is None or type(part) is int or _KEY.fullmatch(part) for part in keys)
            if not is_plain or not (kind is None or kind in _TREES):
                raise format_refusal(f"the program's {key} holds more than containers and names: {text[:80]!r}")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise format_refusal(f"the program's {key} is no pytree: {text[:80]!r}") from error


def _vet_expression(text: str, key: str) -> None:
    """Accept arithmetic on names, sizes and numbers; refuse whatever else Python could evaluate.

    Raises:
        BackendRefusal: format.
    """
    if not _EXPRESSION.fullmatch(text):
        raise format_refusal(f"{key} holds {text[:80]!r}: more than arithmetic on sizes")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise format_refusal(f"{key} holds {text[:80]!r}, which is no expression") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            is_harmless = name in _CALLS and all(keyword.arg is not None for keyword in node.keywords)
        elif isinstance(node, ast.Attribute):
            is_harmless = node.attr in _CALLS or (isinstance(node.value, ast.Name) and node.value.id == "math")
        elif isinstance(node, ast.Name):
            is_harmless = not node.id.startswith("__")
        elif isinstance(node, ast.Constant):
            is_harmless = not isinstance(node.value, str) or _NAME.fullmatch(node.value) is not None
        else:
            is_harmless = isinstance(node, _NODES)
        if not is_harmless or (isinstance(node, ast.Attribute) and node.attr.startswith("_")):
            raise format_refusal(f"{key} holds {text[:80]!r}: more than arithmetic on sizes")
