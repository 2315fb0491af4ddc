"""`python -m tests.hostile`: check the whole corpus and write docs/hostile.md; `--only N` tries one model."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.hostile.cases import CASES
from tests.hostile.corpus import Corpus
from tests.hostile.page import PAGE, count, row_of, write_page
from tests.hostile.standard import try_at_standard


def main() -> int:
    """Return 1 if something got out, or passed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--page", type=Path, default=PAGE, help="whose tables are written again")
    parser.add_argument("--only", type=int, metavar="N", help="check the Nth model alone, and write nothing")
    given = parser.parse_args()
    ended = {}
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        corpus = Corpus(Path(folder) / "corpus")
        for case in CASES if given.only is None else [CASES[given.only]]:
            ended[case] = corpus.check(case)
            print(row_of(case, ended[case]), *ended[case].escapes, sep="\n  ", flush=True)
        if given.only is None:
            standard, escapes = try_at_standard(Path(folder) / "standard")
            print("at standard", standard, *escapes, sep="\n  ")
            write_page(ended, standard, given.page)
    print(count(ended))
    return int(any(e.escapes or (e.exit_code == 0 and not case.may_pass) for case, e in ended.items()))


if __name__ == "__main__":
    sys.exit(main())
