"""Drawing: tags whose every attribute is cleaned and escaped, logarithmic axes, and the thinning of points."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape

from validator.metrics import Counts, Floats
from validator.report.numbers import format_quantity
from validator.report.text import clean

NAME_LIMIT = 60
VALUE_LIMIT = 10_000


def tag(name: str, /, *children: Markup | str, **attributes: str | float) -> Markup:
    """Return one element. Children that are no markup are cleaned and escaped; `class_` is spelled so, `_` is `-`."""
    words = "".join(f' {_spell(key)}="{_value(value)}"' for key, value in attributes.items())
    inside = "".join(c if isinstance(c, Markup) else str(escape(clean(c, limit=NAME_LIMIT))) for c in children)
    return Markup(f"<{name}{words}>{inside}</{name}>")  # noqa: S704 - every part is ours, or was escaped


def _spell(key: str) -> str:
    return "viewBox" if key == "viewbox" else key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    if isinstance(value, Markup):
        return value
    return number(value) if isinstance(value, int | float) else str(escape(clean(value, limit=VALUE_LIMIT)))


def number(value: float) -> str:
    """Return a coordinate with one digit after the point, in its shortest form."""
    text = f"{value:.1f}"
    return text.removesuffix(".0") if text != "-0.0" else "0"


def picture(width: float, height: float, label: str, *children: Markup) -> Markup:
    """Return a drawing at its real size; readers hear its label, and find the numbers in the table below."""
    return tag(
        "svg",
        *children,
        role="img",
        aria_label=label,
        width=width,
        height=height,
        viewbox=f"0 0 {number(width)} {number(height)}",
    )


def words(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "label") -> Markup:
    """Return a text."""
    return tag("text", text, x=x, y=y, text_anchor=anchor, class_=kind)


def points(xs: Iterable[float], ys: Iterable[float], kind: str) -> Markup:
    """Return dots as one path of strokes without length: ten bytes each."""
    marks = Markup("".join(f"M{x:.1f} {y:.1f}h0" for x, y in zip(xs, ys, strict=True)))  # noqa: S704 - digits
    return tag("path", d=marks, class_=kind) if marks else Markup()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAxis:
    """Decades from one pixel to another. What lies outside is drawn at the end that it lies beyond."""

    low: float
    high: float
    """Both positive and finite."""
    start: float
    stop: float
    """Pixels of both ends; the start may be the larger one."""

    def place(self, value: float) -> float:
        """Return the pixel of a value; NaN and what is too large go to the far end, zero to the near one."""
        if math.isnan(value) or value >= self.high:
            return self.stop
        if value <= self.low:
            return self.start
        share = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self.start + share * (self.stop - self.start)

    def place_all(self, values: Floats) -> Floats:
        """Return the pixels of many values."""
        bounded = np.clip(np.nan_to_num(values, nan=self.high, posinf=self.high), self.low, self.high)
        share = np.log10(bounded / self.low) / math.log10(self.high / self.low)
        placed: Floats = self.start + share * (self.stop - self.start)
        return placed

    def ticks(self, most: int) -> Iterator[tuple[float, str]]:
        """Yield at most so many decades with their label."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / most))
        for power in range(first, last + 1, step):
            yield self.place(10.0**power), decade(power)


def decade(power: int) -> str:
    """Return `0.01`, `1,000`, `1e+05`, `1e-07`: at most six characters, which is the room that a label has."""
    return f"1e{power:+03}" if power >= 5 else format_quantity(10.0**power, digits=1)


def decades_around(values: Iterable[float], *, low: float, high: float) -> tuple[float, float]:
    """Return whole decades around the positive finite values and two that are always inside."""
    known = [v for v in values if math.isfinite(v) and v > 0] + [low, high]
    return (
        10.0 ** max(-300, math.floor(math.log10(min(known)) + 1e-9)),
        10.0 ** min(300, math.ceil(math.log10(max(known)) - 1e-9)),
    )


def thin_line(values: Floats, *, columns: int) -> Counts:
    """Return the positions of at most two points a column, the smallest and the largest: no extreme goes missing.

    NaN counts as the largest.
    """
    ranked = np.nan_to_num(values, nan=np.inf)
    if len(values) <= 2 * columns:
        return np.arange(len(values))
    parts: Sequence[Counts] = np.array_split(np.arange(len(values)), columns)
    kept = [(part[ranked[part].argmin()], part[ranked[part].argmax()]) for part in parts]
    return np.unique(np.array(kept).ravel())


def thin_cloud(xs: Floats, ys: Floats, *, pixels: float) -> Counts:
    """Return the positions of one point for every square of so many pixels, and those at the edges of the cloud."""
    cells = np.stack([np.floor(xs / pixels), np.floor(ys / pixels)], axis=1)
    _, first = np.unique(cells, axis=0, return_index=True)
    edges = [int(at) for axis in (xs, ys) if len(axis) for at in (axis.argmin(), axis.argmax())]
    return np.unique(np.concatenate([first, np.array(edges, dtype=np.int64)]))
