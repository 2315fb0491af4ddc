import pytest

from mutation.operators import mutants


def changes(source):
    return [mutant.what for mutant in mutants(source, "module.py")]


def run(mutant):
    names = {}
    exec(mutant.module, names)  # noqa: S102
    return names["f"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("x < 3", ["x < 3 -> x <= 3", "x < 3 -> x >= 3", "3 -> 4"]),
        ("x == 'a'", ["x == 'a' -> x != 'a'", "'a' -> 'a?'"]),
        ("x in y", ["x in y -> x not in y"]),
        ("x and y", ["x and y -> x or y"]),
        ("not x", ["not x -> x"]),
        ("-x", ["-x -> x"]),
        ("x + y", ["x + y -> x - y"]),
        ("max(x)", ["max -> min in max(x)"]),
        ("[a for a in x if a]", ["no filter in [a for a in x if a]"]),
        ("x if y else z", ["x if y else z -> z if y else x"]),
        ("True", ["True -> False"]),
        ("0.0", ["0.0 -> 1.0"]),
        ("0.5", ["0.5 -> 1.0"]),
        ("f'{x} 1'", []),
        ("None", []),
    ],
)
def test_an_expression_is_changed_in_every_known_way(expression, expected):
    found = changes(f"def f(x):\n    return {expression}\n")
    whole = [] if expression == "None" else [f"return {expression} -> return None"]
    assert sorted(found) == sorted(whole + expected)


def test_statements_are_dropped_and_docstrings_are_not():
    source = 'def f(x):\n    """Text."""\n    g(x)\n    if x:\n        raise E\n    for a in x:\n        continue\n'
    assert changes(source) == ["dropped: g(x)", "if x -> if not", "dropped: raise E", "continue -> break"]


def test_annotations_and_decorators_are_left_alone():
    assert changes("@d(1)\ndef f(x: T[1]) -> T[2]:\n    pass\n") == []


def test_each_mutant_differs_from_the_others_and_from_what_it_was_made_of():
    source = "def f(x):\n    return x * 2 + 1\n"
    answers = {mutant.what: None if (run(mutant)(3)) is None else run(mutant)(3) for mutant in mutants(source, "m.py")}
    assert answers == {
        "return x * 2 + 1 -> return None": None,
        "x * 2 + 1 -> x * 2 - 1": 5,
        "x * 2 -> x / 2": 2.5,
        "2 -> 3": 10,
        "1 -> 2": 8,
    }


def test_a_mutant_names_the_outermost_function_around_it_and_whether_there_is_one():
    source = "LIMIT = 1\nclass A:\n    size = 2\n    def f(self):\n        def inner():\n            return 3\n"
    found = {(mutant.line, mutant.function) for mutant in mutants(source, "m.py")}
    assert found == {(1, ()), (3, ()), (6, ("A", "f"))}
