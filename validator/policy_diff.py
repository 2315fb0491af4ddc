"""What changed between two policies, and what a reviewer should know of one. Pure: no I/O, no clock.

Every key has a rule that says whether its change tightens or loosens the gate. A key without a rule, and a change that
no rule can order, counts as loosened: what is not understood must be looked at by a person.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from validator.backends.catalog import CATALOG, Backend
from validator.policy import (
    WAIVER_DAYS_MAX,
    WAIVER_DAYS_WARNED,
    Budget,
    Limits,
    Policy,
    Waiver,
    WaiverState,
    default_limits,
)
from validator.sandbox.level import Level


class Direction(StrEnum):
    """What a change does to the gate."""

    TIGHTENED = "tightened"
    LOOSENED = "loosened"
    NEW = "new"
    """Something that blocked nothing before, and loosens nothing."""
    REMOVED = "removed"
    """Something that nothing else rests on."""
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two policies."""

    key: str
    """Dotted, as in the file: `checks.batch_sizes`, `budget.onnxruntime-cpu.error_ratio`."""
    direction: Direction
    old: str | None
    """None: it was not there."""
    new: str | None
    why: str = ""


def diff_policies(old: Policy, new: Policy) -> tuple[Change, ...]:
    """List every change, in the order of the policy's keys."""
    return tuple(_walk(type(new), old, new, _Sides(old=old, new=new), ()))


def loosens(changes: Iterable[Change]) -> bool:
    """Whether any change needs a person's consent."""
    return any(change.direction is Direction.LOOSENED for change in changes)


