"""MLflow's SQL registry with the rules in front of every change to what is protected.

What may not be changed lightly: `_alone` holds the model's row while a rule looks and MLflow's own method changes, both
in one transaction. Two moves of an alias can therefore not both see the same former holder, whatever the database,
the number of server processes, and the client.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy
from mlflow.entities.model_registry.model_version_stages import STAGE_DELETED_INTERNAL, get_canonical_stage
from mlflow.environment_variables import MLFLOW_ENABLE_WORKSPACES
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED, RESOURCE_DOES_NOT_EXIST
from mlflow.store.model_registry.dbmodels.models import SqlModelVersion, SqlRegisteredModel, SqlRegisteredModelAlias
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore
from mlflow.store.model_registry.sqlalchemy_workspace_store import WorkspaceAwareSqlAlchemyStore
from sqlalchemy.orm import Session

from validator.attest.statement import Predicate
from validator.errors import GuardRefused, ValidatorError
from validator.guard import SCHEME
from validator.guard.artifacts import measure_location
from validator.guard.config import Protection, find_protection
from validator.guard.moves import Move, create_table, list_moves, record_move
from validator.guard.rules import (
    Measured,
    Version,
    refuse_removal,
    require_bytes,
    require_clearance,
    require_model_tag,
    require_move,
    require_new_tags,
    require_version_tag,
    sha256_of,
)
from validator.registry.interface import CLEARANCE_TAG, EXPECT_TAG, GUARD_SAYS

if TYPE_CHECKING:
    from sqlalchemy.engine import CursorResult

Clock = Callable[[], datetime]


def _now() -> datetime:
    return datetime.now(UTC)


def open_guarded_store(store_uri: str) -> "GuardedStore":
    """Open the registry behind a URI that begins with our scheme.

    Raises:
        GuardConfigError: no configuration, or one that cannot be used.
    """
    protection = find_protection()
    kind = WorkspaceGuardedStore if MLFLOW_ENABLE_WORKSPACES.get() else GuardedStore
    return kind(store_uri.removeprefix(SCHEME), protection)


class GuardedStore(SqlAlchemyStore):
    """A registry that changes what is protected only with a clearance."""

    def __init__(self, db_uri: str, protection: Protection, clock: Clock = _now) -> None:
        super().__init__(db_uri)
        create_table(self.engine)
        self._protection = protection
        self._now = clock
        self._current = threading.local()
        self._open_session = self.ManagedSessionMaker
        self.ManagedSessionMaker = self._session

    # --- Aliases --------------------------------------------------------------------------------------------------

    def set_registered_model_alias(self, name: str, alias: str, version: Any) -> None:
        """Move an alias; a protected one only with a clearance, and only from where it is expected to be."""
        if not self._protection.protects_alias(name, alias):
            super().set_registered_model_alias(name, alias, version)
            return
        with refusing():
            # Hashing may take seconds: it comes before the row is held. What it says is compared in the transaction.
            measured = self._measure(name, alias, version)
            with self._alone(name) as session:
                holder = self._holders(session, name).get(alias)
                found = self._version(session, name, version)
                if holder == found.number:
                    return  # a request that was sent twice: nothing changes
                moves = list_moves(session, self._get_active_workspace(), name, alias)
                predicate = require_move(alias, found, holder, self._protection, moves, self._now())
                if self._protection.config.verify_bytes:
                    require_bytes(predicate, measured, found)
                super().set_registered_model_alias(name, alias, version)
                super().delete_model_version_tag(name, version, EXPECT_TAG + alias)
                text = found.tags[CLEARANCE_TAG]
                record_move(
                    session,
                    Move(
                        workspace=self._get_active_workspace(),
                        name=name,
                        alias=alias,
                        version=found.number,
                        creation_time=found.creation_time,
                        previous=holder,
                        digest=predicate.model.digest,
                        clearance_sha256=sha256_of(text),
                        key_id=key_id_of(text),
                        check_id=predicate.check_id,
                        policy_digest=predicate.policy.digest,
                        moved_at_ms=int(self._now().timestamp() * 1_000),
                    ),
                )

    def delete_registered_model_alias(self, name: str, alias: str) -> None:
        """Take an alias away; a protected one only from files that are no longer those that were cleared."""
        with refusing():
            tampered = self._find_tampered(name, alias) if self._protection.protects_alias(name, alias) else None
            with self._alone(name) as session:
                holder = self._holders(session, name).get(alias)
                if holder not in (None, tampered) and self._protection.protects_alias(name, alias):
                    raise refuse_removal(alias, name, holder)
                super().delete_registered_model_alias(name, alias)

    # --- Stages ---------------------------------------------------------------------------------------------------

    def transition_model_version_stage(
        self, name: str, version: Any, stage: str, archive_existing_versions: Any
    ) -> Any:
        """Move a version between stages: into a protected one with a clearance, out of one only for another version."""
        if not self._protection.protects(name):
            return super().transition_model_version_stage(name, version, stage, archive_existing_versions)
        with refusing():
            target = get_canonical_stage(stage)
            is_protected = self._protection.protects_stage(name, target)
            measured = self._measure(name, None, version) if is_protected else None
            with self._alone(name) as session:
                found = self._version(session, name, version)
                present = self._get_sql_model_version(session, name, version).current_stage
                if present != target and self._protection.protects_stage(name, present):
                    raise GuardRefused(
                        f"{found.title} stays in stage {present}: it is protected",
                        hint="move another cleared version there, and have this one archived by it",
                    )
                if is_protected:
                    text = found.tags.get(CLEARANCE_TAG)
                    predicate = require_clearance(text, found, self._protection, [], self._now())
                    if self._protection.config.verify_bytes:
                        require_bytes(predicate, measured, found)
                return super().transition_model_version_stage(name, version, stage, archive_existing_versions)

    # --- Models ---------------------------------------------------------------------------------------------------

    def create_registered_model(
        self, name: str, tags: Any = None, description: str | None = None, deployment_job_id: str | None = None
    ) -> Any:
        """Make a model, whose tags say nothing about aliases that it does not have."""
        if self._protection.protects(name):
            with refusing():
                for tag in tags or ():
                    require_model_tag(tag.key, tag.value, name, {}, [])
        return super().create_registered_model(name, tags, description, deployment_job_id)

    def rename_registered_model(self, name: str, new_name: str) -> Any:
        """Rename a model that nothing protected depends on, and never into protection."""
        with refusing(), self._alone(name) as session:
            if self._protection.protects(new_name) and not self._protection.protects(name):
                raise GuardRefused(
                    f"{name} cannot become {new_name}, which is protected: nobody guarded it so far",
                    hint="register its bytes as a version of that model",
                )
            origin = self._protection.origin_of(new_name)
            if origin is not None and origin != self._protection.origin_of(name):
                raise GuardRefused(
                    f"{name} cannot become {new_name}, whose versions are made with a clearance of {origin} alone",
                    hint=f"check a version of {origin}, then validator promote it with --level republish",
                )
            self._require_free(session, name, "renamed")
            return super().rename_registered_model(name, new_name)

    def delete_registered_model(self, name: str) -> None:
        """Delete a model that nothing protected depends on."""
        with refusing(), self._alone(name) as session:
            self._require_free(session, name, "deleted")
            super().delete_registered_model(name)

    def set_registered_model_tag(self, name: str, tag: Any) -> None:
        """Tag a model; a record of an alias must be one."""
        if not self._protection.protects(name):
            super().set_registered_model_tag(name, tag)
            return
        with refusing(), self._alone(name) as session:
            moves = list_moves(session, self._get_active_workspace(), name)
            require_model_tag(tag.key, tag.value, name, self._holders(session, name), moves)
            super().set_registered_model_tag(name, tag)

    # --- Versions -------------------------------------------------------------------------------------------------

    def create_model_version(
        self,
        name: str,
        source: str,
        run_id: str | None = None,
        tags: Any = None,
        run_link: str | None = None,
        description: str | None = None,
        local_model_path: str | None = None,
        model_id: str | None = None,
    ) -> Any:
        """Make a version: of a republished model with the clearance of the same bytes, of others without any."""
        if self._protection.protects(name):
            with refusing():
                self._require_creation(name, source, {tag.key: tag.value for tag in tags or ()})
        return super().create_model_version(
            name, source, run_id, tags, run_link, description, local_model_path, model_id
        )

    def delete_model_version(self, name: str, version: Any) -> None:
        """Delete a version, unless a protected alias points to it or it is in a protected stage."""
        with refusing(), self._alone(name) as session:
            found = self._version(session, name, version)
            for alias, holder in self._holders(session, name).items():
                if holder == found.number and self._protection.protects_alias(name, alias):
                    raise refuse_removal(alias, name, holder)
            stage = self._get_sql_model_version(session, name, version).current_stage
            if self._protection.protects_stage(name, stage):
                raise GuardRefused(
                    f"{found.title} stays: it is in stage {stage}, which is protected",
                    hint="move another cleared version there first",
                )
            super().delete_model_version(name, version)

    def set_model_version_tag(self, name: str, version: Any, tag: Any) -> None:
        """Tag a version; what says pass must be signed."""
        if not self._protection.protects(name):
            super().set_model_version_tag(name, version, tag)
            return
        with refusing():
            # Nothing but its bytes ties a republished version to a clearance.
            is_tied = tag.key == CLEARANCE_TAG and self._protection.origin_of(name) is not None
            measured = self._measure_for(name, version, tag.value) if is_tied else None
            with self._alone(name) as session:
                moves = list_moves(session, self._get_active_workspace(), name)
                found = self._version(session, name, version)
                require_version_tag(tag.key, tag.value, found, self._protection, moves, self._now())
                if is_tied and found.tags.get(CLEARANCE_TAG) != tag.value:
                    predicate = require_clearance(tag.value, found, self._protection, moves, self._now())
                    require_bytes(predicate, measured, found)
                    self._require_cleared_version(session, predicate)
                super().set_model_version_tag(name, version, tag)

    # --- Facts ----------------------------------------------------------------------------------------------------

    def _measure(self, name: str, alias: str | None, version: Any) -> Measured | None:
        """Hash a version's files; None: not asked for, or the alias is there already.

        Only what is cleared is hashed: nobody can make the server read what he likes.
        """
        with self._session() as session:
            found = self._version(session, name, version)
            holder = None if alias is None else self._holders(session, name).get(alias)
            if not self._protection.config.verify_bytes or (alias is not None and holder == found.number):
                return None
            if alias is None:
                require_clearance(found.tags.get(CLEARANCE_TAG), found, self._protection, [], self._now())
            else:
                moves = list_moves(session, self._get_active_workspace(), name, alias)
                require_move(alias, found, holder, self._protection, moves, self._now())
        return Measured(found, measure_location(found.location, self._workspace()))

    def _measure_for(self, name: str, version: Any, text: str) -> Measured | None:
        """Hash a version's files for a clearance that it does not carry yet; None: it does."""
        with self._session() as session:
            found = self._version(session, name, version)
            if found.tags.get(CLEARANCE_TAG) == text:
                return None
            moves = list_moves(session, self._get_active_workspace(), name)
            require_clearance(text, found, self._protection, moves, self._now())
        return Measured(found, measure_location(found.location, self._workspace()))

    def _require_cleared_version(self, session: Session, predicate: Predicate) -> None:
        """Require that what was cleared is a version here: another workspace has models of the same name."""
        cleared = predicate.model
        query = self._get_query(session, SqlModelVersion).filter(
            SqlModelVersion.name == cleared.name,
            SqlModelVersion.version == cleared.version,
            SqlModelVersion.creation_time == cleared.creation_timestamp_ms,
            SqlModelVersion.current_stage != STAGE_DELETED_INTERNAL,
        )
        if query.first() is None:
            raise GuardRefused(
                f"{cleared.name} version {cleared.version}, which was cleared, is not in this registry or workspace",
                hint=f"check a version of {cleared.name} that is",
            )

    def _find_tampered(self, name: str, alias: str) -> int | None:
        """Return the holder of an alias if its files are no longer those that were cleared."""
        with self._session() as session:
            holder = self._holders(session, name).get(alias)
            moves = list_moves(session, self._get_active_workspace(), name, alias)
        if holder is None or not moves or moves[-1].version != holder or not self._protection.config.verify_bytes:
            return None
        digest = measure_location(self.get_model_version_download_uri(name, holder), self._workspace())
        return holder if digest != moves[-1].digest else None

    def _require_creation(self, name: str, source: str, tags: Mapping[str, str]) -> None:
        origin = self._protection.origin_of(name)
        if origin is None:
            require_new_tags(tags, name)
            return
        new = Version(name=name, number=0, creation_time=0, location=source, tags=tags)
        if (text := tags.get(CLEARANCE_TAG)) is None:
            raise GuardRefused(
                f"versions of {name} are made with a clearance of {origin} alone",
                hint=f"check a version of {origin}, then validator promote it with --level republish",
            )
        predicate = require_clearance(text, new, self._protection, [], self._now())
        require_bytes(predicate, Measured(new, measure_location(self._locate(source), self._workspace())), new)
        with self._session() as session:
            self._require_cleared_version(session, predicate)
        for key, value in tags.items():
            require_version_tag(key, value, new, self._protection, [], self._now())

    def _locate(self, source: str) -> str:
        """Return where the bytes of a version to be made will be read from, as MLflow itself finds it."""
        from mlflow.store.artifact.utils.models import _parse_model_uri
        from mlflow.tracking.client import MlflowClient

        if not source.startswith("models:"):
            return source
        parsed = _parse_model_uri(source)
        if parsed.model_id is not None:
            return str(MlflowClient().get_logged_model(parsed.model_id).artifact_location)
        return str(self.get_model_version_download_uri(parsed.name, parsed.version))

    def _workspace(self) -> str | None:
        """Return whose clients read what a version holds; None: the server has no workspaces."""
        return None

    def _version(self, session: Session, name: str, version: Any) -> Version:
        row = self._get_sql_model_version(session, name, version)
        return Version(
            name=name,
            number=int(row.version),
            creation_time=int(row.creation_time),
            location=str(row.storage_location or row.source),
            tags={tag.key: tag.value for tag in row.model_version_tags},
        )

    def _holders(self, session: Session, name: str) -> dict[str, int]:
        """Return which version holds each alias."""
        rows = self._get_query(session, SqlRegisteredModelAlias).filter(SqlRegisteredModelAlias.name == name).all()
        return {row.alias: int(row.version) for row in rows}

    def _require_free(self, session: Session, name: str, done: str) -> None:
        """Require that a model has neither protected aliases nor versions in protected stages."""
        held = [
            f"alias {alias} points to version {number}"
            for alias, number in sorted(self._holders(session, name).items())
            if self._protection.protects_alias(name, alias)
        ]
        rows = self._get_query(session, SqlModelVersion).filter(SqlModelVersion.name == name).all()
        held += [
            f"version {row.version} is in stage {row.current_stage}"
            for row in rows
            if self._protection.protects_stage(name, row.current_stage)
        ]
        if held:
            raise GuardRefused(f"{name} is not {done}: {', '.join(held)}", hint="ask the administrator")

    # --- Transactions ---------------------------------------------------------------------------------------------

    @contextmanager
    def _session(self, read_only: bool = True) -> Iterator[Session]:  # noqa: FBT001, FBT002  MLflow's own signature
        """Open a session, or hand out the one that this thread is in: then both commit or neither."""
        if (session := getattr(self._current, "session", None)) is not None:
            yield session
            return
        # MLflow's own session would turn our errors into internal ones.
        with self._open_session(read_only=read_only) as session, refusing():
            yield session

    @contextmanager
    def _alone(self, name: str) -> Iterator[Session]:
        """Open a transaction that holds the model's row: whoever else changes this model waits.

        The change that changes nothing locks on every database, before anything is read: `SELECT ... FOR UPDATE` does
        not exist in SQLite, where a transaction that has read first may not write afterwards.

        Raises:
            MlflowException: there is no such model, so that nothing would be held.
        """
        with self._session(read_only=False) as session:
            held = session.execute(
                sqlalchemy.update(SqlRegisteredModel)
                .where(SqlRegisteredModel.workspace == self._get_active_workspace(), SqlRegisteredModel.name == name)
                .values(last_updated_time=SqlRegisteredModel.last_updated_time)
                .execution_options(synchronize_session=False)
            )
            if cast("CursorResult[Any]", held).rowcount == 0:
                raise MlflowException(f"Registered Model with name={name} not found", RESOURCE_DOES_NOT_EXIST)
            self._current.session = session
            try:
                yield session
            finally:
                self._current.session = None


class WorkspaceGuardedStore(GuardedStore, WorkspaceAwareSqlAlchemyStore):
    """The same under `mlflow server --enable-workspaces`."""

    def _workspace(self) -> str | None:
        """Return the workspace that the request is about."""
        return str(self._get_active_workspace())


@contextmanager
def refusing() -> Iterator[None]:
    """Tell a refusal the way MLflow tells clients that they may not: status 403, not retried."""
    try:
        yield
    except ValidatorError as error:
        raise MlflowException(
            f"{GUARD_SAYS} {error.message}" + (f" ({error.hint})" if error.hint else ""), PERMISSION_DENIED
        ) from error


def key_id_of(text: str) -> str:
    """Return whose key signed a clearance that was verified."""
    from validator.attest.envelope import read_envelope

    return read_envelope(text.encode()).signatures[0].keyid
