"""Keyless signing: the one place that knows sigstore, which the extra `[keyless]` installs.

Whoever signs proves with a short-lived OIDC token who they are; a CA writes that into a certificate of ten minutes, and
a public log records the signature in that time. So there is no key to keep, and what is trusted instead is the trust
root: keys of the CA, of the certificates' log and of the signatures' log. sigstore verifies all of it; what may not be
changed lightly is what stands around its call: an identity is never accepted without its issuer, both are compared
whole, and whatever it raises is a refusal, never a way past it.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, assert_never
from urllib.parse import quote, urlsplit

from validator.attest.bundle import Bundle, Signatory, read_signatory, signatory_of, write_bundle
from validator.attest.canonical import write_canonical
from validator.attest.envelope import PAYLOAD_TYPE
from validator.attest.statement import Statement
from validator.errors import ClearanceRefused, KeylessError, SigstoreUnreachable, UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate
    from sigstore.models import ClientTrustConfig
    from sigstore.oidc import IdentityToken
    from sigstore.verify import Verifier

TOKEN = "SIGSTORE_ID_TOKEN"  # noqa: S105 - the name of a variable
"""Where GitLab's `id_tokens` and others put the token; sigstore's own name."""
TOKEN_LIMIT_BYTES = 1 << 16
DEADLINE_S = 120.0
"""For a certificate and an entry of the log together."""
SHIPPED = "https://tuf-repo-cdn.sigstore.dev"
"""The public instance, as sigstore names what it ships of it."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that may be asked without TLS."""
NAME_LIMIT = 1_000
"""Of an identity and of an issuer, in characters."""


# --- Trust --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicGood:
    """The instance that sigstore's project runs for everybody; its keys are refreshed by TUF."""

    offline: bool = False
    """Take those that sigstore ships. What it kept of the last refresh it would believe unverified: whoever can write
    to the user's cache folder, an earlier check's model perhaps, would decide who is trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustRootFile:
    """The keys of an instance, to verify with: sigstore's `trusted_root.json`."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustConfigFile:
    """The keys and the addresses of an instance, to sign with: sigstore's `ClientTrustConfig`."""

    path: Path


Trust = PublicGood | TrustRootFile | TrustConfigFile


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedSignatory:
    """Who is accepted, and by which instance they must be certified."""

    signatory: Signatory
    trust: Trust


@dataclass(frozen=True, slots=True, kw_only=True)
class KeylessSigner:
    """Signs with whatever identity this process has when it signs."""

    trust: PublicGood | TrustConfigFile
    token_file: Path | None = None
    """Read anew each time: tokens live for minutes, and checks for hours. None: the environment's."""


def require_sigstore() -> None:
    """Require the extra.

    Raises:
        KeylessError: it is not installed; says what to install.
    """
    try:
        import sigstore.sign
        import sigstore.verify  # noqa: F401 - whether they are there is the question
    except ImportError as error:
        raise KeylessError(
            f"keyless signatures need sigstore, which is not installed: {error}",
            hint="pip install 'mlflow-export-validator[keyless]'",
        ) from error
    # It warns of every option that was chosen on purpose, `offline` among them.
    logging.getLogger("sigstore").setLevel(logging.ERROR)


def require_signatory(identity: str, issuer: str) -> Signatory:
    """Return an identity with its issuer.

    Raises:
        UsageError: one of them is empty, or longer than a promotion can write down.
    """
    if not identity or not issuer:
        raise UsageError(
            "an identity is accepted only together with its issuer, and neither may be empty",
            hint="write both: --identity X --issuer URL",
        )
    if max(len(identity), len(issuer)) > NAME_LIMIT:
        raise UsageError(f"identity and issuer have at most {NAME_LIMIT:,} characters")
    return Signatory(identity=identity, issuer=issuer)


def open_verifier(trust: Trust) -> "Verifier":
    """Return sigstore's verifier with the keys of an instance.

    Raises:
        KeylessError: the file cannot be used, or sigstore is not installed.
        SigstoreUnreachable: the public instance's keys cannot be refreshed.
    """
    require_sigstore()
    from sigstore.errors import Error
    from sigstore.models import TrustedRoot
    from sigstore.verify import Verifier

    match trust:
        case TrustRootFile(path=path):
            with _reading(path, "trust root"):
                return Verifier(trusted_root=TrustedRoot.from_file(str(path)))
        case TrustConfigFile(path=path):
            with _reading(path, "trust config"):
                return Verifier(trusted_root=_read_trust_config(trust).trusted_root)
        case PublicGood(offline=True):
            shipped = files("sigstore._store") / quote(SHIPPED, safe="") / "trusted_root.json"
            with as_file(shipped) as path, _reading(path, "trust root"):
                return Verifier(trusted_root=TrustedRoot.from_file(str(path)))
        case PublicGood():
            try:
                return Verifier(trusted_root=_read_trust_config(trust).trusted_root)
            except (Error, ValueError) as error:
                raise KeylessError(f"the keys of the public instance cannot be used: {_describe(error)}") from error
        case _:
            assert_never(trust)


