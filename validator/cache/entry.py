"""An entry: what a worker sent, as it sent it, and a seal.

    magic | length of the header (8 bytes, big endian) | header (JSON) | messages | files | sha256 | HMAC-SHA256

The messages are those of `worker.protocol`, so whoever reads an entry is the same intake that listens to a worker:
nonce, counts and coverage are proven again, with the nonce of the run that made it. The HMAC is over the sha256 and the
key of the entry's recipe: an entry that was put in another's place is not sealed for it.
"""

import hashlib
import hmac
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, ValidationError

from validator.backends.interface import Document
from validator.cache.recipe import EXPORT_NAME, Recipe
from validator.manifest import CHUNK_BYTES, Manifest, canonical_json
from validator.worker.intake import Intake
from validator.worker.launch import Ended, conclude
from validator.worker.outcome import Completed, Reused
from validator.worker.protocol import (
    CLOSING,
    EXPORTED,
    FRAME,
    HEADER,
    WEIGHTS,
    Closing,
    ExportJob,
    ProtocolError,
    RunJob,
)

MAGIC = b"validator cache entry 1\n"
LENGTH = struct.Struct(">Q")
HEADER_LIMIT_BYTES = 1 << 26
SEAL_BYTES = 64
"""sha256 and HMAC."""


class EntryFile(Document):
    """A file that the worker wrote."""

    name: Literal["model.onnx", "model.onnx.data"]
    size_bytes: Annotated[int, Field(ge=0)]


class EntryHeader(Document):
    """What an entry holds."""

    check_id: str
    """Of the check that made it."""
    created_utc: str
    """When that began."""
    nonce: str
    """Of the job that made it: its closing record holds it, too."""
    recipe: Recipe
    messages_bytes: Annotated[int, Field(ge=0)]
    files: tuple[EntryFile, ...] = Field(strict=False)


class EntryDamaged(Exception):
    """An entry that is not what was written: nothing of it is used."""


# --- Writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of an entry that lie in a file."""

    path: Path
    offset: int
    length: int
    sha256: str | None = None
    """What they must be; None: nobody but the gate can have changed them."""

    def read(self) -> Iterator[bytes]:
        """Yield them in chunks.

        Raises:
            EntryDamaged: they are others.
            EOFError: there are fewer.
            OSError: the file cannot be read.
        """
        digest = hashlib.sha256()
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            for chunk in read_exactly(stream, self.length):
                digest.update(chunk)
                yield chunk
        if self.sha256 not in (None, digest.hexdigest()):
            raise EntryDamaged(f"{self.path.name} is not what it was when it was exported")


def pack_entry(
    outcome: Completed, recipe: Recipe, made_by: Reused, *, exported: Manifest | None = None
) -> list[bytes | Piece]:
    """Return an entry without its seal.

    Args:
        outcome: of the recipe's job.
        recipe: of it.
        made_by: the check that ran the job.
        exported: what an export left, as it was measured before anybody else could touch it.
    """
    messages = list(_messages(outcome))
    files = _exported_files(outcome, exported)
    header = EntryHeader(
        check_id=made_by.check_id,
        created_utc=made_by.created_utc,
        nonce=outcome.job.nonce,
        recipe=recipe,
        messages_bytes=sum(length_of(part) for part in messages),
        files=tuple(EntryFile.model_validate({"name": f.path.name, "size_bytes": f.length}) for f in files),
    )
    text = canonical_json(header.model_dump(mode="json")).encode()
    return [MAGIC, LENGTH.pack(len(text)), text, *messages, *files]


def _exported_files(outcome: Completed, exported: Manifest | None) -> list[Piece]:
    if outcome.exported is None or exported is None:
        return []
    folder = outcome.exported.parent
    return [Piece(path=folder / e.path, offset=0, length=e.size_bytes, sha256=e.sha256) for e in exported.entries]


def _messages(outcome: Completed) -> Iterator[bytes | Piece]:
    """Yield what the worker sent, again. Where it wrote its file is another place in every check."""
    frames: dict[str, int] = {p.name: 0 for p in outcome.job.passes} if isinstance(outcome.job, RunJob) else {}
    if outcome.spool is not None:
        for frame in outcome.spool.frames:
            frames[frame.header.pass_name] += 1
            yield HEADER.pack(FRAME, frame.length)
            yield Piece(path=outcome.spool.path, offset=frame.offset, length=frame.length)
    closing = Closing(
        job_id=outcome.job.job_id,
        nonce=outcome.job.nonce,
        frames=frames,
        environment=outcome.environment,
        seconds=outcome.seconds,
        peak_memory_bytes=outcome.peak_memory_bytes,
    )
    export = None if outcome.export is None else outcome.export.model_copy(update={"path": EXPORT_NAME})
    for kind, record in ((EXPORTED, export), (WEIGHTS, outcome.weights), (CLOSING, closing)):
        if record is not None:
            payload = record.model_dump_json().encode()
            yield HEADER.pack(kind, len(payload)) + payload


