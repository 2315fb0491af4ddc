"""`guard.toml`: whose signature counts, and what is protected. Read once, when the server starts, never by clients."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from validator.attest.judgement import Allowed
from validator.attest.keys import PublicKey, load_public_key
from validator.attest.statement import Digest
from validator.disk import read_given
from validator.documents import TOML_LIMIT_BYTES, read_toml
from validator.errors import GuardConfigError, KeyFileError

CONFIG_VARIABLE = "VALIDATOR_GUARD_CONFIG"

Word = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Word, ...], Field(strict=False)]
Digests = Annotated[tuple[Digest, ...], Field(strict=False, min_length=1)]


class GuardConfig(BaseModel):
    """What an administrator decides. Patterns are those of file names; `*` stands for anything. Case does not count."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_version: Literal[1] = 1
    keys: Annotated[Words, Field(min_length=1)]
    """Public key files; relative ones lie beside the configuration."""
    registry_uris: Annotated[Words, Field(min_length=1)]
    """Under which addresses the gate reaches this registry: a clearance names one."""
    models: Words = ("*",)
    """Registered models that are protected."""
    exempt: Words = ("validator.golden.*", "validator.budget.*")
    """Those that are not, although `models` names them."""
    aliases: Words = ("*",)
    """Aliases of protected models that need a clearance."""
    stages: Words = ("Staging", "Production")
    """Stages, deprecated in MLflow, that need a clearance."""
    republished: dict[str, str] = {"*-prod": "*"}
    """Model -> model whose bytes it holds: its versions are made by the gate alone. `*` is the same text in both."""
    policy_digests: Digests | None = None
    """Policies by which a check counts; none: any."""
    policy_origins: Words | None = None
    """Where such a policy must come from, as the check recorded it; none: anywhere."""
    golden_digests: Digests | None = None
    """Golden datasets over which a check counts; none: any."""
    require_expect: bool = True
    """Whether a move must say which version holds the alias now."""
    verify_bytes: bool = True
    """Whether the server hashes the version's files before the alias moves."""

    @model_validator(mode="after")
    def _be_consistent(self) -> Self:
        for key in ("models", "aliases"):
            if not getattr(self, key):
                raise ValueError(f'{key} names none, so nothing would be protected: write ["*"] for all of them')
        if "*" in self.exempt:
            raise ValueError('exempt names "*", so nothing would be protected: name the models that need no clearance')
        for target, source in self.republished.items():
            if target.count("*") > 1 or source.count("*") != target.count("*"):
                raise ValueError(f"republished: {target!r} = {source!r}: one * in both, or in neither")
            if target == source:
                raise ValueError(f"republished: {target!r} = {source!r}: these are the same models")
        if self.republished and not self.verify_bytes:
            raise ValueError("republished needs verify_bytes: only its bytes tie such a version to its clearance")
        return self


@dataclass(frozen=True)
class Protection:
    """A configuration with its keys loaded."""

    config: GuardConfig
    keys: tuple[PublicKey, ...]

    @cached_property
    def allowed(self) -> Allowed:
        """Digests that are accepted."""
        policies, goldens = self.config.policy_digests, self.config.golden_digests
        return Allowed(
            policies=None if policies is None else frozenset(policies),
            origins=self.config.policy_origins,
            goldens=None if goldens is None else frozenset(goldens),
        )

    def protects(self, name: str) -> bool:
        """Whether a registered model is protected."""
        return matches(name, self.config.models) and not matches(name, self.config.exempt)

    def protects_alias(self, name: str, alias: str) -> bool:
        """Whether an alias of a model needs a clearance."""
        return self.protects(name) and matches(alias, self.config.aliases)

    def protects_stage(self, name: str, stage: str) -> bool:
        """Whether a stage of a model needs a clearance."""
        return self.protects(name) and matches(stage, self.config.stages)

    def origin_of(self, name: str) -> str | None:
        """Return the model whose bytes this one republishes; None: it holds its own."""
        if not self.protects(name):
            return None
        for target, source in self.config.republished.items():
            head, star, tail = target.partition("*")
            if not star and name == target:
                return source
            if star and len(name) > len(head) + len(tail) and name.startswith(head) and name.endswith(tail):
                return source.replace("*", name[len(head) : len(name) - len(tail)])
        return None


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name fits one of the patterns. Some databases do not tell `Champion` from `champion`, so we do not."""
    return any(fnmatchcase(name.casefold(), pattern.casefold()) for pattern in patterns)


def find_protection(environment: Mapping[str, str] = os.environ) -> Protection:
    """Read the configuration that the server's environment names.

    Raises:
        GuardConfigError: none is named, or it cannot be used.
    """
    if not (name := environment.get(CONFIG_VARIABLE)):
        raise GuardConfigError(
            f"the registry is to be guarded, and {CONFIG_VARIABLE} is not set", hint="let it name guard.toml"
        )
    return read_protection(Path(name))


def read_protection(path: Path) -> Protection:
    """Read a configuration and its keys.

    Raises:
        GuardConfigError: it cannot be used; says why.
    """
    try:
        config = GuardConfig.model_validate(read_toml(read_given(path, limit_bytes=TOML_LIMIT_BYTES).decode("utf-8")))
    except OSError as error:
        raise GuardConfigError(
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}", hint=f"{CONFIG_VARIABLE} names it"
        ) from error
    except ValidationError as error:
        raise GuardConfigError(f"{path}: {_describe(error)}", hint="the guard's page lists its keys") from error
    except ValueError as error:  # no UTF-8, no TOML
        raise GuardConfigError(f"{path} is no TOML: {error}") from error
    try:
        keys = tuple(load_public_key(path.parent / name) for name in config.keys)
    except KeyFileError as error:
        hint = f"{error.hint}; one without a folder lies beside {path.name}"
        raise GuardConfigError(f"{path}: keys: {error.message}", hint=hint) from error
    return Protection(config=config, keys=keys)


def _describe(error: ValidationError) -> str:
    """Say all faults in one line."""
    faults = []
    for fault in error.errors():
        where = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "extra_forbidden":
            faults.append(f"unknown key {where}")
            continue
        what = fault["msg"].removeprefix("Value error, ")
        faults.append(f"{where}: {what[:1].lower()}{what[1:]}" if where else what)
    return "; ".join(faults)
