"""The comment on a pull request: the verdict, why, what to do next, and everything else folded. Short, edited in place.

One comment per model: a hidden marker on the first line finds the one to edit.
"""

import hashlib
import re
from collections.abc import Iterator

from validator.judge import Status, Verdict
from validator.report.annotation import list_bullets
from validator.report.groups import first_step, repeat_command
from validator.report.headline import describe_measured, explain_verdict, largest_ratio
from validator.report.markdown import code, escape, link
from validator.report.marks import STATUS_MARKS, VERDICT_MARKS
from validator.report.model import VerdictDocument
from validator.report.table import BACKEND, LIMIT, OUTPUT, RATIO, STATUS, Row, backend_rows
from validator.report.text import clean, short_digest

COMMENT_LIMIT = 60_000
"""Characters; GitHub takes 65,536, and drops the whole comment beyond."""
ROWS_SHOWN = 20
BULLETS_SHOWN = 8
RATIO_MEANS = "Error ratio: error against the reference over the noise floor, the error that rounding makes anyway."
MESSAGE_LIMIT = 600


def render_comment(document: VerdictDocument, *, report_url: str | None = None, has_page: bool = True) -> str:
    """Return Markdown of at most 60,000 characters.

    Args:
        document: what to show.
        report_url: where report.html can be read; None: it is said to be among the artifacts of the job.
        has_page: whether report.html was written there; if not, the comment says how to make it.
    """
    parts = [heading(document), *_why(document)]
    if document.verdict is not Verdict.PASS:
        parts += [backends(document, rows_max=ROWS_SHOWN, outputs_max=1), next_step(document)]
    parts += [_report(report_url, has_page=has_page), _details(document)]
    text = "\n\n".join(part for part in parts if part)
    # A marker in somebody's name, even as code, might be taken for that of another model's comment.
    return _cut(f"{marker(document)}\n\n{text.replace('<!--', '< !--')}\n")


def marker(document: VerdictDocument) -> str:
    """Return the hidden line by which the comment of this model is found again, whatever its name holds."""
    name = document.subject.name or document.subject.title
    plain = re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:80].strip("-")
    # Other names may become equal when they are made plain, or look as if they had been.
    is_unique = plain == name and not re.search(r"-[0-9a-f]{8}$", name)
    suffix = "" if is_unique else f"-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
    return f"<!-- validator:comment:{plain}{suffix} -->"


def heading(document: VerdictDocument) -> str:
    """Return the heading, which alone says the verdict."""
    return f"### {VERDICT_MARKS[document.verdict]} {document.verdict.value}: {escape(document.subject.title)}"


def _why(document: VerdictDocument) -> Iterator[str]:
    """Say why in one sentence, then in at most eight points."""
    is_clean = document.verdict is Verdict.PASS and all(f.status is Status.WITHIN for f in document.findings)
    if is_clean and (closest := largest_ratio(document, Status.WITHIN)) is not None:
        yield f"{document.golden.samples:,} samples, closest {escape(describe_measured(closest))}"
        return
    yield explain_verdict(document)
    yield escape(document.headline, limit=MESSAGE_LIMIT)
    bullets = list(list_bullets(document))
    more = [f"- and {len(bullets) - BULLETS_SHOWN} more"] if len(bullets) > BULLETS_SHOWN else []
    yield "\n".join([*bullets[:BULLETS_SHOWN], *more])


def backends(document: VerdictDocument, *, rows_max: int, outputs_max: int) -> str:
    """Return the table of backends; empty where no backend was planned."""
    rows = list(backend_rows(document, outputs_max))
    if not rows:
        return ""
    lines = ["| backend | output | error ratio | limit | status |", "|---|---|--:|--:|---|"]
    lines += [_table_row(row) for row in rows[:rows_max]]
    text = "\n".join(lines)
    more = f"\n\nand {len(rows) - rows_max} more rows in the report" if len(rows) > rows_max else ""
    return f"{text}{more}\n\n{RATIO_MEANS}"


def _table_row(row: Row) -> str:
    status = Status(row[STATUS])
    ratio = f"**{escape(row[RATIO])}**" if status is Status.EXCEEDED else escape(row[RATIO])
    cells = [code(row[BACKEND]), code(row[OUTPUT]), ratio, escape(row[LIMIT])]
    # A bar ends a cell even inside a code span.
    return f"| {' | '.join(c.replace('|', '&#124;') if '`' in c else c for c in cells)} | {_mark(status)} |"


def _mark(status: Status) -> str:
    return f"{STATUS_MARKS[status]} {status.value}"


def next_step(document: VerdictDocument) -> str:
    """Say what to do about the first group that says so, with the command that can be pasted."""
    text, command = first_step(document)
    if text is None:
        return ""
    told = f"**Next:** {escape(text, limit=MESSAGE_LIMIT)}"
    return told if command is None else f"{told}\n\n{fence(command)}"


def fence(text: str) -> str:
    """Return a code block of one line; the fence is longer than any row of backticks in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    bar = "`" * max(3, longest + 1)
    return f"{bar}sh\n{text}\n{bar}"


def _report(report_url: str | None, *, has_page: bool) -> str:
    if report_url is not None:
        return link("Report", report_url)
    if has_page:
        return "`report.html` and `verdict.json` are among the artifacts of this job."
    return "`verdict.json` is among the artifacts of this job; `validator report --format html` makes the page from it."


def _details(document: VerdictDocument) -> str:
    """Return what is folded: what was checked with what, and how to do it again."""
    subject, policy = document.subject, document.policy
    date = f"{document.created_utc[:10]} {document.created_utc[11:16]} UTC"
    within = sum(f.status is Status.WITHIN for f in document.findings)
    summary = f"{within:,} of {len(document.findings):,} findings within, {document.golden.samples:,} samples"
    lines = [
        f"- model {code(subject.pinned_uri)} {code(short_digest(subject.digest))}",
        f"- golden dataset {code(document.golden.name)} {code(short_digest(document.golden.digest))}",
        f"- policy {code(policy.origin)} {code(short_digest(policy.digest))}",
        f"- {date}, validator {escape(document.tool.version)}",
        *(f"- warning {code(w.code)}: {escape(w.message, limit=MESSAGE_LIMIT)}" for w in document.warnings[:10]),
    ]
    table = backends(document, rows_max=ROWS_SHOWN, outputs_max=1) if document.verdict is Verdict.PASS else ""
    repeat = fence(repeat_command(document, ()))
    body = "\n\n".join(part for part in (table, "\n".join(lines), repeat) if part)
    return f"<details><summary>{clean(summary)}</summary>\n\n{body}\n\n</details>"


def _cut(text: str) -> str:
    """Cut at a line, as a last resort: every part is bounded, so only very long names get here."""
    if len(text) <= COMMENT_LIMIT:
        return text
    kept = text[: COMMENT_LIMIT - 100].rsplit("\n", 1)[0]
    return f"{kept}\n\n</details>\n\ncut: the rest is in report.html\n"