def write_sealed(parts: list[bytes | Piece], stream: BinaryIO, *, key: str, secret: bytes) -> None:
    """Write an entry and its seal.

    Raises:
        EntryDamaged: a part is not what it was.
        EOFError: a part is shorter than it was.
        OSError: it cannot be written, or a part cannot be read.
    """
    digest = hashlib.sha256()
    for part in parts:
        for chunk in part.read() if isinstance(part, Piece) else (part,):
            digest.update(chunk)
            stream.write(chunk)
    stream.write(digest.digest() + seal(digest.digest(), key=key, secret=secret))


def length_of(part: bytes | Piece) -> int:
    """Return how many bytes a part has."""
    return part.length if isinstance(part, Piece) else len(part)


def seal(digest: bytes, *, key: str, secret: bytes) -> bytes:
    """Return the HMAC of an entry's digest, bound to its key."""
    return hmac.new(secret, b"validator cache\0" + key.encode() + b"\0" + digest, hashlib.sha256).digest()


# --- Reading ------------------------------------------------------------------------------------------------------


def copy_verified(source: BinaryIO, target: BinaryIO, *, size_bytes: int, key: str, secret: bytes) -> None:
    """Copy an entry without its seal, and verify the seal over what was copied. Nothing is looked at.

    Raises:
        EntryDamaged: it is not sealed for this key, by this secret, or has another size.
        OSError: it cannot be copied.
    """
    if size_bytes < SEAL_BYTES:
        raise EntryDamaged(f"it has {size_bytes} bytes")
    digest = hashlib.sha256()
    try:
        for chunk in read_exactly(source, size_bytes - SEAL_BYTES):
            digest.update(chunk)
            target.write(chunk)
    except EOFError as error:
        raise EntryDamaged("it is cut short") from error
    found = source.read(SEAL_BYTES + 1)
    target.flush()
    if not hmac.compare_digest(found[:32], digest.digest()):
        raise EntryDamaged("its bytes are not those that were written")
    if not hmac.compare_digest(found[32:], seal(digest.digest(), key=key, secret=secret)):
        raise EntryDamaged("it was not sealed here for what it lies in the place of")


def read_entry(copy: Path, recipe: Recipe, job: RunJob | ExportJob, *, spool: Path) -> Completed:
    """Read a verified copy, as if its worker sent it now.

    Args:
        copy: of an entry, without its seal.
        recipe: what is asked for.
        job: of this check.
        spool: file for frames, made here; files are written into a new folder beside it.

    Raises:
        EntryDamaged: it does not prove that the job was done.
        OSError: something cannot be read or written.
    """
    home = spool.parent / "home"
    home.mkdir(exist_ok=True)
    with copy.open("rb") as stream, spool.open("xb") as frames:
        try:
            header = _read_header(stream)
            if header.recipe != recipe:
                raise EntryDamaged("it is of another recipe")
            made = recipe.job.model_copy(update={"nonce": header.nonce})
            intake = Intake(made, frames, spool_limit_bytes=header.messages_bytes)
            for chunk in read_exactly(stream, header.messages_bytes):
                intake.feed(chunk)
            intake.check_end()
            if isinstance(job, ExportJob):
                _write_files(header, stream, home)
        except (ProtocolError, EOFError) as error:
            raise EntryDamaged(str(error)) from error
    outcome = conclude(made, intake, Ended(exit_status=0), home=home, spool=spool, limit_s=0.0, log_tail="")
    if not isinstance(outcome, Completed):
        raise EntryDamaged("it is of a job that was not done")
    export = outcome.export
    if export is not None and isinstance(job, ExportJob):
        export = export.model_copy(update={"path": job.export_path})
    return replace(
        outcome,
        job=job.model_copy(update={"nonce": header.nonce}),
        export=export,
        reused=Reused(check_id=header.check_id, created_utc=header.created_utc),
    )


def _read_header(stream: BinaryIO) -> EntryHeader:
    prefix = stream.read(len(MAGIC) + LENGTH.size)
    if len(prefix) < len(MAGIC) + LENGTH.size or not prefix.startswith(MAGIC):
        raise EntryDamaged("it is of another format")
    (length,) = LENGTH.unpack(prefix[len(MAGIC) :])
    if length > HEADER_LIMIT_BYTES:
        raise EntryDamaged(f"it has a header of {length} bytes")
    try:
        return EntryHeader.model_validate_json(stream.read(length))
    except ValidationError as error:
        raise EntryDamaged("its header cannot be read") from error


def _write_files(header: EntryHeader, stream: BinaryIO, folder: Path) -> None:
    """Write an entry's files, all or none: what takes their place must not find one of them there."""
    try:
        for file in header.files:
            with (folder / file.name).open("xb") as target:
                for chunk in read_exactly(stream, file.size_bytes):
                    target.write(chunk)
    except BaseException:
        for file in header.files:
            (folder / file.name).unlink(missing_ok=True)
        raise


def read_exactly(stream: BinaryIO, length: int) -> Iterator[bytes]:
    """Yield so many bytes in chunks.

    Raises:
        EOFError: there are fewer.
    """
    while length:
        chunk = stream.read(min(CHUNK_BYTES, length))
        if not chunk:
            raise EOFError(f"{length} bytes are missing")
        length -= len(chunk)
        yield chunk
