"""Where a finding points to in a repository: the policy file, if there is one, else the document of the check."""

import re
from pathlib import PurePosixPath

from validator.policy import BUILT_IN
from validator.report.model import VerdictDocument
from validator.report.text import clean

DOCUMENT_NAME = "verdict.json"


def find_file(document: VerdictDocument) -> str:
    """Return the path of the policy file as the check was given it, cleaned.

    A policy that is built in or registered is no file, and a path that leads out of the repository is none that a
    pipeline can show: all give `verdict.json`. One that was read at a git ref gives its path there.
    """
    origin = document.policy.origin
    if origin in BUILT_IN or origin.startswith("models:/"):
        return DOCUMENT_NAME
    at_ref = re.fullmatch(r"git:[^:]+:(.+)@[0-9a-f]+", origin)
    path = PurePosixPath(clean(at_ref[1] if at_ref else origin, limit=1_000))
    is_inside = not path.is_absolute() and ".." not in path.parts and path.name
    return str(path) if is_inside else DOCUMENT_NAME