def _read_trust_config(trust: PublicGood | TrustConfigFile) -> "ClientTrustConfig":
    from sigstore.errors import TUFError
    from sigstore.models import ClientTrustConfig

    match trust:
        case TrustConfigFile(path=path):
            with _reading(path, "trust config"):
                return ClientTrustConfig.from_json(path.read_text(encoding="utf-8"))
        case PublicGood():
            try:
                return ClientTrustConfig.production()
            except (TUFError, OSError) as error:  # the second: nowhere to keep them
                raise SigstoreUnreachable(
                    f"the keys of the public sigstore instance cannot be refreshed: {_describe(error)}",
                    hint="try again; or verify with --offline, or with --trust-root FILE",
                ) from error
        case _:
            assert_never(trust)


def _require_private_services(trust: TrustConfigFile, config: "ClientTrustConfig") -> None:
    """Require TLS to whatever is asked when signing: the CA is sent the token, with which anybody signs as its owner.

    Raises:
        KeylessError: an address is not `https://`, nor `http://` of this machine; or the config names no services.
    """
    with _reading(trust.path, "trust config"):
        services = config.signing_config
        clients: list[Any] = [services.get_fulcio(), *services.get_tlogs(), *services.get_tsas()]
        addresses = [str(each.url) for each in clients]
        hosts = [(urlsplit(address).scheme, urlsplit(address).hostname) for address in addresses]
    for address, (scheme, host) in zip(addresses, hosts, strict=True):
        if host is None or not (scheme == "https" or (scheme == "http" and host in LOOPBACK)):
            raise KeylessError(
                f"{trust.path} names a service that would be asked without TLS, and the token could be read: {address}",
                hint="write its address with https://; http:// is for services on this machine only",
            )


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    from sigstore.errors import Error

    try:
        yield
    except OSError as error:
        raise KeylessError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (Error, ValueError) as error:
        raise KeylessError(f"{path} is no {what} of sigstore that can be used: {_describe(error)}") from error


# --- Signing ------------------------------------------------------------------------------------------------------


def find_token(signer: KeylessSigner, environment: Mapping[str, str] = os.environ) -> "IdentityToken":
    """Return this process's OIDC token: of the file that was named, the variable `SIGSTORE_ID_TOKEN`, or the CI's.

    The token is a secret: it stands in no message, and workers inherit neither it nor what it is asked for with. Looked
    at before it: whether the trust config that was named can be used, and would not send the token about in the clear.

    Raises:
        KeylessError: there is none, or none that can be used; or the trust config cannot be.
        SigstoreUnreachable: the CI has one, and did not give it.
    """
    require_sigstore()
    from id import GitHubOidcPermissionCredentialError
    from sigstore.oidc import IdentityError, IdentityToken, detect_credential

    if isinstance(signer.trust, TrustConfigFile):
        _require_private_services(signer.trust, _read_trust_config(signer.trust))
    hint = "its audience must be sigstore, and it must be good for some minutes yet"
    if signer.token_file is not None:
        text, place = _read_token(signer.token_file), str(signer.token_file)
    elif environment.get(TOKEN):
        text, place = environment[TOKEN], TOKEN
    else:
        try:
            text, place = detect_credential() or "", "the CI"
        except IdentityError as error:
            if isinstance(error.__cause__, GitHubOidcPermissionCredentialError):
                raise KeylessError(
                    f"this job may have no identity token: {_describe(error)}",
                    hint="write permissions: {id-token: write}; pull requests from forks never get it",
                ) from error
            raise SigstoreUnreachable(
                f"this CI gave no identity token: {_describe(error)}", hint="try again"
            ) from error
    if not text.strip():
        raise KeylessError(
            "there is no identity token to sign with",
            hint=f"on GitHub: permissions: id-token: write; on GitLab: id_tokens: {TOKEN}; else --identity-token-file",
        )
    try:
        return IdentityToken(text.strip())
    except IdentityError as error:
        raise KeylessError(f"the identity token of {place} cannot be used: {_describe(error)}", hint=hint) from error


