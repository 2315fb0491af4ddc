"""The formats that a verdict can be had in: a closed union, one renderer per module, all made from one document.

Nothing but `verdict.json` is needed, except for the formats of the per-sample table, which are made from the file that
the check wrote beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import assert_never

from validator.errors import UsageError
from validator.report.comment import render_comment
from validator.report.github import render_annotations, render_outputs, render_summary
from validator.report.gitlab import render_code_quality
from validator.report.junit import render_junit
from validator.report.model import VerdictDocument
from validator.report.previews import PREVIEWS_NAME, read_previews
from validator.report.read import TABLE_LIMIT_BYTES, read_bytes
from validator.report.samples import COLUMNS, SAMPLES_NAME, clean_table
from validator.report.sarif import render_sarif
from validator.report.terminal import render_terminal
from validator.report.write import write_bytes

TEXT_WIDTH = 120
REPORT_NAME = "report.html"


class Format(StrEnum):
    """What `--format` takes. The words and the names of the files are an interface."""

    TERMINAL = "terminal"
    HTML = "html"
    MD = "md"
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB = "github"
    GITLAB = "gitlab"
    CSV = "csv"
    PARQUET = "parquet"


FILES: Mapping[Format, tuple[str, ...]] = MappingProxyType(
    {
        Format.TERMINAL: ("report.txt",),
        Format.HTML: (REPORT_NAME,),
        Format.MD: ("comment.md",),
        Format.JUNIT: ("junit.xml",),
        Format.SARIF: ("validator.sarif",),
        Format.GITHUB: ("github-summary.md", "github-annotations.txt", "github-outputs.txt"),
        Format.GITLAB: ("junit.xml", "gl-code-quality-report.json"),
        Format.CSV: (SAMPLES_NAME,),
        Format.PARQUET: ("samples.parquet",),
    }
)
"""What each format is written to, within the output folder."""

RENDERED = tuple(sorted({name for names in FILES.values() for name in names}))
"""Every file that rendering may leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What reports are made of: a document, and where the files lie that the check wrote beside it."""

    document: VerdictDocument
    folder: Path
    report_url: str | None = None
    """Where report.html can be read by whoever reads a comment or a summary."""
    has_page: bool = False
    """Whether report.html lies where the other reports go."""

    @property
    def has_samples(self) -> bool:
        """Whether there is a table of samples."""
        return (self.folder / SAMPLES_NAME).is_file()

    def read_samples(self) -> bytes:
        """Read the per-sample table.

        Raises:
            UsageError: it is not there, or it is not that table.
        """
        path = self.folder / SAMPLES_NAME
        try:
            table = read_bytes(path, limit_bytes=TABLE_LIMIT_BYTES)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {(error.strerror or str(error)).lower()}",
                hint=f"the formats csv and parquet need the {SAMPLES_NAME} that the check wrote beside verdict.json",
            ) from error
        heading = ",".join(COLUMNS).encode() + b"\n"
        if not table.startswith(heading):
            raise UsageError(
                f"{path} is not the table of samples of this version of validator",
                hint="take the file that the check wrote, or check again",
            )
        return table


def write_reports(formats: Iterable[Format], material: Material, output: Path) -> list[Path]:
    """Render some formats and write them into a folder; return the files in that order, each once.

    Raises:
        UsageError: a format needs a file that is not there.
        TableError: the table of samples is not as a check writes it.
        ReportFailed: a file could not be written.
    """
    chosen_formats = tuple(dict.fromkeys(formats))
    material = replace(material, has_page=Format.HTML in chosen_formats or (output / REPORT_NAME).is_file())
    files: dict[str, bytes] = {}
    for chosen in chosen_formats:
        files |= dict(zip(FILES[chosen], render(chosen, material), strict=True))
    return [write_bytes(content, output / name) for name, content in files.items()]


def render(chosen: Format, material: Material) -> tuple[bytes, ...]:
    """Return the content of each of a format's files, in the order of `FILES`.

    Raises:
        UsageError: the format needs a file that is not there.
        TableError: the table of samples is not as a check writes it.
    """
    document = material.document
    match chosen:
        case Format.TERMINAL:
            return _encode(render_terminal(document, color=False, width=TEXT_WIDTH, verbose=True) + "\n")
        case Format.HTML:
            # jinja2 is slow to import, and only here of use.
            from validator.report.html.render import render_html

            table = material.read_samples() if material.has_samples else None
            previews = read_previews(material.folder / PREVIEWS_NAME, document.check_id)
            return _encode(render_html(document, table=table, previews=previews))
        case Format.MD:
            return _encode(render_comment(document, report_url=material.report_url, has_page=material.has_page))
        case Format.JUNIT:
            return _encode(render_junit(document))
        case Format.SARIF:
            return _encode(render_sarif(document))
        case Format.GITHUB:
            summary = render_summary(document, report_url=material.report_url)
            return _encode(summary, render_annotations(document), render_outputs(document))
        case Format.GITLAB:
            return _encode(render_junit(document), render_code_quality(document))
        case Format.CSV:
            return (clean_table(material.read_samples()),)
        case Format.PARQUET:
            from validator.report.parquet import render_parquet

            return (render_parquet(material.read_samples()),)
        case _:
            assert_never(chosen)


def _encode(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for text in texts)
