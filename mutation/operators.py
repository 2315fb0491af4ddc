"""What a mutant is: one node of a module's syntax tree in the place of another."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
"""The boundary moved, and the opposite."""
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change."""

    number: int
    line: int
    column: int
    what: str
    function: tuple[str, ...]
    """Names from the module down to the outermost function around it; empty: it is not in a function."""
    module: CodeType
    """The whole module with the change."""


Site = tuple[ast.AST, str, int | None, ast.AST, str, tuple[str, ...]]
"""Parent, field, index in it, replacement, description, function."""


def mutants(source: str, path: str) -> Iterator[Mutant]:
    """Yield every mutant of a module, in the order of its text."""
    tree = ast.parse(source)
    sites = sorted(_sites(tree, ()), key=lambda site: (_node(site).lineno, _node(site).col_offset))
    for number, site in enumerate(sites):
        parent, field, index, replacement, what, function = site
        old = _node(site)
        ast.copy_location(replacement, old)
        ast.fix_missing_locations(replacement)
        _put(parent, field, index, replacement)
        module = compile(tree, path, "exec")
        _put(parent, field, index, old)
        yield Mutant(number=number, line=old.lineno, column=old.col_offset, what=what, function=function, module=module)


def _node(site: Site) -> ast.expr | ast.stmt:
    parent, field, index = site[:3]
    value = getattr(parent, field)
    return value if index is None else value[index]  # type: ignore[no-any-return]


def _put(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> None:
    if index is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[index] = node


SKIPPED = ("annotation", "returns", "decorator_list", "type_params")
"""Decide nothing when the code runs, or cannot be put in the place of what was decorated."""


def _sites(node: ast.AST, function: tuple[str, ...], *, within: bool = False) -> Iterator[Site]:
    """Walk below a node; `within` a function the names of inner ones do not count."""
    for field, value in ast.iter_fields(node):
        if field in SKIPPED:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr) or _is_said(child):
                continue
            for replacement, what in _replacements(child):
                yield node, field, index, replacement, what, function if within else ()
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            path = (
                (*function, child.name) if not within and (is_function or isinstance(child, ast.ClassDef)) else function
            )
            yield from _sites(child, path, within=within or is_function)


def _is_said(node: ast.AST) -> bool:
    """Whether it is a text that stands alone, as a docstring or beside a field, or `__all__`."""
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield what may stand in the place of a node."""
    text = ast.unparse(node) if isinstance(node, ast.expr | ast.stmt) else ""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                operators = [*node.ops[:index], other(), *node.ops[index + 1 :]]
                changed = ast.Compare(left=node.left, ops=operators, comparators=node.comparators)
                yield changed, f"{text} -> {ast.unparse(changed)}"
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        changed_bool = ast.BoolOp(op=other_op, values=node.values)
        yield changed_bool, f"{text} -> {ast.unparse(changed_bool)}"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand, f"{text} -> {ast.unparse(node.operand)}"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        changed_bin = ast.BinOp(left=node.left, op=ARITHMETIC[type(node.op)](), right=node.right)
        yield changed_bin, f"{text} -> {ast.unparse(changed_bin)}"
    elif isinstance(node, ast.Constant):
        for value in _other_values(node.value):
            yield ast.Constant(value=value), f"{text} -> {value!r}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in CALLS:
            func: ast.expr = (
                ast.Name(id=CALLS[name], ctx=ast.Load())
                if isinstance(node.func, ast.Name)
                else ast.Attribute(value=node.func.value, attr=CALLS[name], ctx=ast.Load())
            )
            yield ast.Call(func=func, args=node.args, keywords=node.keywords), f"{name} -> {CALLS[name]} in {text}"
    elif isinstance(node, ast.Return) and node.value is not None and text != "return None":
        yield ast.Return(value=ast.Constant(value=None)), f"{text} -> return None"
    elif isinstance(node, ast.Continue):
        yield ast.Break(), "continue -> break"
    elif isinstance(node, ast.Break):
        yield ast.Continue(), "break -> continue"
    elif isinstance(node, ast.Expr | ast.Raise | ast.AugAssign | ast.Assert):
        yield ast.Pass(), f"dropped: {text}"
    elif isinstance(node, ast.IfExp):
        swapped = ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
        yield swapped, f"{text} -> {ast.unparse(swapped)}"
    elif isinstance(node, ast.If) and not isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp):
        negated = ast.If(test=ast.UnaryOp(op=ast.Not(), operand=node.test), body=node.body, orelse=node.orelse)
        yield negated, f"if {ast.unparse(node.test)} -> if not"
    elif isinstance(node, ast.comprehension):
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for index, loop in enumerate(node.generators):
            if loop.ifs:
                yield _without_filter(node, index), f"no filter in {text}"


def _without_filter(node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, index: int) -> ast.AST:
    loop = node.generators[index]
    bare = ast.comprehension(target=loop.target, iter=loop.iter, ifs=[], is_async=loop.is_async)
    fields = {name: value for name, value in ast.iter_fields(node) if name != "generators"}
    return type(node)(**fields, generators=[*node.generators[:index], bare, *node.generators[index + 1 :]])


def _other_values(value: object) -> tuple[object, ...]:
    match value:
        case bool():
            return (not value,)
        case int():
            return (value + 1,)
        case float():
            return (value * 2 if value else 1.0,)
        case str() if not any(character.isspace() for character in value):  # else it is said to people
            return (f"{value}?",)
        case _:
            return ()
