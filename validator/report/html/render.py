"""From a page to one file: the template, styles and script put together, and a policy that lets nothing else run."""

import base64
import hashlib
import math
from functools import cache
from importlib.resources import files

import jinja2
from markupsafe import Markup

from validator.backends.catalog import REFERENCE
from validator.report.html.page import make_page
from validator.report.model import OutputRecord, VerdictDocument
from validator.report.numbers import format_quantity
from validator.report.previews import PreviewsDocument
from validator.report.samples import SampleColumns, as_cell, read_table
from validator.report.text import clean

SIZE_LIMIT_BYTES = 2_000_000
TEXT_LIMIT = 1_000
"""Characters of any one text."""


def render_html(document: VerdictDocument, *, table: bytes | None, previews: PreviewsDocument | None) -> str:
    """Return the whole page. The same arguments give the same bytes.

    Args:
        document: what to show.
        table: the text of `samples.csv`; None, or of another check: charts of samples are left out, and the page says
            so.
        previews: what the worst samples look like; None: they are named only.

    Raises:
        TableError: the table is not that of a check.
    """
    samples = None if table is None else read_table(table)
    if samples is not None and not _is_table_of(samples, document):
        samples = None
    # Above the limit pictures go first, then the charts of samples: what was judged stands in the document alone.
    attempts = ((samples, previews), (samples, None), (None, None))
    text = ""
    for columns, pictures in attempts:
        page = make_page(document, columns, pictures)
        text = _template().render(page=page, style=_style(), script=_script(), policy=_policy())
        if len(text.encode()) <= SIZE_LIMIT_BYTES:
            break
    return text


def _is_table_of(samples: dict[tuple[str, str], SampleColumns], document: VerdictDocument) -> bool:
    """Tell whether a table is of this check: the same outputs, as many samples of each, the same largest ratios."""
    outputs = {
        (as_cell(b.name), as_cell(o.name)): o
        for b in document.backends
        if b.name != REFERENCE
        for o in b.outputs
        if o.samples
    }
    return samples.keys() == outputs.keys() and all(
        len(columns.ids) == outputs[key].samples and _is_largest(columns, outputs[key])
        for key, columns in samples.items()
    )


def _is_largest(columns: SampleColumns, output: OutputRecord) -> bool:
    """Compare the largest ratio with that of the document, but for the last digits; one that is not finite is any."""
    worst = math.nan if output.ratios is None else output.ratios.worst_sample
    return not math.isfinite(worst) or math.isclose(columns.largest_ratio, worst, rel_tol=1e-9)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_read),
        finalize=_clean_value,
    )
    # Base64 that the model of previews has checked: too long for a text, and no markup.
    environment.filters["png"] = Markup
    environment.filters["quantity"] = format_quantity
    return environment.get_template("report.html.j2")


def _clean_value(value: object) -> object:
    """Clean whatever the template prints, so that no name is forgotten; what is markup already was made by `svg`."""
    return value if isinstance(value, Markup) else clean(str(value), limit=TEXT_LIMIT)


def _read(name: str) -> str:
    return (files("validator.report.html") / name).read_text(encoding="utf-8")


@cache
def _style() -> Markup:
    return Markup(_read("report.css"))  # noqa: S704 - our own file


@cache
def _script() -> Markup:
    return Markup(_read("report.js"))  # noqa: S704 - our own file


@cache
def _policy() -> str:
    """Return the content security policy: our style, our script and pictures that are part of the page."""
    style, script = (_hash(text) for text in (_style(), _script()))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
