"""What lies in a model's folder, told by content and not by name. Opens nothing: reads beginnings, and zip directories.

Whoever serves a model may load more of it than the gate runs. So a file that is code is refused wherever it lies,
unless the policy admits code, and a file that nobody can name is told.
"""

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path, PurePosixPath

HEAD_BYTES = 4_096
TEXT_LIMIT_BYTES = 1 << 26
"""A longer text is not looked at as a whole."""
OLD_PICKLE_LIMIT_BYTES = 1 << 20
MEMBER_LIMIT = 100_000


class Kind(StrEnum):
    """What a file is."""

    PROGRAM = "torch.export program"
    ONNX = "ONNX file"
    TENSORS = "tensors"
    TEXT = "text"
    CODE = "code"
    PICKLE = "pickle"
    NATIVE = "native code"
    ARCHIVE = "archive"
    UNKNOWN = "unknown"

    @property
    def runs_code(self) -> bool:
        """Whether loading it runs what its author wrote."""
        return self in (Kind.CODE, Kind.PICKLE, Kind.NATIVE)

    @property
    def is_strange(self) -> bool:
        """Whether nobody can say what is in it without unpacking or guessing."""
        return self in (Kind.ARCHIVE, Kind.UNKNOWN)


_NATIVE = (
    b"\x7fELF", b"MZ", b"\x00asm", b"!<arch>\n", b"BC\xc0\xde", b"\x50\xed\x55\xba",
    b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe",
)  # fmt: skip
"""ELF, Windows, WebAssembly, static libraries, LLVM, CUDA binaries; Mach-O, also of several processors."""
_PACKED = (
    b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"7z\xbc\xaf\x27\x1c", b"Rar!",
)  # fmt: skip
"""gzip, bzip2, xz, zstandard, lz4, 7-Zip, RAR."""
_BINARY_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_BYTECODE = re.compile(rb"..\r\n", re.DOTALL)
_CODE_SUFFIXES = frozenset({".py", ".pyw", ".pyc", ".pyx", ".sh", ".bash", ".pl", ".rb", ".js", ".lua", ".r", ".jar"})
_NPY_MAGIC = b"\x93NUMPY"
_TAR_MAGIC = b"ustar"
_ONNX_START = re.compile(rb"\x08[\x01-\x7f](\x12|\x1a|\x22|\x2a|\x3a|\x42)")
"""The field `ir_version`, then one of those that follow it."""


def identify(path: Path) -> Kind:
    """Say what a regular file is.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
        if head.startswith(b"PK"):
            return _identify_zip(path)
        kind = _identify_bytes(head, path.suffix.lower())
        if kind is not None:
            return kind
        stream.seek(0)
        content = stream.read(TEXT_LIMIT_BYTES + 1)
    return _identify_text(content, PurePosixPath(path.as_posix()))


def _identify_bytes(head: bytes, suffix: str) -> Kind | None:
    """Say what a file is by its first bytes; None: they do not tell."""
    if head.startswith(_NATIVE):
        return Kind.NATIVE
    if head.startswith(_PACKED) or head[257:262] == _TAR_MAGIC:
        return Kind.ARCHIVE
    if _BINARY_PICKLE.match(head):
        return Kind.PICKLE
    if suffix == ".pyc" or (_BYTECODE.match(head) and b"\x00" in head[:16]):
        return Kind.CODE
    if head.startswith(_NPY_MAGIC):
        return Kind.PICKLE if _holds_objects(head) else Kind.TENSORS
    # The length of a JSON header, and the header.
    if len(head) > 9 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 30:
        return Kind.TENSORS
    if _ONNX_START.match(head):
        return Kind.ONNX
    return None


def _holds_objects(head: bytes) -> bool:
    """Whether a NumPy file holds Python objects, which it stores as a pickle."""
    return re.search(rb"['\"]descr['\"]\s*:\s*['\"][|<>=]?O", head[:1024]) is not None


def _identify_text(content: bytes, path: PurePosixPath) -> Kind:
    if _is_old_pickle(content):
        return Kind.PICKLE
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return Kind.UNKNOWN
    if len(content) > TEXT_LIMIT_BYTES or "\x00" in text:
        return Kind.UNKNOWN
    is_code = path.suffix.lower() in _CODE_SUFFIXES or text.startswith("#!")
    return Kind.CODE if is_code else Kind.TEXT


def _is_old_pickle(content: bytes) -> bool:
    """Whether it is a pickle in the old protocols, which begin with no mark of their own; nothing of it is run."""
    if len(content) > OLD_PICKLE_LIMIT_BYTES or not content.rstrip().endswith(b"."):
        return False
    try:
        operations = [operation.name for operation, _, _ in pickletools.genops(io.BytesIO(content))]
    except Exception:  # noqa: BLE001 - it raises whatever comes up: then it is no pickle
        return False
    return len(operations) > 1


def _identify_zip(path: Path) -> Kind:
    """Say what a zip archive is by what its directory lists."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if len(infos) > MEMBER_LIMIT:
                return Kind.ARCHIVE
            return _identify_members(list(_members(archive, infos)))
    except Exception:  # noqa: BLE001 - on broken bytes zipfile raises whatever comes up
        return Kind.ARCHIVE


def _members(archive: zipfile.ZipFile, infos: list[zipfile.ZipInfo]) -> Iterator[tuple[str, Kind | None]]:
    for info in infos:
        if not info.filename.endswith("/"):  # not `is_dir`, which fails where there is no name
            yield info.filename, _identify_member(archive, info)


def _identify_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Kind | None:
    """Say what a member is: an archive where it cannot be read, so that it hides nothing of what lies beside it."""
    try:
        with archive.open(info) as stream:
            head = stream.read(HEAD_BYTES)
    except Exception:  # noqa: BLE001 - encrypted or broken: zipfile and zlib raise whatever comes up
        return Kind.ARCHIVE
    return _identify_bytes(head, PurePosixPath(info.filename).suffix.lower())


def _identify_members(members: list[tuple[str, Kind | None]]) -> Kind:
    names = [name for name, _ in members]
    kinds = [kind for _, kind in members]
    inner = {name.partition("/")[2] for name in names}
    if Kind.NATIVE in kinds:
        return Kind.NATIVE
    if "models/model.json" in inner:  # its own records are vetted one by one before it is opened
        return Kind.PROGRAM
    if Kind.PICKLE in kinds or any(name.endswith(".pkl") for name in names):
        return Kind.PICKLE
    if Kind.CODE in kinds or any(PurePosixPath(name).suffix.lower() in _CODE_SUFFIXES for name in names):
        return Kind.CODE
    if kinds and all(kind is Kind.TENSORS for kind in kinds):
        return Kind.TENSORS
    return Kind.ARCHIVE
