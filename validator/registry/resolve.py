"""From a URI to one pinned version. An alias, a stage or `latest` is looked up once, here, and never again."""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, assert_never

from validator.errors import UriError
from validator.registry.connection import Connection
from validator.subject import AliasUri, LoggedModelUri, ModelUri, RunUri, StageUri, Subject, VersionUri

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run
    from mlflow.entities.model_registry import ModelVersion, RegisteredModel

Warn = Callable[[str], None]

SHOWN_VERSIONS = 8
COPIES_FOLLOWED = 5
"""A copy of a copy of a copy: how far back its logged model is looked for."""


def resolve_uri(connection: Connection, uri: ModelUri, *, requested: str, warn: Warn) -> Subject:
    """See Registry.resolve."""
    match uri:
        case VersionUri(name=name, version=number):
            require_model(connection, name)
        case AliasUri(name=name, alias=alias):
            number = version_of_alias(connection, name, alias)
        case StageUri(name=name):
            number = version_of_stage(connection, uri, warn)
        case LoggedModelUri(model_id=model_id):
            return _from_logged_model(connection, require_logged_model(connection, model_id), requested)
        case RunUri():
            return resolve_run(connection, uri, requested)
        case _:
            assert_never(uri)
    return _from_version(connection, require_version(connection, name, number), requested, warn)


# --- Registered models ----------------------------------------------------------------------------------------


