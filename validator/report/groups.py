"""Findings that have one cause, put together: what a person reads as one thing."""

import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from validator.backends.catalog import BASELINE, REFERENCE, Precision, Runtime
from validator.judge import Check, Status, Verdict
from validator.report.headline import prominence, used
from validator.report.model import BackendRecord, FindingRecord, OutputRecord, VerdictDocument
from validator.report.numbers import format_cosine, format_measured, format_ratio
from validator.report.text import clean, enumerate_names
from validator.subject import OnnxOrigin

STATUS_ORDER = (Status.REFUSED, Status.EXCEEDED, Status.NOT_MEASURED)

_MEASURED_CHECKS = frozenset({Check.ERROR_RATIO, Check.BATCH})
"""Their messages say what was measured, so it is the output, not the message, that makes a group."""

MESSAGE_LIMIT = 400

_ALIKE = 2.0
"""Error ratios within this factor of each other count as alike."""

_OTHER_FILE = ("--onnx", "model.onnx")

_BLIND_COSINE = 0.9999
"""A cosine from here on is what people take for equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Findings of one check, status and output, over metrics and backends."""

    check: Check
    status: Status
    output: str | None
    findings: tuple[FindingRecord, ...]

    @property
    def backends(self) -> tuple[str, ...]:
        """Whose findings these are, the worst first."""
        ranked = sorted(self.findings, key=used, reverse=True) if self.is_measured else self.findings
        return tuple(dict.fromkeys(f.backend for f in ranked if f.backend is not None))

    @property
    def is_measured(self) -> bool:
        """Whether every finding is a number beside a limit."""
        return self.check in _MEASURED_CHECKS and all(
            f.measured is not None and f.limit is not None and f.backend is not None for f in self.findings
        )

    @property
    def worst(self) -> FindingRecord:
        """The pooled ratio where that is among them, else the finding that uses most of its limit."""
        return max(self.findings, key=prominence)


def group_findings(document: VerdictDocument) -> list[Group]:
    """Return the groups that block, strongest first, and within a strength in the order of the checks."""
    groups: dict[tuple[object, ...], list[FindingRecord]] = {}
    for finding in document.findings:
        if finding.status not in (Status.WITHIN, Status.WAIVED):
            groups.setdefault(_key(finding), []).append(finding)
    made = [
        Group(check=fs[0].check, status=fs[0].status, output=fs[0].output, findings=tuple(fs)) for fs in groups.values()
    ]
    order = list(Check)
    return sorted(made, key=lambda g: (STATUS_ORDER.index(g.status), order.index(g.check), -used(g.worst)))


def _key(finding: FindingRecord) -> tuple[object, ...]:
    if finding.check in _MEASURED_CHECKS and None not in (finding.measured, finding.limit, finding.backend):
        return finding.status, finding.check, finding.output
    # One cause on several backends is one message, apart from the backend's own name.
    message = finding.message.replace(finding.backend, "*") if finding.backend else finding.message
    return finding.status, finding.check, finding.output, message, finding.hint


def describe_group(group: Group) -> str:
    """Say what and where in one cleaned line, with all backends of the group instead of the first one's name."""
    names = enumerate_names(list(group.backends))
    if group.is_measured:
        return names + (f": output {clean(group.output)}" if group.output is not None else "")
    first = group.findings[0]
    message = clean(first.message, limit=MESSAGE_LIMIT)
    if first.backend is None:
        return message
    own = clean(first.backend)
    if message.startswith(own):
        # A worker's own words may name it once more, which is wrong for all but the first of a group.
        return names + message.removeprefix(own).replace(f": {own} ", ": ", 1)
    where = f"output {clean(first.output)}: " if first.output and clean(first.output) not in message else ""
    return f"{names}: {where}{message}"


def describe_number(finding: FindingRecord, *, after: bool) -> str:
    """Say `error ratio 560 of 3.00`; after another number of the same group only `p99 620 of 4.50`."""
    if finding.measured is None or finding.limit is None:
        return clean(finding.message)
    metric = clean(finding.metric or finding.check)
    shown = metric.removeprefix("error ratio").lstrip(", ") or metric if after else metric
    return f"{shown} {format_measured(finding.measured, finding.limit)}"


# --- What the numbers of a group say together ---------------------------------------------------------------------


def find_output(document: VerdictDocument, backend: str | None, output: str | None) -> OutputRecord | None:
    """Return what was measured on one output of one backend."""
    return next((b.find_output(output) for b in document.backends if b.name == backend), None)


def unseen_by(document: VerdictDocument, group: Group) -> str | None:
    """Say which of the numbers that people usually look at would have missed this."""
    outputs = [o for name in group.backends if (o := find_output(document, name, group.output)) is not None]
    if group.check is not Check.ERROR_RATIO or group.status is not Status.EXCEEDED or not outputs:
        return None
    ways: list[str] = []
    if all(o.flips == 0 for o in outputs):
        ways.append(f"top-1 (0 flips of {outputs[0].samples:,})")
    lowest = min(o.cosine for o in outputs)
    if lowest > _BLIND_COSINE and all(o.nonfinite_mismatches == 0 for o in outputs):
        ways.append(f"cosine ({format_cosine(lowest)})")
    return "by " + " and by ".join(ways) if ways else None


