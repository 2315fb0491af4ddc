"""The report for people: what, where, how much of how much, which sample, what next. The last line decides.

Rendered from the document alone. Names are cleaned where they enter a line; no line but a command is wrapped in the
middle of a word, and the last line is never cut or wrapped: people and pipelines read the end of the log.
"""

import textwrap
from dataclasses import dataclass

from validator.backends.catalog import BASELINE, REFERENCE
from validator.judge import Check, Reference, Status, Verdict
from validator.report.groups import (
    MESSAGE_LIMIT,
    Group,
    describe_group,
    describe_number,
    describe_reused,
    find_output,
    group_findings,
    next_steps,
    reading_of,
    repeat_command,
    unseen_by,
)
from validator.report.model import CrashedRecord, TimedOutRecord, VerdictDocument, ViolatedRecord
from validator.report.numbers import format_bytes, format_duration, format_pair, format_share
from validator.report.table import backend_table
from validator.report.text import clean, clean_lines, short_digest
from validator.sandbox.confinement import MECHANISMS
from validator.sandbox.level import Level

GROUPS_SHOWN = 5
ROWS_SHOWN = 3
OUTPUTS_SHOWN = 3
ALL = 1 << 30

_NO_BREAK = "\xa0"
LOG_LINES = 5
LOG_LINES_VERBOSE = 20
LABEL_WIDTH = 12
WIDTH_MIN = 40

_WORDS = {Status.REFUSED: "refused", Status.EXCEEDED: "fail", Status.NOT_MEASURED: "inconclusive"}
_STYLES = {
    "fail": "1;31",
    "exceeded": "1;31",
    "inconclusive": "33",
    "not measured": "33",
    "refused": "7",
    "waived": "33",
}
"""ANSI: bold red, yellow, reverse. Colour repeats what the words say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How lines are made."""

    color: bool
    width: int

    def paint(self, word: str, text: str | None = None) -> str:
        """Colour a text after a word's meaning."""
        shown = word if text is None else text
        return f"\x1b[{_STYLES[word]}m{shown}\x1b[0m" if self.color and word in _STYLES else shown

    def labelled(self, label: str, text: str) -> list[str]:
        """Lay out a label and a text, wrapped at words under itself."""
        width = max(WIDTH_MIN, self.width) - LABEL_WIDTH - 2
        lines = _wrap(text, width)
        labels = [label, *[""] * (len(lines) - 1)]
        return [f"  {name:<{LABEL_WIDTH}}{line}".rstrip() for name, line in zip(labels, lines, strict=True)]

    def titled(self, word: str, code: str, text: str) -> list[str]:
        """Lay out the line that heads a group; what does not fit goes on under the labels' texts."""
        blanks = " " * (LABEL_WIDTH + 2)
        lines = _wrap(f"{code}  {text}", max(WIDTH_MIN, self.width), indent=blanks)
        return [lines[0].replace(code, self.paint(word, code), 1), *lines[1:]]


def _wrap(text: str, width: int, *, indent: str = "") -> list[str]:
    """Cut at blanks only, so that names stay whole; at no-break blanks neither, which no cleaned text holds."""
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_NO_BREAK, " ") for line in lines] or [""]


def render_terminal(document: VerdictDocument, *, color: bool, width: int, verbose: bool) -> str:
    """Return the whole report, lines separated by newlines, without one at the end."""
    style = Style(color=color, width=width)
    lines = _heading(document, style)
    groups = group_findings(document)
    is_pass = document.verdict is Verdict.PASS
    if is_pass or verbose or _ran_in_part(document):
        table = backend_table(document, width=width, outputs_max=ALL if verbose else OUTPUTS_SHOWN)
        lines += ["", *_paint_statuses(table, style)]
    if is_pass:
        lines += [*_also_within(document, style), *_flips(document, style), *_control(document, style)]
    if verbose:
        lines += _environments(document, style)
    for group in groups if verbose else groups[:GROUPS_SHOWN]:
        lines += ["", *_group(document, group, style, verbose=verbose)]
    if not verbose and len(groups) > GROUPS_SHOWN:
        lines += ["", f"and {len(groups) - GROUPS_SHOWN} more: --verbose shows them, verdict.json holds all"]
    warnings = [f"warning[{clean(w.code)}]: {clean(w.message, limit=MESSAGE_LIMIT)}" for w in document.warnings]
    warnings += [f"warning[retry]: {clean(retry, limit=MESSAGE_LIMIT)}" for retry in document.retries]
    lines += (
        ["", *(line for w in warnings for line in _wrap(w, max(WIDTH_MIN, width), indent="  "))] if warnings else []
    )
    return "\n".join([*lines, "", render_last_line(document, color=color)])


