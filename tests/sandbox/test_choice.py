"""Which level is taken, what is refused, and what is shown to whom. Pure."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from validator.errors import ExitCode, SandboxTooWeak
from validator.sandbox.bubblewrap import wrap
from validator.sandbox.choice import UNCONFINED, Reached, Sandbox, describe_levels, reach, require
from validator.sandbox.confinement import MECHANISMS, Confinement, ResourceLimits
from validator.sandbox.level import PLAIN, Level, Profile, Request
from validator.sandbox.machine import Machine
from validator.worker.stage import Stage
from validator.worker.warm import Kit

FULL = Machine(
    bubblewrap="/usr/bin/bwrap",
    bubblewrap_version="0.8.0",
    landlock_abi=7,
    seccomp=True,
    gpu_nodes=("/dev/nvidia0", "/dev/nvidiactl"),
)
BARE = Machine(bubblewrap=None, bubblewrap_version=None, landlock_abi=7, seccomp=True, gpu_nodes=FULL.gpu_nodes)
GPU = Profile(gpu=True)

levels = st.sampled_from(Level)
profiles = st.builds(Profile, gpu=st.booleans(), compiles=st.booleans())
limits = st.builds(
    ResourceLimits,
    memory_bytes=st.none() | st.integers(1, 1 << 50),
    file_bytes=st.none() | st.integers(1, 1 << 50),
)
paths = st.lists(st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0")), max_size=3).map(tuple)
confinements = st.builds(
    Confinement,
    level=levels,
    profile=profiles,
    home=st.text(),
    program=paths,
    inputs=paths,
    limits=limits,
    has_landlock=st.booleans(),
)


@given(levels, levels)
def test_of_two_levels_one_is_at_least_the_other(a: Level, b: Level) -> None:
    assert a.is_at_least(b) or b.is_at_least(a)
    assert (a.is_at_least(b) and b.is_at_least(a)) == (a is b)
    assert a.is_at_least(Level.NONE)
    assert Level.STRICT.is_at_least(a)


@given(confinements)
def test_a_confinement_crosses_to_the_worker_unchanged(confinement: Confinement) -> None:
    assert Confinement.from_json(confinement.to_json()) == confinement


@given(confinements)
def test_what_is_recorded_is_among_what_there_is_and_more_is_never_less(confinement: Confinement) -> None:
    assert set(confinement.mechanisms) <= set(MECHANISMS)
    assert ("bubblewrap" in confinement.mechanisms) == (confinement.level is Level.STRICT)
    assert ("no-exec" in confinement.mechanisms) == (
        confinement.level is not Level.NONE and not confinement.profile.compiles
    )


def test_auto_takes_the_strongest_that_is_proven_and_says_why_not_a_stronger_one() -> None:
    assert reach(Request.AUTO, PLAIN, FULL, lambda _: None) == Reached(level=Level.STRICT)
    fails = {Level.STRICT: "it read the user's home"}
    assert reach(Request.AUTO, PLAIN, FULL, fails.get) == Reached(
        level=Level.STANDARD, weaker_because=("strict: it read the user's home",)
    )
    assert reach(Request.AUTO, PLAIN, FULL, lambda _: "it got out").level is Level.NONE


def test_a_level_that_is_named_is_tried_alone() -> None:
    tried: list[Level] = []

    def prove(level: Level) -> str:
        tried.append(level)
        return "it got out"

    assert reach(Request.STANDARD, PLAIN, FULL, prove).level is Level.NONE
    assert tried == [Level.STANDARD]
    assert reach(Request.NONE, PLAIN, FULL, prove) == Reached(level=Level.NONE)
    assert tried == [Level.STANDARD]


def test_what_is_not_there_is_not_tried() -> None:
    def never(_level: Level) -> str | None:
        raise AssertionError

    reached = reach(Request.AUTO, GPU, BARE, never)
    assert reached.weaker_because == (
        "strict: bubblewrap is not installed",
        "standard: CUDA does not start under Landlock",
    )
    old = Machine(bubblewrap=None, bubblewrap_version=None, landlock_abi=2, seccomp=True)
    assert reach(Request.STANDARD, PLAIN, old, never).weaker_because == (
        "standard: the kernel has no Landlock of ABI 3 or newer, but ABI 2",
    )


def test_less_than_is_asked_for_is_refused_with_what_to_do() -> None:
    reached = {
        PLAIN: Reached(level=Level.STRICT),
        GPU: Reached(level=Level.NONE, weaker_because=("strict: bubblewrap is not installed",)),
    }
    with pytest.raises(SandboxTooWeak) as refused:
        require(reached, Level.STANDARD, by="the policy")
    assert refused.value.exit_code is ExitCode.REFUSED
    assert refused.value.message == (
        "the policy wants the sandbox standard, and CUDA workers are held by none: strict: bubblewrap is not installed"
    )
    assert "apt-get install bubblewrap" in (refused.value.hint or "")
    require(reached, Level.NONE, by="the policy")


@given(st.dictionaries(profiles, st.builds(Reached, level=levels), min_size=1), levels)
def test_a_requirement_holds_exactly_if_the_weakest_meets_it(reached: dict[Profile, Reached], wanted: Level) -> None:
    sandbox = Sandbox(requested=Request.AUTO, machine=FULL, reached=reached)
    if sandbox.weakest.is_at_least(wanted):
        require(reached, wanted, by="the policy")
    else:
        with pytest.raises(SandboxTooWeak):
            require(reached, wanted, by="the policy")


def test_without_a_gpu_nobody_is_given_its_nodes_and_under_cuda_there_is_no_landlock() -> None:
    reached = {p: Reached(level=Level.STRICT) for p in (PLAIN, GPU)}
    with_gpu = Sandbox(requested=Request.AUTO, machine=FULL, reached=reached)
    confined = with_gpu.confine(GPU, home=Path("/home"))
    assert "--dev-bind" in wrap(confined, FULL)
    assert "landlock" not in confined.mechanisms
    command = wrap(confined, FULL)
    assert command.index("--dev") < command.index("--dev-bind")
    without = Machine(bubblewrap="/usr/bin/bwrap", bubblewrap_version="0.8.0", landlock_abi=7, seccomp=True)
    plain = Sandbox(requested=Request.AUTO, machine=without, reached=reached).confine(GPU, home=Path("/home"))
    assert plain.profile == PLAIN
    assert "--dev-bind" not in wrap(plain, without)
    assert "landlock" in plain.mechanisms


def test_a_profile_that_was_not_proven_is_a_fault_and_not_a_weaker_worker() -> None:
    sandbox = Sandbox(requested=Request.AUTO, machine=FULL, reached={PLAIN: Reached(level=Level.STRICT)})
    with pytest.raises(KeyError):
        sandbox.confine(GPU, home=Path("/home"))


def test_without_bubblewrap_there_is_nothing_to_wrap_with() -> None:
    with pytest.raises(ValueError, match="not installed"):
        wrap(UNCONFINED.confine(PLAIN, home=Path("/home")), BARE)


def test_what_was_reached_is_told_in_one_line() -> None:
    assert describe_levels(UNCONFINED) == "none"
    same = {PLAIN: Reached(level=Level.STRICT), GPU: Reached(level=Level.STRICT)}
    assert describe_levels(Sandbox(requested=Request.AUTO, machine=FULL, reached=same)) == "strict"
    mixed = {PLAIN: Reached(level=Level.STANDARD), GPU: Reached(level=Level.NONE, weaker_because=("strict: why",))}
    assert describe_levels(Sandbox(requested=Request.AUTO, machine=FULL, reached=mixed)) == (
        "CPU standard, CUDA none (strict: why)"
    )


def test_who_runs_the_onnx_file_never_sees_the_program(tmp_path: Path) -> None:
    stage = Stage.make(tmp_path)
    assert stage.subject not in stage.shown_to(Kit.ONNXRUNTIME)
    assert stage.onnx not in stage.shown_to(Kit.TORCH)
    for kit in Kit:
        shown = stage.shown_to(kit)
        assert all(folder.is_dir() for folder in shown)
        assert tmp_path not in shown


def test_a_dataset_that_lies_somewhere_is_shown_there_and_one_that_does_not_is_fetched(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "scratch").mkdir()
    stage = Stage.make(tmp_path / "scratch", golden=tmp_path / "own")
    assert stage.golden == tmp_path / "own"
    assert Stage.make(tmp_path / "scratch", golden=tmp_path / "gone").golden == tmp_path / "scratch" / "golden"