def reading_of(document: VerdictDocument, group: Group) -> str | None:
    """Infer which part is at fault from who is out and who is within. An inference, and printed as one."""
    if group.check is not Check.ERROR_RATIO or group.status is not Status.EXCEEDED:
        return None
    out = set(group.backends)
    judged = {b.name: r for b in _ieee_candidates(document) if (r := _pooled(b, group.output)) is not None}
    runtimes = {b.name: b.runtime for b in document.backends}
    onnx = {name: r for name, r in judged.items() if runtimes[name] == Runtime.ONNXRUNTIME}
    eager = {name: r for name, r in judged.items() if runtimes[name] == Runtime.TORCH}
    if not onnx or out != set(onnx):
        return _reading_of_devices(document, out, set(judged))
    if len(onnx) == 1:
        return (
            f"only {clean(next(iter(onnx)))} is out{_eager_is_within(eager)}: its ONNX file, or how it runs that file"
        )
    if not max(onnx.values()) <= _ALIKE * min(onnx.values()):
        return None
    many = "both" if len(onnx) == 2 else f"all {len(onnx)}"
    return f"{many} ONNX Runtime backends are out alike{_eager_is_within(eager)}: the file, not the precision"


def _eager_is_within(eager: dict[str, float]) -> str:
    if not eager:
        return ""
    return f" and the eager ones are within ({format_ratio(max(eager.values()))})"


def _reading_of_devices(document: VerdictDocument, out: set[str], judged: set[str]) -> str | None:
    cuda = {b.name for b in document.backends if b.name in judged and b.device.startswith("cuda")}
    if cuda and out == cuda:
        return "every CUDA backend is out, eager and ONNX Runtime: the device or its precision settings, not the file"
    return None


def _ieee_candidates(document: VerdictDocument) -> Iterator[BackendRecord]:
    for backend in document.backends:
        if backend.name not in (REFERENCE, BASELINE) and backend.precision == Precision.IEEE:
            yield backend


def _pooled(backend: BackendRecord, output: str | None) -> float | None:
    found = backend.find_output(output)
    return found.ratios.pooled if found is not None and found.ratios is not None else None


def next_steps(document: VerdictDocument, group: Group) -> tuple[str | None, tuple[str, ...]]:
    """Say what to do about a group, and which options to run the same check again with; no options, no command."""
    if group.check is Check.WEIGHTS and group.status is Status.EXCEEDED:
        return _blame_own_export(document) or group.worst.hint, _OTHER_FILE
    if group.check is not Check.ERROR_RATIO or group.status is not Status.EXCEEDED:
        return group.worst.hint, ()
    runtimes = {b.name: b.runtime for b in document.backends}
    devices = {b.name: b.device for b in document.backends}
    out, title = set(group.backends), clean(document.subject.title)
    if all(runtimes.get(name) == Runtime.ONNXRUNTIME for name in out):
        if all(devices.get(name) != "cpu" for name in out) and "onnxruntime-cpu" not in runtimes:
            return "see whether the CPU provider computes the same from the same file", ("--backend", "onnxruntime-cpu")
        if own := _blame_own_export(document):
            return own, _OTHER_FILE
        if document.weights is not None and document.weights.differences:
            return "mend the weights of the ONNX file first: they alone may explain it", ()
        return f"export the ONNX file again from {title}, and check that file", _OTHER_FILE
    if any(devices.get(name) != "cpu" for name in out) and "cudnn-off" not in runtimes:
        return "turn one knob, cuDNN, and see whether the difference goes with it", ("--backend", "cudnn-off")
    return "see every number of every backend", ("--verbose",)


def _blame_own_export(document: VerdictDocument) -> str | None:
    """Say what to do about a file that this check exported: its author has none to mend."""
    if document.onnx is None or document.onnx.origin != OnnxOrigin.EXPORT:
        return None
    return f"this check exported {clean(document.subject.title)} itself: export it another way, and check that file"


def first_step(document: VerdictDocument) -> tuple[str | None, str | None]:
    """Say what to do next, and with which command: about the first group that says so, or with a pass."""
    if document.verdict is Verdict.PASS:
        if document.subject.name is None:
            return None, None  # no registered version, so nothing to point an alias to
        words = ["validator", "promote", document.subject.pinned_uri, "--alias", "ALIAS", "--key", "KEY.pub"]
        return (
            "promote it with its clearance, which a check with --sign-key writes",
            shlex.join(clean(word) for word in words),
        )
    for group in group_findings(document):
        text, options = next_steps(document, group)
        if text:
            return text, repeat_command(document, options) if options else None
    return None, None


def repeat_command(document: VerdictDocument, options: tuple[str, ...]) -> str:
    """Return the command of this check with other options, quoted for a shell.

    An option that is given anew replaces the one that was there; `--backend` adds.
    """
    words = list(document.command)
    if words[:2] != ["validator", "check"]:
        words = ["validator", "check", document.subject.pinned_uri]
    # Pinned: an alias may mean another version by the time that the command is pasted.
    subject = document.subject
    words = [subject.pinned_uri if word == subject.requested_uri else word for word in words]
    if options and options[0] != "--backend":
        words = _without(words, options[0], has_value=len(options) > 1)
    return shlex.join(clean(word) for word in [*words, *options])


def _without(words: list[str], option: str, *, has_value: bool) -> list[str]:
    """Drop an option and its value, in either spelling."""
    kept: list[str] = []
    for before, word in itertools.pairwise(["", *words]):
        is_value = has_value and before == option
        if word != option and not word.startswith(f"{option}=") and not is_value:
            kept.append(word)
    return kept


def describe_reused(document: VerdictDocument) -> list[str]:
    """Say what was not computed by this check, one line for each check that did."""
    parts = [(backend.name, backend.reused) for backend in document.backends]
    parts += [("export", document.onnx.reused)] if document.onnx is not None else []
    by_check: dict[tuple[str, str], list[str]] = {}
    for name, reused in parts:
        if reused is not None:
            by_check.setdefault((reused.check_id, reused.created_utc), []).append(clean(name))
    return [
        f"{' and '.join(names)} of check {clean(check_id)}, {clean(created)}"
        for (check_id, created), names in by_check.items()
    ]