def require_model(connection: Connection, name: str) -> "RegisteredModel":
    """Return a registered model.

    Raises:
        UriError: there is none; the hint has the nearest names.
    """
    found = connection.look_up(f"looking for {name}", lambda: connection.client.get_registered_model(name))
    if found is not None:
        return found
    with connection.doing("listing models"):
        names = [model.name for model in connection.client.search_registered_models(max_results=1000)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        hint = f"did you mean {_enumerate(near, 'or')}? registry {connection.shown}"
    else:
        hint = f"registry {connection.shown} holds " + (f"{len(names)} other models" if names else "no models")
    raise UriError(f"no model {name} is registered", hint=hint)


def require_version(connection: Connection, name: str, number: int) -> "ModelVersion":
    """Return a version.

    Raises:
        UriError: there is none; the hint has those that exist.
    """
    what = f"looking for {name} version {number}"
    found = connection.look_up(what, lambda: connection.client.get_model_version(name, str(number)))
    if found is None:
        raise UriError(f"{name} has no version {number}", hint=_existing(connection, name))
    return found


def version_of_alias(connection: Connection, name: str, alias: str) -> int:
    """Return the version that holds an alias.

    Raises:
        UriError: no such model or alias; the hint lists the aliases.
    """
    aliases = aliases_of(require_model(connection, name))
    if alias in aliases:
        return aliases[alias]
    if aliases:
        listed = _enumerate([f"{a} (version {v})" for a, v in sorted(aliases.items())], "and")
        hint = f"aliases of {name}: {listed}; registry {connection.shown}"
    else:
        hint = f"it has no aliases; {_existing(connection, name)}"
    raise UriError(f"{name} has no alias {alias}", hint=hint)


def version_of_stage(connection: Connection, uri: StageUri, warn: Warn) -> int:
    """Return the newest version in a stage, or of all for `latest`.

    Raises:
        UriError: no such model, or no version in that stage.
    """
    model = require_model(connection, uri.name)
    versions = list_versions(connection, uri.name)
    if not uri.is_latest:
        stage = uri.stage.lower()
        versions = [v for v in versions if (v.current_stage or "None").lower() == stage]
    if versions:
        newest = max(int(v.version) for v in versions)
        if not uri.is_latest:
            warn(f"stages are deprecated in MLflow: write models:/{uri.name}/{newest}, or use an alias")
        return newest
    if uri.is_latest:
        raise UriError(f"{uri.name} has no versions", hint=f"registry {connection.shown}")
    if uri.stage in aliases_of(model):
        raise UriError(
            f"{uri.name} has no version in stage {uri.stage}",
            hint=f"an alias is written models:/{uri.name}@{uri.stage}",
        )
    raise UriError(f"{uri.name} has no version in stage {uri.stage}", hint=_existing(connection, uri.name))


def describe_model(connection: Connection, name: str) -> str:
    """Say which URIs of a model exist.

    Raises:
        UriError: there is no such model.
    """
    aliases = sorted(aliases_of(require_model(connection, name)).items())
    numbers = [int(v.version) for v in list_versions(connection, name)]
    if not numbers:
        return f"{name} has no versions yet; registry {connection.shown}"
    forms = [f"models:/{name}/{max(numbers)} (newest)"]
    forms += [f"models:/{name}@{alias} (version {number})" for alias, number in aliases[:3]]
    return "write " + _enumerate(forms, "or")


def list_versions(connection: Connection, name: str) -> "list[ModelVersion]":
    """Return all versions of a model, oldest first."""
    quote = '"' if "'" in name else "'"
    versions: list[ModelVersion] = []
    token: str | None = None
    with connection.doing(f"listing the versions of {name}"):
        while True:
            page = connection.client.search_model_versions(
                f"name={quote}{name}{quote}", max_results=1000, page_token=token
            )
            versions.extend(page)
            token = page.token
            if not token:
                return sorted(versions, key=lambda v: int(v.version))


def aliases_of(model: "RegisteredModel") -> dict[str, int]:
    """Return alias to version. MLflow gives the number as int from SQL and as str over REST."""
    aliases: Mapping[str, str | int] = model.aliases or {}
    return {alias: int(number) for alias, number in aliases.items()}


def _from_version(connection: Connection, version: "ModelVersion", requested: str, warn: Warn) -> Subject:
    name, number = version.name, int(version.version)
    if version.status != "READY":
        warn(f"{name} version {number} is {version.status}, not READY: it can be checked, not promoted")
    with connection.doing(f"asking where the bytes of {name} version {number} are"):
        download_uri = connection.client.get_model_version_download_uri(name, str(number))
    return Subject(
        registry_uri=connection.shown,
        requested_uri=requested,
        name=name,
        version=number,
        creation_timestamp_ms=int(version.creation_timestamp),
        source=version.source or "",
        download_uri=download_uri,
        model_id=_find_model_id(connection, version.source or ""),
        run_id=version.run_id or None,
        tags=tuple(sorted((version.tags or {}).items())),
        status=version.status,
    )


def _find_model_id(connection: Connection, source: str) -> str | None:
    """Follow `source` to the logged model, through copies. None when it, or a version on the way, is gone.

    MLflow's own `ModelVersion.model_id` is always None in the open-source store (mlflow#14417).
    """
    for _ in range(COPIES_FOLLOWED):
        if match := re.fullmatch(r"models:/+(m-[^/@]+)", source):
            model_id = match[1]
            what = f"looking for logged model {model_id}"
            found = connection.look_up(what, lambda: connection.client.get_logged_model(model_id))  # noqa: B023  called at once
            return None if found is None else model_id
        match = re.fullmatch(r"models:/+([^/]+)/(\d+)", source)
        if match is None:
            return None
        name, number = match[1], match[2]
        what = f"looking for {name} version {number}"
        version = connection.look_up(what, lambda: connection.client.get_model_version(name, number))  # noqa: B023  called at once
        source = "" if version is None else version.source or ""
    return None


# --- Logged models and runs -----------------------------------------------------------------------------------


def require_logged_model(connection: Connection, model_id: str) -> "LoggedModel":
    """Return a logged model.

    Raises:
        UriError: there is none.
    """
    what = f"looking for logged model {model_id}"
    found = connection.look_up(what, lambda: connection.client.get_logged_model(model_id))
    if found is None:
        raise UriError(f"no logged model {model_id} exists", hint=f"registry {connection.shown}")
    return found


def resolve_run(connection: Connection, uri: RunUri, requested: str) -> Subject:
    """Pin a path among a run's artifacts; else the logged model of that name, which is where MLflow 3 keeps models.

    Raises:
        UriError: no such run, or neither of the two.
    """
    client = connection.client
    run = require_run(connection, uri.run_id)
    if (model := logged_by_run(connection, run, uri.path)) is not None:
        return _from_logged_model(connection, model, requested)
    with connection.doing(f"listing the artifacts of run {uri.run_id}"):
        is_there = bool(client.list_artifacts(uri.run_id, uri.path))
        names = [] if is_there else sorted(entry.path for entry in client.list_artifacts(uri.run_id))
    if not is_there:
        listed = f"it holds {_enumerate(names[:SHOWN_VERSIONS], 'and')}" if names else "it holds no artifacts"
        raise UriError(f"run {uri.run_id} has no model {uri.path}", hint=f"{listed}; registry {connection.shown}")
    location = f"{run.info.artifact_uri.rstrip('/')}/{uri.path}"
    return Subject(
        registry_uri=connection.shown,
        requested_uri=requested,
        name=None,
        version=None,
        creation_timestamp_ms=None,
        source=f"runs:/{uri.run_id}/{uri.path}",
        download_uri=location,
        model_id=None,
        run_id=uri.run_id,
    )


def require_run(connection: Connection, run_id: str) -> "Run":
    """Return a run.

    Raises:
        UriError: there is none.
    """
    run = connection.look_up(f"looking for run {run_id}", lambda: connection.client.get_run(run_id))
    if run is None:
        raise UriError(f"no run {run_id} exists", hint=f"registry {connection.shown}")
    return run


def logged_by_run(connection: Connection, run: "Run", name: str) -> "LoggedModel | None":
    """Return the newest logged model of that name that the run made. It wins over artifacts, as in MLflow."""
    if not re.fullmatch(r"[\w .-]+", name):
        return None  # a path, or a name that cannot be quoted in a filter
    token: str | None = None
    made: list[LoggedModel] = []
    with connection.doing(f"listing the models of run {run.info.run_id}"):
        while True:
            page = connection.client.search_logged_models(
                experiment_ids=[run.info.experiment_id], filter_string=f"name = '{name}'", page_token=token
            )
            made += [model for model in page if model.source_run_id == run.info.run_id]
            token = page.token
            if not token:
                return max(made, key=lambda model: model.creation_timestamp, default=None)


def _from_logged_model(connection: Connection, model: "LoggedModel", requested: str) -> Subject:
    return Subject(
        registry_uri=connection.shown,
        requested_uri=requested,
        name=None,
        version=None,
        creation_timestamp_ms=int(model.creation_timestamp),
        source=f"models:/{model.model_id}",
        download_uri=model.artifact_location,
        model_id=model.model_id,
        run_id=model.source_run_id or None,
        tags=tuple(sorted((model.tags or {}).items())),
    )


# --- Words ----------------------------------------------------------------------------------------------------


def _existing(connection: Connection, name: str) -> str:
    numbers = [int(v.version) for v in list_versions(connection, name)]
    return f"{name_versions(numbers)}; registry {connection.shown}"


def name_versions(numbers: list[int]) -> str:
    """Say which versions exist: all of a few, the newest of many."""
    if not numbers:
        return "it has no versions"
    if len(numbers) == 1:
        return f"only version {numbers[0]} exists"
    shown = [str(number) for number in sorted(numbers)[-SHOWN_VERSIONS:]]
    if len(shown) < len(numbers):
        return f"{len(numbers)} versions exist, the newest are {_enumerate(shown, 'and')}"
    return f"versions {_enumerate(shown, 'and')} exist"


def _enumerate(words: list[str], joint: str) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"
