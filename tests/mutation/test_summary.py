import json

from mutation.summary import summarize


def result(line, end):
    return json.dumps({"module": "a.py", "line": line, "column": 4, "what": "1 -> 2", "end": end})


def test_the_last_result_of_a_mutant_counts_and_what_lives_is_named():
    lines = [result(1, "survived"), result(2, "timeout"), result(3, "uncovered"), result(1, "killed")]
    assert list(summarize(iter(lines)))[2:] == [
        "| `a.py` | 3 | 2 | 1 | 1 |",
        "| `all` | 3 | 2 | 1 | 1 |",
        "a.py:3:4: uncovered: 1 -> 2",
    ]