def changes_model(changes: Iterable[Change]) -> bool:
    """Whether the budgets are those of another model than before."""
    return any(change.key == "calibration.weights" for change in changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    """Both policies as a whole, for rules that look beyond their own key."""

    old: Policy
    new: Policy


Rule = Callable[[str, Any, Any, _Sides], Iterator[Change]]


def _walk(model: type[BaseModel], old: Any, new: Any, sides: _Sides, path: tuple[str, ...]) -> Iterator[Change]:
    """Compare two documents key by key; tables without a rule of their own are walked into."""
    for name in model.model_fields:
        before, after = getattr(old, name, None), getattr(new, name)
        key = ".".join((*path, name))
        if before == after:
            continue
        if key in RULES:
            yield from RULES[key](key, before, after, sides)
        elif isinstance(before, BaseModel) and type(before) is type(after):
            yield from _walk(type(before), before, after, sides, (*path, name))
        else:
            yield from _unknown(key, before, after, sides)


# --- Rules ----------------------------------------------------------------------------------------------------


def _change(key: str, direction: Direction, old: Any, new: Any, why: str = "") -> Change:
    return Change(key=key, direction=direction, old=_show(old), new=_show(new), why=why)


def _show(value: Any) -> str | None:
    """Write a value as the file would, or nearly so."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    return json.dumps(value, default=str)


def _unknown(key: str, old: Any, new: Any, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.LOOSENED, old, new, "nobody can say which of the two is stricter")


def _neutral(key: str, old: Any, new: Any, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.NEUTRAL, old, new)


def _more_is_tighter(key: str, old: Any, new: Any, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.TIGHTENED if new > old else Direction.LOOSENED, old, new)


def _less_is_tighter(key: str, old: Any, new: Any, _sides: _Sides) -> Iterator[Change]:
    """Judge a limit that may be there or not: none is the loosest."""
    is_tighter = new is not None and (old is None or new < old)
    yield _change(key, Direction.TIGHTENED if is_tighter else Direction.LOOSENED, old, new)


def _true_is_tighter(key: str, old: Any, new: Any, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.TIGHTENED if new else Direction.LOOSENED, old, new)


def _true_is_looser(key: str, old: Any, new: Any, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.LOOSENED if new else Direction.TIGHTENED, old, new)


def _set_is_tighter(key: str, old: Any, new: Any, sides: _Sides) -> Iterator[Change]:
    """Judge something that may be there or not; one value in the place of another is not understood."""
    if old is None or new is None:
        yield _change(key, Direction.TIGHTENED if old is None else Direction.LOOSENED, old, new)
    else:
        yield from _unknown(key, old, new, sides)


def _names(key: str, old: Sequence[Any], new: Sequence[Any], _sides: _Sides) -> Iterator[Change]:
    """Compare lists in which every name asks for more."""
    for name in dict.fromkeys((*old, *new)):
        if name not in new:
            yield _change(key, Direction.LOOSENED, name, None)
        elif name not in old:
            yield _change(key, Direction.TIGHTENED, None, name)


def _golden(key: str, old: str | None, new: str | None, sides: _Sides) -> Iterator[Change]:
    """Where the inputs lie matters only as far as no digest says which they are."""
    pinned = sides.old.golden_digest is not None and sides.old.golden_digest == sides.new.golden_digest
    if pinned:
        yield _change(key, Direction.NEUTRAL, old, new, "golden_digest pins it")
    elif old is None:
        yield _change(key, Direction.NEW, old, new)
    else:
        yield _change(key, Direction.LOOSENED, old, new, "no golden_digest says that it is the same dataset")


def _batch_invariance(key: str, old: str, new: str, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.TIGHTENED if new == "required" else Direction.LOOSENED, old, new)


def _levels(key: str, old: str, new: str, _sides: _Sides) -> Iterator[Change]:
    is_tighter = Level(new).is_at_least(Level(old))
    yield _change(key, Direction.TIGHTENED if is_tighter else Direction.LOOSENED, old, new)


def _reference(key: str, old: str, new: str, _sides: _Sides) -> Iterator[Change]:
    yield _change(key, Direction.TIGHTENED if new == "fp64" else Direction.LOOSENED, old, new)


def _rows(key: str, old: Mapping[str, Any], new: Mapping[str, Any], sides: _Sides) -> Iterator[Change]:
    """Compare rows as they resolve: a row that another starts from changes both."""
    before, after = sides.old.rows, sides.new.rows
    for name in dict.fromkeys((*old, *new)):
        own = f"{key}.{name}"
        if name not in before or name not in after:
            direction = Direction.NEW if name in after else Direction.REMOVED
            yield _change(own, direction, old.get(name), new.get(name))
        elif _knobs(before[name]) != _knobs(after[name]):
            yield _change(own, Direction.LOOSENED, old[name], new[name], "another backend has the same name")
        elif old[name] != new[name]:
            yield _change(own, Direction.NEUTRAL, old[name], new[name], "every knob is as before")


def _knobs(row: Backend) -> dict[str, Any]:
    return row.model_dump(exclude={"summary"})


ANY = "\0any"
"""An output that has no budget of its own: no output is called like this."""


def _budgets(key: str, old: Sequence[Budget], new: Sequence[Budget], sides: _Sides) -> Iterator[Change]:
    """Compare the limits that are in force, whichever budget or default they come from."""
    for backend in dict.fromkeys(b.backend for b in (*old, *new)):
        outputs = {b.output for b in (*old, *new) if b.backend == backend} | {None}
        for output in sorted(outputs, key=lambda o: o or ""):
            own = f"{key}.{backend}" + (f".{output}" if output is not None else "")
            before = _limits(sides.old, backend, output)
            after = _limits(sides.new, backend, output)
            if before is None or after is None:
                yield _change(own, Direction.NEW if before is None else Direction.REMOVED, before, after)
            else:
                yield from _compare_limits(own, before, after)
    yield from _unknown_fields(key, old, new)


def _limits(policy: Policy, backend: str, output: str | None) -> Limits | None:
    """Return what limits an output of a backend; None where the policy has no such backend."""
    row = policy.rows.get(backend) or CATALOG.get(backend)
    return None if row is None else policy.limits_for(row, ANY if output is None else output)


def _compare_limits(key: str, old: Limits, new: Limits) -> Iterator[Change]:
    for name in Limits.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            # Not `after > before`: what cannot be compared is loosened.
            direction = Direction.TIGHTENED if after < before else Direction.LOOSENED
            yield _change(f"{key}.{name}", direction, before, after)


def _unknown_fields(key: str, old: Sequence[Budget], new: Sequence[Budget]) -> Iterator[Change]:
    """Compare what a budget may say besides its limits, which is nothing as yet."""
    known = {"backend", "output", *Limits.model_fields}
    before, after = ([b.model_dump(exclude=known) for b in budgets] for budgets in (old, new))
    if any(before) or any(after):
        yield _change(key, Direction.LOOSENED, before, after, "a budget says something that nobody can order")


def _waivers(key: str, old: Sequence[Waiver], new: Sequence[Waiver], sides: _Sides) -> Iterator[Change]:
    before = {(w.check, w.backend, w.output): w for w in old}
    after = {(w.check, w.backend, w.output): w for w in new}
    for name in dict.fromkeys((*before, *after)):
        own = ".".join((key, *(part for part in name if part is not None)))
        if name not in after:
            yield _change(own, Direction.TIGHTENED, before[name], None)
        elif name not in before:
            yield _change(own, Direction.LOOSENED, None, after[name])
        else:
            yield from _compare_waivers(own, before[name], after[name], sides)


def _compare_waivers(key: str, old: Waiver, new: Waiver, sides: _Sides) -> Iterator[Change]:
    for name in Waiver.model_fields:
        before, after = getattr(old, name), getattr(new, name)
        if before == after:
            continue
        if name == "expires":
            direction = Direction.TIGHTENED if after < before else Direction.LOOSENED
            yield _change(f"{key}.{name}", direction, before.isoformat(), after.isoformat())
        elif name in ("owner", "reason", "ticket"):
            yield from _neutral(f"{key}.{name}", before, after, sides)
        else:
            yield from _unknown(f"{key}.{name}", before, after, sides)


def _calibration(key: str, old: Any, new: Any, sides: _Sides) -> Iterator[Change]:
    """Judge a binding: one less binds less, and another one makes budgets count where they were stale."""
    if old is None or new is None:
        direction = Direction.TIGHTENED if old is None else Direction.LOOSENED
        yield _change(key, direction, _bindings(old), _bindings(new))
    else:
        yield from _walk(type(old), old, new, sides, (key,))


def _bindings(calibration: Any) -> Any:
    return None if calibration is None else calibration.model_dump(exclude={"provenance"}, exclude_none=True)


def _weights(key: str, old: str | None, new: str | None, _sides: _Sides) -> Iterator[Change]:
    if old is None or new is None:
        yield _change(key, Direction.TIGHTENED if old is None else Direction.LOOSENED, old, new)
    else:
        yield _change(key, Direction.NEUTRAL, old, new, "the budgets are those of another model")


def _environment(key: str, old: Mapping[str, Any], new: Mapping[str, Any], sides: _Sides) -> Iterator[Change]:
    before, after = _flatten(old), _flatten(new)
    for name in dict.fromkeys((*before, *after)):
        if before.get(name) != after.get(name):
            yield from _set_is_tighter(f"{key}.{name}", before.get(name), after.get(name), sides)


def _flatten(environment: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    return {f"{backend}.{key}": value for backend, keys in environment.items() for key, value in keys.items()}


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "schema_version": _unknown,
        "required": _names,
        "golden": _golden,
        "golden_digest": _set_is_tighter,
        "samples_min": _more_is_tighter,
        "batch_size": _unknown,
        "formats.pickle": _true_is_looser,
        "formats.scan": _names,
        "checks.repeat_samples": _more_is_tighter,
        "checks.fresh_process": _true_is_tighter,
        "checks.batch_sizes": _names,
        "checks.batch_samples": _more_is_tighter,
        "checks.batch_invariance": _batch_invariance,
        "checks.reference": _reference,
        "decisions.flip_rate": _less_is_tighter,
        "decisions.accuracy_drop": _less_is_tighter,
        "worker.deadline_s": _neutral,
        "worker.threads": _neutral,
        "worker.jobs_per_gpu": _neutral,
        "sandbox.minimum": _levels,
        "sandbox.memory_bytes": _less_is_tighter,
        "sandbox.file_bytes": _less_is_tighter,
        "sandbox.open_files": _less_is_tighter,
        "sandbox.processes": _less_is_tighter,
        "backends": _rows,
        "budget": _budgets,
        "waiver": _waivers,
        "calibration": _calibration,
        "calibration.weights": _weights,
        "calibration.golden": _set_is_tighter,
        "calibration.reference": _set_is_tighter,
        "calibration.environment": _environment,
        "calibration.provenance": _neutral,
    }
)
"""Key -> what its change means. A key that is not here is loosened by any change."""

# --- One policy by itself -------------------------------------------------------------------------------------


def lint_policy(policy: Policy, today: date) -> tuple[str, ...]:
    """Say what a reviewer should know of a policy that can be used."""
    return (*_loose_budgets(policy), *_missing_bindings(policy), *_lint_waivers(policy, today))


def _loose_budgets(policy: Policy) -> Iterator[str]:
    for budget in policy.budget:
        default = default_limits(policy.rows.get(budget.backend) or CATALOG[budget.backend])
        for name in Limits.model_fields:
            given, usual = getattr(budget.limits, name), getattr(default, name)
            if given > usual:
                where = f"{budget.backend}, output {budget.output or 'any'}"
                yield f"{where}: {name} = {given:g} is looser than the default {usual:g}"


def _missing_bindings(policy: Policy) -> Iterator[str]:
    if policy.calibration is None:
        what = "nothing says what the budgets were measured on" if policy.budget else "no budget was measured"
        yield f"no calibration: {what}"
    elif policy.budget and policy.calibration.weights is None:
        yield "the calibration names no weights: the budgets count for every model"
    if policy.formats.pickle:
        yield "formats.pickle = true: loading a model runs its author's code"


def _lint_waivers(policy: Policy, today: date) -> Iterator[str]:
    for waiver in policy.waiver:
        what = f"the waiver of {waiver.title} by {waiver.owner}"
        left = (waiver.expires - today).days
        match waiver.state(today):
            case WaiverState.EXPIRED:
                yield f"{what} expired on {waiver.expires}"
            case WaiverState.TOO_LONG:
                yield f"{what} lasts until {waiver.expires}, more than {WAIVER_DAYS_MAX} days, and does not count"
            case WaiverState.VALID if left <= WAIVER_DAYS_WARNED:
                yield f"{what} expires on {waiver.expires}, in {left} days"
            case WaiverState.VALID:
                pass
