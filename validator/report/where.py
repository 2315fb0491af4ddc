"""Where a finding points to in a repository: the policy file, if there is one, else the document of the check."""

from pathlib import PurePosixPath

from validator.policy import BUILT_IN
from validator.report.model import VerdictDocument
from validator.report.text import clean

DOCUMENT_NAME = "verdict.json"


def find_file(document: VerdictDocument) -> str:
    """Return the path of the policy file as the check was given it, cleaned.

    A built-in policy is no file, and a path that leads out of the repository is none that a pipeline can show: both
    give `verdict.json`.
    """
    origin = PurePosixPath(clean(document.policy.origin, limit=1_000))
    is_inside = not origin.is_absolute() and ".." not in origin.parts and origin.name
    return str(origin) if is_inside and document.policy.origin not in BUILT_IN else DOCUMENT_NAME
