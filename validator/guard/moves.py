"""The guard's own record: which version came to hold which alias, by which clearance. Only ever added to.

A table of its own in the registry's database, because every tag is some client's to write. A clearance that has expired
is still good for going back to a version that held the alias by it, and this table says which did.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, Integer, MetaData, String, Table, insert, select
from sqlalchemy.schema import CreateTable

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine
    from sqlalchemy.orm import Session

MOVES = Table(
    "validator_guard_moves",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("workspace", String(63), nullable=False),
    Column("name", String(256), nullable=False),
    Column("alias", String(256), nullable=False),
    Column("version", Integer, nullable=False),
    Column("creation_time", BigInteger, nullable=False),
    Column("previous", Integer, nullable=True),
    Column("digest", String(80), nullable=False),
    Column("clearance_sha256", String(64), nullable=False),
    Column("key_id", String(80), nullable=False),
    Column("check_id", String(200), nullable=False),
    Column("policy_digest", String(80), nullable=False),
    Column("moved_at_ms", BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An alias came to point to a version."""

    workspace: str
    name: str
    alias: str
    version: int
    creation_time: int
    """Of the version, in ms: a number may come back, this does not."""
    previous: int | None
    """Who held the alias before; None: nobody."""
    digest: str
    """Of every file of the version, as it was cleared."""
    clearance_sha256: str
    key_id: str
    check_id: str
    policy_digest: str
    moved_at_ms: int


def create_table(engine: "Engine") -> None:
    """Make the table unless it exists."""
    with engine.begin() as connection:
        connection.execute(CreateTable(MOVES, if_not_exists=True))


def record_move(session: "Session", move: Move) -> None:
    """Add a move to the record, in the transaction that makes it."""
    session.execute(insert(MOVES).values({name: getattr(move, name) for name in Move.__slots__}))


def list_moves(session: "Session", workspace: str, name: str, alias: str | None = None) -> list[Move]:
    """Return the moves of a model's aliases, or of one of them, oldest first."""
    query = select(MOVES).where(MOVES.c.workspace == workspace, MOVES.c.name == name).order_by(MOVES.c.id)
    if alias is not None:
        query = query.where(MOVES.c.alias == alias)
    return [Move(**{key: row[key] for key in Move.__slots__}) for row in session.execute(query).mappings()]
