"""`python -m mutation.summary FILES`: the table of docs/mutation.md out of result files, and what was not killed.

Of a mutant that was run several times the last result counts: name files of `--again` last.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

KILLED = ("killed", "timeout")


def main(files: Sequence[str]) -> int:
    """Print the table."""
    print("\n".join(summarize(line for file in files for line in Path(file).read_text(encoding="utf-8").splitlines())))
    return 0


def summarize(lines: Iterator[str]) -> Iterator[str]:
    """Yield the table's lines and the survivors, from lines of JSON."""
    last = {}
    for line in lines:
        result = json.loads(line)
        last[result["module"], result["line"], result["column"], result["what"]] = result["end"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for (module, *_), end in last.items():
        counts[module][end] += 1
    yield "| module | mutants | killed | of these by the time limit | not killed |"
    yield "|---|---|---|---|---|"
    for name, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter[str]()))]:
        killed = sum(count[end] for end in KILLED)
        yield f"| `{name}` | {count.total()} | {killed} | {count['timeout']} | {count.total() - killed} |"
    for (module, line_number, column, what), end in sorted(last.items()):
        if end not in KILLED:
            yield f"{module}:{line_number}:{column}: {end}: {what}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
