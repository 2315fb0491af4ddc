"""The folder: ours alone, never too large, never half-written, and nobody waits for the dead."""

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from validator.cache.entry import SEAL_BYTES
from validator.cache.secret import CacheUnusable, load_secret
from validator.cache.store import CachePlace, Store, open_store, parse_size
from validator.errors import UsageError
from validator.faults import CRASH_AT

A, B, C = "a" * 64, "b" * 64, "c" * 64
ENTRY_BYTES = 1_000


def fill(store: Store, *keys: str) -> None:
    """Save entries of 1000 bytes, each used later than the one before."""
    for number, key in enumerate(keys):
        assert store.save(key, [bytes(ENTRY_BYTES - SEAL_BYTES)])
        os.utime(store.path_of(key), (number, number))


def keys_in(store: Store) -> list[str]:
    return [entry.key for entry in store.entries()]


# --- Size -------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_makes_room(store: Store, tmp_path: Path) -> None:
    small = replace(store, size_bytes=2 * ENTRY_BYTES)
    fill(small, A, B)
    assert small.load(A, tmp_path / "copy")  # used now
    fill(small, C)
    assert sorted(keys_in(small)) == [A, C]


def test_what_somebody_uses_is_not_evicted(store: Store) -> None:
    small = replace(store, size_bytes=2 * ENTRY_BYTES)
    fill(small, A, B)
    with small.locked(A, wait_s=0) as is_held:
        assert is_held
        fill(small, C)
    assert sorted(keys_in(small)) == [A, C]


def test_what_is_larger_than_the_whole_cache_is_not_kept_and_evicts_nothing(store: Store) -> None:
    small = replace(store, size_bytes=ENTRY_BYTES)
    fill(small, A)
    assert not small.save(B, [bytes(ENTRY_BYTES)])
    assert keys_in(small) == [A]


def test_an_entry_that_replaces_itself_evicts_no_other(store: Store) -> None:
    small = replace(store, size_bytes=2 * ENTRY_BYTES)
    fill(small, A, B, B)
    assert sorted(keys_in(small)) == [A, B]


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("17", 17), ("5MB", 5_000_000), ("10GiB", 10 << 30), ("1 kB", 1_000)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1.5GiB", "GiB", "10gib", "1e9", "٣MB"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize("domain", ["", ".", "..", "a/b", "A", "-x", "a" * 65])
def test_a_domain_is_the_name_of_a_folder(domain: str) -> None:
    with pytest.raises(UsageError):
        CachePlace(domain=domain)


# --- The disk ---------------------------------------------------------------------------------------------------

SAVE_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from validator.cache.store import CachePlace, open_store
store = open_store(CachePlace(folder=Path(sys.argv[1]) / "cache", key_file=Path(sys.argv[1]) / "key"))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.save("b" * 64, [bytes(1_000)] * 1_000)
except OSError as error:
    print(error.strerror)
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code), *arguments]


def test_a_disk_that_is_full_leaves_nothing_half_written(tmp_path: Path) -> None:
    ended = subprocess.run(python(SAVE_ON_A_FULL_DISK, str(tmp_path)), capture_output=True, text=True, check=True)
    assert "too large" in ended.stdout
    names = sorted(path.name for path in (tmp_path / "cache" / "local").iterdir())
    assert [name for name in names if not name.endswith(".lock")] == []


SAVE = """
import sys
from pathlib import Path
from validator.cache.store import CachePlace, open_store
open_store(CachePlace(folder=Path(sys.argv[1]) / "cache", key_file=Path(sys.argv[1]) / "key")).save("a" * 64, [b"x"])
"""


def test_wherever_a_writer_is_killed_the_entry_is_whole_or_not_there(place: CachePlace, tmp_path: Path) -> None:
    place = replace(place, key_file=tmp_path / "key")
    killed = 0
    while True:
        variables = os.environ | {CRASH_AT: str(killed + 1)}
        ended = subprocess.run(python(SAVE, str(tmp_path)), env=variables, stderr=subprocess.DEVNULL, check=False)
        store = open_store(place)
        assert list(store.folder.glob(".*")) == []
        is_there = store.load(A, tmp_path / f"copy-{killed}")  # raises if it is not what was written
        assert is_there or ended.returncode == -signal.SIGKILL
        store.discard(A)
        if ended.returncode == 0:
            break
        killed += 1
    assert killed == 4


