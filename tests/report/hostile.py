"""Documents whose every name is written by an attacker, and a corpus of what attackers write."""

from typing import Any

from hypothesis import strategies as st

from tests.builders import failing
from validator.report.model import BackendRecord, FindingRecord, OutputRecord, Part, VerdictDocument, WarningRecord

NASTY = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=2</script>",
    '"><img src=x onerror="window.pwned=3">',
    "'-alert(1)-'",
    "javascript:window.pwned=4",
    "</title></style></svg><svg onload=window.pwned=5>",
    "<!-- -->--><b>",
    "]]><x/>",
    "{{7*7}}{%raw%}",
    "&lt;b&gt;&#60;i&#62;",
    "::error file=a,line=1::owned",
    "\n::set-output name=verdict::pass\n",
    "##[error]owned ##vso[task.complete]",
    "a\r\nverdict=pass",
    "verdict<<EOF",
    "| x | `y` | [z](https://evil.example) @everyone #1 https://evil.example",
    "``` \n```sh\nrm -rf /\n```",
    "</details></summary><h1>pass</h1>",
    "<!-- validator:comment:other -->",
    "=HYPERLINK(1)",
    "+1-1@SUM(A1)",
    "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "\u202epass\u2066 \u200b\ufeff",
    "\ud800\udfff\ufffe\x00\x7f\x85\u2028",
    "../../etc/passwd",
    "%0A%0D::error::",
    "$(rm -rf /) `id` ; && |",
    "x" * 700,
    "模型 é 🦊 e\u0301",
    "",
    " ",
)

SUBJECT_TEXTS = ("title", "name", "pinned_uri", "requested_uri", "registry_uri", "source", "run_id", "format")

NASTY_TEXT = st.sampled_from(NASTY) | st.text(max_size=40)


def poison(document: VerdictDocument, names: list[str]) -> VerdictDocument:
    """Replace every free text of a document by nasty ones, in turn; what is matched on stays as it is."""
    turn = iter(range(1 << 30))

    def nasty() -> str:
        return names[next(turn) % len(names)]

    def edit(part: Part, *fields: str) -> Any:
        return part.model_copy(update={field: nasty() for field in fields if getattr(part, field) is not None})

    def edit_output(output: OutputRecord) -> OutputRecord:
        update = {
            "name": outputs[output.name],
            "worst": None if output.worst is None else edit(output.worst, "sample_id"),
            "worst_samples": tuple(edit(sample, "sample_id") for sample in output.worst_samples),
        }
        return output.model_copy(update=update)

    def edit_backend(backend: BackendRecord) -> BackendRecord:
        settings = backend.settings.model_copy(update={"ran": {nasty(): nasty()}, "asked": {nasty(): nasty()}})
        update = {
            "name": backends[backend.name],
            "summary": nasty(),
            "fingerprint": {nasty(): nasty(), **backend.fingerprint},
            "notes": {nasty(): nasty()},
            "seconds": {nasty(): 1.0},
            "settings": settings,
            "outputs": tuple(map(edit_output, backend.outputs)),
        }
        return backend.model_copy(update=update)

    def edit_finding(finding: FindingRecord) -> FindingRecord:
        known = {
            "backend": None if finding.backend is None else backends.get(finding.backend, nasty()),
            "output": None if finding.output is None else outputs.get(finding.output, nasty()),
        }
        edited: FindingRecord = edit(finding, "message", "hint", "sample_id")
        return edited.model_copy(update=known)

    outputs = {o.name: nasty() for b in document.backends for o in b.outputs}
    backends = {b.name: b.name if b.name in ("reference", "eager-cpu") else nasty() + b.name for b in document.backends}
    policy = edit(document.policy, "origin")
    update = {
        "headline": nasty(),
        "command": ("validator", "check", nasty(), nasty()),
        "subject": edit(document.subject, *SUBJECT_TEXTS),
        "golden": edit(document.golden, "name", "uri", "source"),
        "policy": policy.model_copy(update={"required": (nasty(),), "document": {nasty(): nasty()}}),
        "onnx": None if document.onnx is None else edit(document.onnx, "source", "origin"),
        "findings": tuple(map(edit_finding, document.findings)),
        "backends": tuple(map(edit_backend, document.backends)),
        "warnings": (WarningRecord(code=nasty(), message=nasty()), *document.warnings),
        "retries": (nasty(),),
    }
    return document.model_copy(update=update)


def poisoned() -> VerdictDocument:
    """A failed check in which every name is from the corpus."""
    return poison(failing(), list(NASTY))
