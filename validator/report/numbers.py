"""Numbers as people read them: three significant digits, thousands with commas, never a `0.00` that is no zero."""

import math

SMALLEST_RATIO = 0.01
PLAIN_LIMIT = 1e7
"""From here on powers of ten are easier to read than commas."""


def format_ratio(value: float, *, digits: int = 3) -> str:
    """Format a dimensionless ratio: `1.63`, `560`, `1,029`, `< 0.01`, `NaN`, `infinite`."""
    if 0 < abs(value) < SMALLEST_RATIO and digits == 3:
        return f"< {SMALLEST_RATIO}"
    return format_quantity(value, digits=digits)


def format_quantity(value: float, *, digits: int = 3) -> str:
    """Format a number that has a unit or a sign: `12.3`, `-0.00417`, `8.4e-05`, `1,029`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= PLAIN_LIMIT:
        return f"{value:.{digits}g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    # Rounding may carry into one more digit: 9.996 is 10.0, not 10.00.
    return f"{value:,.{decimals - 1}f}" if decimals and _significant(text) > digits else text


def _significant(text: str) -> int:
    return len(text.lstrip("-0.").replace(",", "").replace(".", ""))


def format_measured(measured: float, limit: float) -> str:
    """Format `measured of limit`, with as many digits as it takes to tell the two apart."""
    for digits in range(3, 18):
        pair = format_ratio(measured, digits=digits), format_ratio(limit, digits=digits)
        if measured == limit or pair[0] != pair[1]:
            return " of ".join(pair)
    return f"{measured!r} of {limit!r}"


def format_pair(reference: float, candidate: float) -> tuple[str, str]:
    """Format two values of one element with at least four digits, and as many as show two digits of the difference."""
    digits = 4
    if math.isfinite(reference) and math.isfinite(candidate) and reference != candidate:
        scale = max(abs(reference), abs(candidate))
        share = abs(candidate / scale - reference / scale)  # the plain difference may overflow
        digits = max(digits, min(17, 2 + math.ceil(-math.log10(share)))) if share > 0 else 17
    return format_quantity(reference, digits=digits), format_quantity(candidate, digits=digits)


def format_cosine(value: float) -> str:
    """Format a cosine with all its nines and one digit after them: `0.99999996`. Never 1 for what is not 1."""
    if not math.isfinite(value) or value in (0.0, 1.0):
        return format_quantity(value)
    if value > 1.0:  # rounding of the sums
        return "1"
    nines = max(0, math.floor(-math.log10(1 - value)))
    return f"{value:.{min(17, nines + 1)}f}"


def format_duration(seconds: float) -> str:
    """Format `0.4 s`, `38 s`, `3 min 12 s`, `2 h 05 min`, `NaN s`."""
    if not math.isfinite(seconds):
        return f"{format_quantity(seconds)} s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def format_bytes(count: int) -> str:
    """Format `489 MB`, decimal units."""
    value = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{count:,} bytes" if unit == "bytes" else f"{format_quantity(value)} {unit}"
        value /= 1000
    return f"{format_quantity(value)} TB"


def format_share(share: float) -> str:
    """Format a share in per cent: `50 %`, `0.93 %`; `> 100 %` stays a number."""
    return "NaN" if math.isnan(share) else f"{format_ratio(100 * share, digits=2)} %"