def _read_token(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return stream.read(TOKEN_LIMIT_BYTES).decode("ascii")
    except OSError as error:
        raise KeylessError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise KeylessError(f"{path} holds no identity token") from error


def sign_keyless(statement: Statement, signer: KeylessSigner, environment: Mapping[str, str] = os.environ) -> bytes:
    """Sign a statement, log that, and return the canonical text of the bundle.

    Raises:
        KeylessError: there is no token, or the trust config cannot be used.
        SigstoreUnreachable: no certificate was given, or the signature was not logged.
        ClearanceRefused: what came back is not what a clearance can be.
    """
    token = find_token(signer, environment)
    from sigstore.dsse import Statement as SigstoreStatement
    from sigstore.sign import SigningContext

    config = _read_trust_config(signer.trust)
    if isinstance(signer.trust, TrustConfigFile):
        _require_private_services(signer.trust, config)  # again: this is the reading that is used

    def ask() -> str:
        with SigningContext.from_trust_config(config).signer(token) as signing:
            return signing.sign_dsse(SigstoreStatement(write_canonical(statement))).to_json()

    try:
        bundle = _within(DEADLINE_S, ask)
    except Exception as error:  # requests', sigstore's and their parsers': none of them says which there are
        raise SigstoreUnreachable(
            f"no keyless signature could be had: {_describe(error).replace(str(token), '***')}",
            hint="verdict.json stands; repeat the check, which reuses what the cache has",
        ) from error
    return write_bundle(bundle)


def _within(deadline_s: float, ask: Callable[[], str]) -> str:
    """Ask, but not for ever: sigstore's client sets no deadline. What answers later is heard by nobody.

    Raises:
        TimeoutError: no answer in time.
        Exception: whatever the client raises.
    """
    answer: Future[str] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # noqa: BLE001 - handed on to who waits
            answer.set_exception(error)

    Thread(target=work, name="sigstore", daemon=True).start()
    try:
        return answer.result(deadline_s)
    except TimeoutError as error:
        if answer.done():
            raise
        raise TimeoutError(f"no answer within {deadline_s:g} s") from error


# --- Verifying ----------------------------------------------------------------------------------------------------


def verify_bundle(bundle: Bundle, accepted: tuple[TrustedSignatory, ...]) -> bytes:
    """Return the payload if one of these signed it while their certificate was good, and a log has a record of that.

    Raises:
        ClearanceRefused: not so.
        KeylessError: the trust root cannot be used, or sigstore is not installed.
        SigstoreUnreachable: the public instance's keys cannot be refreshed.
    """
    claimed = read_signatory(bundle)
    trusted = next((each for each in accepted if each.signatory == claimed), None)
    if trusted is None:
        raise ClearanceRefused(f"it is signed keyless by {claimed}, and not by an identity that is accepted")
    verifier = open_verifier(trusted.trust)
    from sigstore.models import Bundle as SigstoreBundle

    try:
        kind, payload = verifier.verify_dsse(
            SigstoreBundle.from_json(write_canonical(bundle)), _Exactly(trusted.signatory)
        )
    except Exception as error:  # what sigstore does not turn into its own error, too: refused all the same
        raise ClearanceRefused(f"the signature of {claimed} does not hold: {_describe(error)}") from error
    if kind != PAYLOAD_TYPE or payload != bundle.payload:
        raise ClearanceRefused("what was verified is not what the envelope holds")
    _require_tree_size(bundle)
    return payload


@dataclass(frozen=True, slots=True)
class _Exactly:
    """sigstore's own policy takes an identity without an issuer, and one name of several; this one does not."""

    signatory: Signatory

    def verify(self, cert: "Certificate") -> None:
        """Compare whole.

        Raises:
            ClearanceRefused: another one.
        """
        if (found := signatory_of(cert)) != self.signatory:
            raise ClearanceRefused(f"the certificate is that of {found}")


def _require_tree_size(bundle: Bundle) -> None:
    """Hold the proof's tree size against the one that the log signed, which sigstore does not."""
    (entry,) = bundle.verification_material.tlog_entries
    proof = entry.inclusion_proof
    if proof.checkpoint.envelope.split("\n")[1] != proof.tree_size:
        raise ClearanceRefused("the log's checkpoint is about another size than the proof")


def _describe(error: BaseException) -> str:
    """Say what went wrong in one line; some of the exceptions say it only by their cause."""
    text = str(error) or (str(error.__cause__) if error.__cause__ else "") or type(error).__name__
    return " ".join(text.split())[:400]