def test_drafts_of_the_dead_are_swept_and_those_of_the_living_are_not(place: CachePlace, store: Store) -> None:
    for key in (A, B):
        (store.folder / f".{key}.0123.draft").write_bytes(b"half")
    with store.locked(A, wait_s=0):
        open_store(place)
        assert [path.name for path in store.folder.glob(".*.draft")] == [f".{A}.0123.draft"]
    open_store(place)
    assert list(store.folder.glob(".*.draft")) == []


# --- The folder and the key -------------------------------------------------------------------------------------


def test_the_folder_and_the_key_are_ours_alone(place: CachePlace, store: Store) -> None:
    assert store.folder == (place.folder or Path()) / "local"
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert place.key_file is not None
    assert place.key_file.stat().st_mode & 0o777 == 0o600
    assert open_store(place).secret == store.secret == place.key_file.read_bytes()
    assert len(store.secret) == 32


def test_by_default_it_lies_in_the_users_folders_with_a_key_for_each_domain(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    stores = [open_store(CachePlace(domain=domain), home) for domain in ("local", "proposed")]
    assert [store.folder.relative_to(tmp_path).as_posix() for store in stores] == [
        ".cache/validator/local",
        ".cache/validator/proposed",
    ]
    keys = sorted(path.name for path in (tmp_path / ".local/share/validator").iterdir())
    assert keys == ["cache-local.key", "cache-proposed.key"]
    assert stores[0].secret != stores[1].secret
    xdg = {"XDG_CACHE_HOME": str(tmp_path / "c"), "XDG_DATA_HOME": str(tmp_path / "d")}
    assert open_store(CachePlace(), xdg).folder == tmp_path / "c" / "validator" / "local"


def a_link(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")


def a_file(folder: Path, _tmp_path: Path) -> None:
    folder.write_text("")


def others_may_write(folder: Path, _tmp_path: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


@pytest.mark.parametrize("make", [a_link, a_file, others_may_write])
def test_a_folder_that_is_not_ours_alone_is_not_used(place: CachePlace, tmp_path: Path, make) -> None:
    assert place.folder is not None
    place.folder.mkdir()
    make(place.folder / "local", tmp_path)
    with pytest.raises(CacheUnusable):
        open_store(place)


def test_without_a_place_there_is_no_cache() -> None:
    with pytest.raises(CacheUnusable, match="neither"):
        open_store(CachePlace(), {})


def test_where_nothing_can_be_written_there_is_no_cache(place: CachePlace) -> None:
    with pytest.raises(CacheUnusable, match="/proc/none"):
        open_store(replace(place, folder=Path("/proc/none")))


def test_a_key_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    load_secret(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)
    with pytest.raises(CacheUnusable, match="640"):
        load_secret(tmp_path / "key")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read what another user keeps to themselves")
def test_a_key_that_another_user_made_is_not_used(tmp_path: Path) -> None:
    load_secret(tmp_path / "key")
    os.chown(tmp_path / "key", 12345, 12345)
    with pytest.raises(CacheUnusable, match="another user"):
        load_secret(tmp_path / "key")


def test_a_key_that_is_a_link_a_pipe_or_too_short_is_not_used(tmp_path: Path) -> None:
    load_secret(tmp_path / "key")
    (tmp_path / "link").symlink_to(tmp_path / "key")
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "short").touch(mode=0o600)
    for name in ("link", "pipe", "short"):
        with pytest.raises(CacheUnusable, match=name):
            load_secret(tmp_path / name)


# --- Locks ------------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from validator.cache.store import EntryFolder
lock = EntryFolder(folder=Path(sys.argv[1])).take(sys.argv[2], wait_s=0)
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def holder(store: Store, key: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a lock."""
    with subprocess.Popen(python(HOLD, str(store.folder), key), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_lock_is_held_by_one_process_and_taken_from_the_dead(store: Store) -> None:
    with holder(store, A) as process:
        assert store.take(A, wait_s=0) is None
        assert store.take(A, wait_s=0.2) is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        lock = store.take(A, wait_s=60)
    assert lock is not None
    lock.release()