def _ran_in_part(document: VerdictDocument) -> bool:
    """Whether something was measured although nothing can be said: what did run should not look as if it had not."""
    measured = any(backend.outputs for backend in document.backends if backend.name != REFERENCE)
    return document.verdict is Verdict.INCONCLUSIVE and measured


def render_last_line(document: VerdictDocument, *, color: bool) -> str:
    """Return the line that decides: `pass: alexnet version 3: 44 of 44 findings within ...`."""
    word = document.verdict.value
    # The headline was cleaned when it was made; a document from elsewhere may hold anything.
    return f"{Style(color=color, width=0).paint(word)}: {clean(document.headline, limit=1_000)}"


def _heading(document: VerdictDocument, style: Style) -> list[str]:
    subject, golden, policy, onnx = document.subject, document.golden, document.policy, document.onnx
    lines = [f"{clean(subject.title)}  {short_digest(subject.digest)}"]
    dataset = f"{clean(golden.name)}, {golden.samples:,} samples, {short_digest(golden.digest)}"
    lines += style.labelled("golden", dataset)
    lines += style.labelled("policy", f"{clean(policy.origin)}, {short_digest(policy.digest)}")
    if document.reference.kind is Reference.PERTURBATION:
        why = clean(document.reference.reason or "", limit=MESSAGE_LIMIT)
        lines += style.labelled("reference", f"not fp64 ({why}) but {BASELINE}, over the perturbation floor")
    lines += style.labelled("sandbox", describe_sandbox(document))
    if onnx is not None:
        lines += style.labelled("onnx", f"{clean(onnx.origin)}: {clean(onnx.source)}, {short_digest(onnx.digest)}")
    for reused in describe_reused(document):
        lines += style.labelled("reused", reused)
    return lines


def describe_sandbox(document: VerdictDocument) -> str:
    """Say what held the workers, and why nothing stronger did."""
    sandbox = document.sandbox
    names = {"bubblewrap": f"bubblewrap {sandbox.bubblewrap}", "landlock": f"Landlock ABI {sandbox.landlock_abi}"}
    weakest = [set(worker.mechanisms) for worker in sandbox.workers if worker.level is sandbox.level]
    shared = [name for name in MECHANISMS if weakest and all(name in own for own in weakest)]
    if sandbox.level is Level.NONE:
        text = "none: workers had the rights of whoever ran the check"
    else:
        text = f"{sandbox.level}: {', '.join(names.get(name, name) for name in shared)}"
    why = "; ".join(clean(reason, limit=MESSAGE_LIMIT) for reason in sandbox.weaker_because)
    return f"{text} ({why})" if why else text


def _paint_statuses(lines: list[str], style: Style) -> list[str]:
    """Colour the last cell of each row of the table."""
    painted: list[str] = []
    for line in lines:
        word = next((w for w in ("exceeded", "not measured", "refused", "waived") if line.endswith("  " + w)), None)
        painted.append(line[: -len(word)] + style.paint(word) if word else line)
    return painted


def _environments(document: VerdictDocument, style: Style) -> list[str]:
    """Say what each backend really ran with, and what it cost."""
    lines: list[str] = []
    for backend in document.backends:
        facts = [f"{clean(key)} {clean(value)}" for key, value in sorted(backend.fingerprint.items())]
        if backend.seconds:
            facts += [format_duration(sum(backend.seconds.values())), format_bytes(backend.peak_memory_bytes)]
        text = f"{clean(backend.name)}: {', '.join(facts) or backend.outcome.kind}"
        lines += style.labelled("" if lines else "ran with", text)
    return lines


# --- What a pass rests on -----------------------------------------------------------------------------------------


def _also_within(document: VerdictDocument, style: Style) -> list[str]:
    """Name the checks that the table has no column for."""
    sizes = sorted({b.size for backend in document.backends for b in backend.batches})
    more = {Check.COVERAGE: f" {document.golden.samples:,} of {document.golden.samples:,}"}
    if sizes:
        usual = min(document.policy.batch_size, document.golden.samples)
        more[Check.BATCH] = f" {' '.join(map(str, sizes))} against {usual}"
    shown = (Check.ERROR_RATIO, Check.POWER, Check.REPEATABILITY, Check.EVIDENCE)
    looked_at = {f.check for f in document.findings} - {f.check for f in document.findings if f.waiver is not None}
    names = [f"{check}{more.get(check, '')}" for check in Check if check in looked_at and check not in shown]
    return style.labelled("also within", ", ".join(names))


