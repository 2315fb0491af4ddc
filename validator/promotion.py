"""What a promotion writes down about itself, and what may be asked of an alias. Pure.

Records are tags of the registered model. Whoever may edit the model may write them, so they decide nothing that
matters: a rollback takes a version's number from one, and then holds that version against its own signed clearance.
"""

import re
from enum import StrEnum
from typing import Annotated, assert_never

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from validator.attest.statement import Digest, Time
from validator.errors import UsageError
from validator.manifest import canonical_json
from validator.report.text import clean

PROMOTION_TAG = "validator.promotion."
"""On a registered model, with an alias behind it: the record of the last promotion or rollback that was finished."""
INTENT_TAG = "validator.intent."
"""Likewise: the record of one that was begun. Taken away when it is finished."""

KEY_LIMIT = 250
"""MLflow's, for a tag's name."""
ALIAS_LIMIT = KEY_LIMIT - len(PROMOTION_TAG)
CLEARANCE_LIMIT_BYTES = 60_000
"""A version's tag is a TEXT column: 65,535 bytes on MySQL."""
REASON_LIMIT = 500


class Level(StrEnum):
    """How an alias came to point where it points."""

    ALIAS = "alias"
    """Of the cleared model, moved to the cleared version."""
    REPUBLISH = "republish"
    """Of a model of the gate's own, moved to a version that holds the cleared bytes."""
    ROLLBACK = "rollback"
    """Moved back to an earlier version."""


class Record(BaseModel):
    """Who holds an alias, and by what right."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    level: Level
    version: int
    """That the alias was moved to."""
    previous: int | None
    """That held it before; null: nobody did, or nobody knows."""
    time: Time
    """When it was begun."""
    clearance: Digest | None
    """Of the clearance's text; null: a rollback without one."""
    key: str | None
    """The id of the key that signed it; null: it was signed keyless, or there is none."""
    identity: str | None = None
    """Who signed it keyless."""
    issuer: str | None = None
    """Who vouched for that identity."""
    origin: str | None = None
    """The version that was cleared, where another one holds its bytes."""
    reason: Annotated[str, Field(max_length=REASON_LIMIT)] | None = None
    """Of a rollback without a clearance."""

    def to_text(self) -> str:
        """Return the tag's value: one line of JSON, well below the 5,000 characters that MLflow has for it."""
        return canonical_json(self.model_dump(mode="json"))


def read_record(text: str | None) -> Record | None:
    """Read a record; None if there is none, or none that was written by this program."""
    try:
        # Not strict: the level is a text in JSON.
        return None if text is None else Record.model_validate_json(text)
    except ValidationError:
        return None


def check_alias(alias: str) -> None:
    """Say before anything is done that an alias cannot be.

    Raises:
        UsageError: a name that MLflow reserves or does not take.
    """
    if alias.lower() == "latest" or re.fullmatch(r"[vV]\d+", alias):
        raise UsageError(f"{alias!r} is a word of MLflow's own and no alias", hint="name one like champion")
    if re.fullmatch(r"[\w-]+", alias, re.ASCII) is None:
        raise UsageError(f"{alias!r} is no alias: letters, digits, - and _ only", hint="name one like champion")
    if len(alias) > ALIAS_LIMIT:
        raise UsageError(f"the alias has {len(alias)} characters, {ALIAS_LIMIT} are possible")


def describe_holder(version: int | None) -> str:
    """Say who holds an alias."""
    return "nobody" if version is None else f"version {version}"


def describe_gain(alias: str, record: Record) -> str:
    """Return the note on an alias in the description of the version that it was moved to: one line of Markdown."""
    what = {Level.ALIAS: "", Level.REPUBLISH: "", Level.ROLLBACK: ", rolled back to"}[record.level]
    since = f"- ▲ `{alias}` since {_minutes(record.time)}{what}{_describe_signer(record)}"
    return f"{since} · before: {describe_holder(record.previous)}"


def describe_loss(alias: str, record: Record) -> str:
    """Return the note on an alias in the description of the version that it was moved away from."""
    match record.level:
        case Level.ALIAS | Level.REPUBLISH:
            what = "then"
        case Level.ROLLBACK:
            what = "rolled back to"
        case _:
            assert_never(record.level)
    return f"- ▽ `{alias}` until {_minutes(record.time)} · {what} version {record.version}"


def describe_origin(uri: str, digest: str) -> str:
    """Return the heading of a republished version's description."""
    return f"**republished** · the bytes of `{uri}` · `{digest[:15]}`"


def _describe_signer(record: Record) -> str:
    """Say who cleared it. Identities are others' words, and stand in Markdown: as code, without what would end that."""
    if record.key is not None:
        return f" · cleared by key `{record.key[:15]}`"
    if record.identity is not None:
        return f" · cleared by `{clean(record.identity.replace('`', ''), limit=200)}`"
    return " · without a clearance"


def _minutes(time: str) -> str:
    return f"{time[:10]} {time[11:16]} UTC"
