"""What can go wrong, and the exit code of each.

    ValidatorError                    base; carries a code, a message and a hint for people
    |-- UsageError            exit 2  what was asked for makes no sense, or does not exist
    |   |-- UriError                  [uri]       not a model, version or alias that can be resolved
    |   |-- RegistryUnset             [registry]  no registry is named
    |   |-- PolicyError               [policy]    a policy file that cannot be used
    |   |-- GoldenError               [golden]    a golden dataset that cannot be used
    |   |-- BackendError              [backend]   an unknown backend
    |   |-- KeyFileError              [key]       a key file that cannot be used
    |   |-- KeylessError              [keyless]   an identity, a token or a trust root that cannot be used
    |   `-- GuardConfigError          [guard]     a configuration of the guard that cannot be used
    |-- CouldNotRun           exit 3  the gate could not do its work
    |   |-- RegistryUnreachable       [registry]  the registry does not answer
    |   |-- SigstoreUnreachable       [sigstore]  no keyless signature, or no keys to verify one with, could be had
    |   |-- ReportFailed              [report]    the evidence could not be written
    |   `-- AnnotationFailed          [annotate]  MLflow was not annotated, the verdict stands
    `-- IntegrityError        exit 4  bytes that are not what they should be, or not safe to open
        |-- FormatRefused             [format]
        |-- DigestChanged             [digest]
        |-- SandboxTooWeak            [sandbox]   workers cannot be held as strongly as is asked for
        |-- ClearanceRefused          [clearance] a clearance that cannot be believed, or cannot be given
        |-- PromotionRefused          [promotion] the registry is not as the promotion requires
        `-- GuardRefused              [guard]     the registry's guard does not allow it

A bad *model* is no exception: it is data, and ends in a finding. Raised means that the gate itself stopped.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process says to the shell. Pipelines read these: change them only with a changelog entry."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    INCONCLUSIVE = 3
    REFUSED = 4
    INTERRUPTED = 130


class ValidatorError(Exception):
    """Something that stops the gate, told to people: `word[code]: message` and a hint on what to do next."""

    code = "internal"
    word = "inconclusive"
    exit_code = ExitCode.INCONCLUSIVE

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(ValidatorError):
    """What was asked for makes no sense, or does not exist."""

    code = "usage"
    word = "error"
    exit_code = ExitCode.USAGE


class UriError(UsageError):
    """A URI that names no model version."""

    code = "uri"


class RegistryUnset(UsageError):
    """No registry is named, and there is none by default."""

    code = "registry"


class PolicyError(UsageError):
    """A policy file that cannot be used."""

    code = "policy"


class GoldenError(UsageError):
    """A golden dataset that cannot be used: missing, empty, of the wrong shape or dtype, or altered."""

    code = "golden"


class BackendError(UsageError):
    """A backend that the catalog and the policy do not know."""

    code = "backend"


class KeyFileError(UsageError):
    """A key file that cannot be used: missing, of another type, or a private key that others may read."""

    code = "key"


class KeylessError(UsageError):
    """Nothing to sign or verify keyless with: no sigstore, no identity token, or a trust root that cannot be used."""

    code = "keyless"


class GuardConfigError(UsageError):
    """A configuration of the registry's guard that cannot be used."""

    code = "guard"


class CouldNotRun(ValidatorError):
    """The gate could not do its work. Nothing is known about the model."""


class RegistryUnreachable(CouldNotRun):
    """The registry does not answer, or answers with a failure of its own."""

    code = "registry"


class SigstoreUnreachable(CouldNotRun):
    """sigstore's services, or the CI's for identity tokens, do not answer or give nothing that can be used."""

    code = "sigstore"


class ReportFailed(CouldNotRun):
    """The evidence could not be written."""

    code = "report"


class AnnotationFailed(CouldNotRun):
    """MLflow was not annotated. The verdict stands; annotating again is safe."""

    code = "annotate"


class IntegrityError(ValidatorError):
    """Bytes that are not what they should be, or not safe to open."""

    code = "integrity"
    word = "refused"
    exit_code = ExitCode.REFUSED


class FormatRefused(IntegrityError):
    """A format that this policy does not allow, or a file that is not what its name says."""

    code = "format"


class DigestChanged(IntegrityError):
    """The bytes changed while they were being checked."""

    code = "digest"


class SandboxTooWeak(IntegrityError):
    """Workers cannot be held as strongly as the policy or the user asks for."""

    code = "sandbox"


class ClearanceRefused(IntegrityError):
    """A clearance that cannot be read or believed, or that cannot be given."""

    code = "clearance"


class PromotionRefused(IntegrityError):
    """The registry is not as a promotion or a rollback requires: another holder, other bytes, another version."""

    code = "promotion"


class GuardRefused(IntegrityError):
    """The guard in front of the registry does not allow it: without a valid clearance, nothing protected is changed."""

    code = "guard"
