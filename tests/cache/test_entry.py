"""An entry is what was written, where it was written, by whoever holds the key; else nothing of it is looked at."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cache.conftest import MADE_BY, completed_export, completed_run, export_job, recipe_of, run_job
from validator.cache.entry import EntryDamaged, pack_entry, read_entry
from validator.cache.recipe import Recipe
from validator.cache.store import CachePlace, Store, open_store
from validator.manifest import measure_folder
from validator.worker.outcome import Completed


def keep(store: Store, outcome: Completed) -> Recipe:
    recipe = recipe_of(outcome)
    files = None if outcome.exported is None else measure_folder(outcome.exported.parent)
    assert store.save(recipe.key, pack_entry(outcome, recipe, MADE_BY, exported=files))
    return recipe


def test_a_run_comes_back_as_its_worker_sent_it(store: Store, tmp_path: Path) -> None:
    outcome = completed_run(tmp_path / "first")
    recipe = keep(store, outcome)
    assert store.load(recipe.key, tmp_path / "copy")
    found = read_entry(tmp_path / "copy", recipe, run_job(tmp_path / "second", "2" * 32), spool=tmp_path / "frames")
    assert found.reused == MADE_BY
    assert found.job == run_job(tmp_path / "second")  # with the nonce of the run that made it
    assert (found.environment, found.seconds, found.peak_memory_bytes) == (outcome.environment, {"main": 2.5}, 1_000)
    assert found.spool is not None
    assert outcome.spool is not None
    for (header, values), (other, others) in zip(
        found.spool.read_pass("main"), outcome.spool.read_pass("main"), strict=True
    ):
        assert header == other
        np.testing.assert_array_equal(values["y"], others["y"])
    assert (tmp_path / "frames").read_bytes() == outcome.spool.path.read_bytes()


def test_an_export_comes_back_with_its_files_facts_and_weights(store: Store, tmp_path: Path) -> None:
    outcome = completed_export(tmp_path / "first")
    recipe = keep(store, outcome)
    job = export_job(tmp_path / "second")
    assert store.load(recipe.key, tmp_path / "copy")
    found = read_entry(tmp_path / "copy", recipe, job, spool=tmp_path / "frames")
    assert outcome.export is not None
    assert found.export == outcome.export.model_copy(update={"path": job.export_path})
    assert (found.weights, found.spool) == (outcome.weights, None)
    assert outcome.exported is not None
    assert found.exported is not None
    folders = [measure_folder(path.parent).digest for path in (outcome.exported, found.exported)]
    assert folders[0] == folders[1]


def test_an_entry_that_is_not_there_is_a_miss(store: Store, tmp_path: Path) -> None:
    assert not store.load("0" * 64, tmp_path / "copy")


# --- Damage -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, str, bytes]:
    folder = tmp_path_factory.mktemp("kept")
    store = open_store(CachePlace(folder=folder / "cache", key_file=folder / "key"))
    recipe = keep(store, completed_run(folder / "scratch"))
    return store, recipe.key, store.path_of(recipe.key).read_bytes()


def is_refused(store: Store, key: str, data: bytes) -> bool:
    """Whether an entry with these bytes is refused and gone."""
    store.path_of(key).write_bytes(data)
    copy = store.folder.parent / f"copy-{os.urandom(8).hex()}"
    try:
        store.load(key, copy)
    except EntryDamaged:
        return not store.path_of(key).exists()
    finally:
        copy.unlink(missing_ok=True)
    return False


def test_an_entry_that_nobody_touched_is_not_refused(kept: tuple[Store, str, bytes]) -> None:
    assert not is_refused(*kept)


@given(data=st.data())
def test_a_byte_that_is_another_anywhere_is_seen(kept: tuple[Store, str, bytes], data: st.DataObject) -> None:
    store, key, whole = kept
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert is_refused(store, key, bytes(changed))


@given(data=st.data())
def test_an_entry_that_is_cut_short_or_longer_is_refused(kept: tuple[Store, str, bytes], data: st.DataObject) -> None:
    store, key, whole = kept
    assert is_refused(store, key, whole[: data.draw(st.integers(0, len(whole) - 1))])
    assert is_refused(store, key, whole + data.draw(st.binary(min_size=1, max_size=100)))


def test_entries_in_each_others_places_are_refused(store: Store, tmp_path: Path) -> None:
    keys = [keep(store, completed_run(tmp_path / "a")).key, keep(store, completed_export(tmp_path / "b")).key]
    contents = [store.path_of(key).read_bytes() for key in keys]
    assert is_refused(store, keys[0], contents[1])
    assert is_refused(store, keys[1], contents[0])


def test_an_entry_that_was_sealed_by_another_key_is_refused(place: CachePlace, store: Store, tmp_path: Path) -> None:
    recipe = keep(store, completed_run(tmp_path / "scratch"))
    other = open_store(replace(place, key_file=tmp_path / "other.key"))
    assert is_refused(other, recipe.key, store.path_of(recipe.key).read_bytes())


def test_an_entry_of_another_domain_is_not_found_and_refused_where_somebody_copies_it(
    place: CachePlace, tmp_path: Path
) -> None:
    """Also where both domains were given the same key file: the domain is part of what is asked for."""
    outcome = completed_run(tmp_path / "scratch")
    proposed, main = recipe_of(outcome, domain="proposed"), recipe_of(outcome, domain="main")
    stores = {name: open_store(replace(place, domain=name)) for name in ("proposed", "main")}
    assert stores["proposed"].save(proposed.key, pack_entry(outcome, proposed, MADE_BY))
    assert not stores["main"].load(main.key, tmp_path / "copy")
    (tmp_path / "copy").unlink()
    assert is_refused(stores["main"], main.key, stores["proposed"].path_of(proposed.key).read_bytes())


def link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def pipe(path: Path, _elsewhere: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("make", [link, pipe])
def test_an_entry_that_is_no_regular_file_is_refused(
    store: Store, tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    recipe = keep(store, completed_run(tmp_path / "scratch"))
    path = store.path_of(recipe.key)
    path.rename(tmp_path / "elsewhere")
    make(path, tmp_path / "elsewhere")
    with pytest.raises(EntryDamaged):
        store.load(recipe.key, tmp_path / "copy")
    assert not os.path.lexists(path)
    assert (tmp_path / "elsewhere").exists()


def test_a_sealed_entry_that_does_not_prove_that_its_job_was_done_is_refused(store: Store, tmp_path: Path) -> None:
    """The seal says who wrote it; whether every sample arrived is proven again, as for a worker."""
    outcome = completed_run(tmp_path / "scratch")
    assert outcome.spool is not None
    short = replace(outcome, spool=replace(outcome.spool, frames=outcome.spool.frames[:1]))
    recipe = keep(store, short)
    assert store.load(recipe.key, tmp_path / "copy")
    with pytest.raises(EntryDamaged, match="sample"):
        read_entry(tmp_path / "copy", recipe, run_job(tmp_path), spool=tmp_path / "frames")


def test_a_sealed_export_without_all_of_its_files_leaves_none(store: Store, tmp_path: Path) -> None:
    outcome = completed_export(tmp_path / "scratch")
    recipe = recipe_of(outcome)
    parts = pack_entry(outcome, recipe, MADE_BY, exported=measure_folder(tmp_path / "scratch" / "export"))
    assert store.save(recipe.key, parts[:-1])
    job = export_job(tmp_path / "second")
    assert store.load(recipe.key, tmp_path / "copy")
    with pytest.raises(EntryDamaged, match="missing"):
        read_entry(tmp_path / "copy", recipe, job, spool=tmp_path / "frames")
    assert not list(tmp_path.rglob("home/*"))


def test_what_was_copied_is_what_is_judged(store: Store, tmp_path: Path) -> None:
    """Whoever changes the entry after it was verified changes nothing for this check."""
    recipe = keep(store, completed_run(tmp_path / "scratch"))
    assert store.load(recipe.key, tmp_path / "copy")
    store.path_of(recipe.key).write_bytes(b"forged")
    assert read_entry(tmp_path / "copy", recipe, run_job(tmp_path), spool=tmp_path / "frames").reused == MADE_BY


def test_an_exported_file_that_somebody_wrote_to_since_is_not_kept(store: Store, tmp_path: Path) -> None:
    outcome = completed_export(tmp_path / "scratch")
    files = measure_folder(tmp_path / "scratch" / "export")
    (tmp_path / "scratch" / "export" / "model.onnx").write_bytes(b"evil" * 100)
    recipe = recipe_of(outcome)
    with pytest.raises(EntryDamaged, match="not what it was"):
        store.save(recipe.key, pack_entry(outcome, recipe, MADE_BY, exported=files))
    assert store.entries() == []
    assert list(store.folder.glob(".*")) == []