def _flips(document: VerdictDocument, style: Style) -> list[str]:
    """Say how many answers changed and how right they are, for outputs that are scores."""
    decided = [o.decisions for b in document.backends for o in b.outputs if o.decisions is not None]
    if not decided:
        return []
    worst = max(decided, key=lambda d: (d.top1.unexplained, d.top1.flips, d.rate_bound))
    where = "on the worst backend" if worst.top1.flips else "on every backend"
    explained = worst.top1.flips - worst.top1.unexplained
    what = f"{worst.top1.flips:,} of {worst.top1.samples:,} {where}"
    if worst.top1.flips:
        what += f", {explained:,} of them within rounding's reach"
    representative = (
        "" if worst.representative == worst.top1.samples else f" by {worst.representative:,} representative ones"
    )
    lines = style.labelled(
        "flips", f"{what}: the rate is below {format_share(worst.rate_bound)} at 95 %{representative}"
    )
    known = [d.accuracy for d in decided if d.accuracy is not None]
    if known:
        lowest = min(known, key=lambda a: a.candidate)
        text = f"{format_share(lowest.candidate)} on the worst backend, the reference: {format_share(lowest.reference)}"
        lines += style.labelled("accuracy", f"{text}, of {lowest.samples:,} labelled samples")
    return lines


def _control(document: VerdictDocument, style: Style) -> list[str]:
    powers = [f for f in document.findings if f.check is Check.POWER]
    return [line for f in powers for line in style.labelled("control", clean(f.message, limit=MESSAGE_LIMIT))]


# --- Groups -------------------------------------------------------------------------------------------------------


def _group(document: VerdictDocument, group: Group, style: Style, *, verbose: bool) -> list[str]:
    word = _WORDS[group.status]
    lines = style.titled(word, f"{word}[{group.check}]", describe_group(group))
    if group.is_measured:
        lines += _measured(group, style, verbose=verbose)
        lines += _worst_element(document, group, style)
    elif (sample := group.worst.sample_id) is not None:
        lines += style.labelled("sample", clean(sample))
    for label, text in (("unseen", unseen_by(document, group)), ("reading", reading_of(document, group))):
        lines += style.labelled(label, text) if text else []
    lines += _log(document, group, style, verbose=verbose)
    return lines + _next(document, group, style)


def _measured(group: Group, style: Style, *, verbose: bool) -> list[str]:
    """List measured of limit, one row per backend."""
    names = group.backends if verbose else group.backends[:ROWS_SHOWN]
    pad = max(len(clean(name)) for name in names)
    lines: list[str] = []
    for name in names:
        own = [f for f in group.findings if f.backend == name]
        numbers = "; ".join(describe_number(f, after=i > 0).replace(" ", _NO_BREAK) for i, f in enumerate(own))
        row = f"{clean(name):<{pad}}  {numbers}" if len(group.backends) > 1 else numbers
        lines += style.labelled("" if lines else "measured", row)
    if rest := len(group.backends) - len(names):
        lines += style.labelled("", f"and {rest} more backends")
    return lines


def _worst_element(document: VerdictDocument, group: Group, style: Style) -> list[str]:
    """Say where to look: sample, place and both values."""
    finding = group.worst
    output = find_output(document, finding.backend, finding.output)
    if group.check is Check.BATCH or output is None or output.worst is None:
        sample = finding.sample_id
        return style.labelled("sample", clean(sample)) if sample is not None else []
    worst = output.worst
    reference, candidate = format_pair(worst.reference, worst.candidate)
    where = f"sample {clean(worst.sample_id)}, element {worst.index:,}"
    return style.labelled("worst", f"{where}: reference {reference}, {clean(finding.backend or '')} {candidate}")


def _log(document: VerdictDocument, group: Group, style: Style, *, verbose: bool) -> list[str]:
    """Quote the worker's own last words, each line behind a bar: a line of its own could be a runner command."""
    if group.check is not Check.WORKER:
        return []
    outcomes = {b.name: b.outcome for b in document.backends}
    name = group.findings[0].backend
    outcome = document.probe if name is None else outcomes.get(name)
    if not isinstance(outcome, CrashedRecord | TimedOutRecord | ViolatedRecord):
        return []
    words = clean_lines(outcome.log_tail, lines=LOG_LINES_VERBOSE if verbose else LOG_LINES)
    return [line for i, w in enumerate(words) for line in style.labelled("" if i else "worker log", f"| {w}")]


def _next(document: VerdictDocument, group: Group, style: Style) -> list[str]:
    text, options = next_steps(document, group)
    lines = style.labelled("next", clean(text, limit=MESSAGE_LIMIT)) if text else []
    if options:
        # One line, however long: a command that is wrapped cannot be pasted.
        lines.append(f"  {'':<{LABEL_WIDTH}}{repeat_command(document, options)}")
    return lines
