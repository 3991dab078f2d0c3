"""The folder of snapshots: what is written comes back, and nothing else ever does."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.errors import WriteFailure
from llmrun.store import snapshots
from llmrun.store.model_digest import (
    ModelFiles,
    Replaced,
    compute_digest,
    remembered_digest,
    time_used,
    unknown_bytes,
)
from llmrun.store.patience import ENDLESS, GaveUp, Patience
from llmrun.store.snapshot_file import Damaged, Place, Snapshot, read_snapshot, write_snapshot
from llmrun.store.snapshots import HEAD_TOKENS, MOST_OTHERS, SUFFIX, SnapshotStore, Speeds

from tests.support.waiting import wait_for_a_new_time_stamp, wait_until

MODEL, OTHER = "a" * 64, "b" * 64
SETTINGS = {"n_ctx": "8192", "type_k": "f16"}
quick = settings(deadline=None, database=None, max_examples=40)


def add(
    store: SnapshotStore,
    tokens: list[int],
    *,
    model: str = MODEL,
    sizes: tuple[int, ...] = (100,),
    settings: dict[str, str] = SETTINGS,
    history: str = "",
    patience: Patience = ENDLESS,
) -> Path:
    states = [
        (Place(len(tokens) - i, max(0, len(tokens) - i - 5), size), bytearray(os.urandom(size)))
        for i, size in enumerate(sizes)
    ]
    return store.write(
        model=model,
        settings=settings,
        title="m Q4",
        tokens=tokens,
        states=states,
        prefill_s=0.005,
        history=history,
        patience=patience,
    )


def only(store: SnapshotStore, model: str = MODEL) -> Snapshot:
    (snapshot,) = store.of_model(model).snapshots
    return snapshot


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    return SnapshotStore(tmp_path / "prefix", 1 << 20)


@quick
@given(
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300),
    states=st.lists(st.binary(max_size=400), min_size=1, max_size=4),
    history=st.text(max_size=40),
)
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], states: list[bytes], history: str
) -> None:
    store = SnapshotStore(tmp_path_factory.mktemp("s"), 1 << 20)
    places = [Place(max(1, len(tokens) - i), i, len(data)) for i, data in enumerate(states)]
    store.write(
        model=MODEL,
        settings=SETTINGS,
        title="m Q4",
        tokens=tokens,
        states=[(p, bytearray(d)) for p, d in zip(places, states, strict=True)],
        prefill_s=0.25,
        history=history,
    )
    snapshot = only(store)
    assert snapshot.tokens == array("i", tokens)
    assert snapshot.settings == SETTINGS
    assert snapshot.places == tuple(places)
    assert (snapshot.prefill_s, snapshot.history()) == (0.25, history)
    assert [bytes(data) for data in store.load(snapshot)] == states
    assert snapshot.size_bytes == snapshot.path.stat().st_size


def test_models_and_settings_are_kept_apart(store: SnapshotStore) -> None:
    add(store, [1, 2, 3])
    add(store, [1, 2, 3], model=OTHER)
    add(store, [1, 2, 3], settings={**SETTINGS, "n_ctx": "256"})
    assert sorted(s.settings["n_ctx"] for s in store.of_model(MODEL).snapshots) == ["256", "8192"]
    assert only(store, OTHER).model == OTHER
    assert len(store.all().snapshots) == 3
    assert store.of_model("c" * 64).snapshots == ()


def test_files_are_for_the_user_alone(store: SnapshotStore) -> None:
    path = add(store, [1, 2, 3])
    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def search_and_load(store: SnapshotStore) -> list[bytes] | None:
    """What a reader gets: the states, or a miss."""
    found = store.of_model(MODEL)
    if not found.snapshots:
        return None
    try:
        return [bytes(data) for data in store.load(found.snapshots[0])]
    except Damaged:
        return None


@pytest.mark.parametrize("what", ["cut", "longer", "flipped", "empty", "zeros", "text"])
def test_damage_anywhere_is_a_miss(tmp_path: Path, what: str) -> None:
    """Every cut, and every changed byte, of a small snapshot."""
    store = SnapshotStore(tmp_path, 1 << 20)
    path = add(store, [1, 2, 3], sizes=(40, 20), history="h")
    whole = path.read_bytes()
    changed: dict[str, Callable[[int], bytes]] = {
        "cut": lambda at: whole[:at],
        "longer": lambda at: whole + b"x" * (at + 1),
        "flipped": lambda at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "empty": lambda _: b"",
        "zeros": lambda at: whole[:at] + b"\0" * (len(whole) - at),
        "text": lambda at: b"#" * at,
    }
    for at in range(len(whole)):
        path.write_bytes(changed[what](at))
        if path.read_bytes() != whole:
            assert search_and_load(store) is None
    path.write_bytes(whole)
    assert search_and_load(store) == [whole[-60:-20], whole[-20:]]


def test_damage_is_removed_and_what_is_foreign_stays(store: SnapshotStore) -> None:
    damaged, moved = add(store, [1, 2, 3]), add(store, [7, 8, 9], model=OTHER)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    foreign = damaged.with_name("f" * 32 + SUFFIX)
    foreign.write_bytes(b"no snapshot at all, but long enough for its head")
    elsewhere = damaged.with_name(moved.name)
    elsewhere.write_bytes(moved.read_bytes())
    found = store.of_model(MODEL)
    assert (found.snapshots, found.damaged, found.foreign) == ((), 1, 2)
    assert not damaged.exists()
    assert foreign.exists()
    assert elsewhere.exists()


@quick
@given(st.binary(max_size=200), st.integers(0, 30))
def test_no_file_breaks_a_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes, keep: int) -> None:
    path = tmp_path_factory.mktemp("s") / f"x{SUFFIX}"
    store = SnapshotStore(path.parent, 1 << 20)
    head = add(store, [1, 2]).read_bytes()[:keep]
    path.write_bytes(head + data)
    with pytest.raises(Exception, match=r".") as raised:
        read_snapshot(path)
    assert type(raised.value).__name__ in ("Damaged", "Foreign")


def test_the_longest_unused_make_room(tmp_path: Path) -> None:
    clock = iter(float(n) for n in range(10**6))
    store = SnapshotStore(tmp_path, 5000, lambda: next(clock))
    paths = {}
    for n in range(3):
        paths[n] = add(store, [n], sizes=(1200,))
        os.utime(paths[n], (n, n))
    oldest = next(s for s in store.of_model(MODEL).snapshots if s.tokens[0] == 0)
    store.load(oldest)
    os.utime(paths[0], (50, 50))
    add(store, [9], sizes=(1200,))
    assert {s.tokens[0] for s in store.of_model(MODEL).snapshots} == {0, 2, 9}
    assert store.used_bytes() <= 5000


def test_where_the_clock_was_set_back_what_was_used_later_than_now_goes_first(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 3000, lambda: 1e6)
    for token, used_s in ((1, 1e6 - 50), (2, 2e6), (3, 1e6)):
        os.utime(add(store, [token], sizes=(700,)), (used_s, used_s))
    left_behind = tmp_path / MODEL / "x.part"
    left_behind.write_bytes(b"")
    os.utime(left_behind, (2e6, 2e6))
    add(store, [4], sizes=(700,))
    assert {s.tokens[0] for s in store.of_model(MODEL).snapshots} == {1, 3, 4}
    assert not left_behind.exists()


@pytest.mark.parametrize("speed", ["-5", "NaN", '"x"', "null", "[]"])
def test_speeds_that_cannot_be_are_none(tmp_path: Path, speed: str) -> None:
    (tmp_path / "speeds.json").write_text(f'{{"write": {speed}, "read": 7}}')
    assert SnapshotStore(tmp_path).speeds().write == 0


def test_using_a_snapshot_makes_it_the_last_one_used(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 1 << 20, lambda: 1000.0)
    path = add(store, [1])
    os.utime(path, (1, 1))
    store.load(only(store))
    assert path.stat().st_mtime == 1000.0


def test_the_default_bound_is_a_share_of_what_would_be_free(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "not" / "there" / "yet")
    disk = os.statvfs(tmp_path)
    expected = disk.f_bavail * disk.f_frsize // 10
    assert store.limit() == pytest.approx(min(expected, 16 << 30), rel=0.05)


def test_remains_of_a_killed_writer_are_not_read_and_go_after_an_hour(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 1 << 20, lambda: 10_000.0)
    path = add(store, [1])
    old, young = path.with_name("old.part"), path.with_name("young.part")
    for leftover, when in ((old, 1.0), (young, 9000.0)):
        leftover.write_bytes(path.read_bytes())
        os.utime(leftover, (when, when))
    assert len(store.all().snapshots) == 1
    add(store, [2])
    assert not old.exists()
    assert young.exists()


def test_clearing_removes_everything_and_says_how_much(store: SnapshotStore) -> None:
    paths = [add(store, [1]), add(store, [2], model=OTHER)]
    size = sum(path.stat().st_size for path in paths)
    assert store.clear() == size
    assert store.all().snapshots == ()
    assert store.clear() == 0


def test_what_is_no_file_is_no_snapshot_and_in_nobodys_way(store: SnapshotStore) -> None:
    path = add(store, [1])
    folder = path.parent
    os.mkfifo(folder / f"fifo{SUFFIX}")
    (folder / f"folder{SUFFIX}").mkdir()
    (folder / f"dangling{SUFFIX}").symlink_to(folder / "nowhere")
    (folder / f"endless{SUFFIX}").symlink_to("/dev/zero")
    (folder.parent / "unfinished.part").write_bytes(b"123")
    os.mkfifo(folder.parent / "speeds.json")
    assert store.speeds() == Speeds()
    os.unlink(folder.parent / "speeds.json")
    outside = folder.parent.parent / "outside"
    outside.mkdir()
    kept = outside / f"kept{SUFFIX}"
    kept.write_bytes(path.read_bytes())
    (folder.parent / "link").symlink_to(outside)
    assert [one.path for one in store.of_model(MODEL, begin=[1]).snapshots] == [path]
    assert (store.all().damaged, store.all().foreign) == (0, 0)
    assert store.used_bytes() == path.stat().st_size
    assert store.clear() > 0
    assert [entry.name for entry in folder.iterdir()] == [f"folder{SUFFIX}"]
    assert sorted(entry.name for entry in folder.parent.iterdir()) == sorted([folder.name, "link"])
    assert kept.exists()


def test_a_file_that_cannot_be_removed_keeps_no_other(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [add(store, [n]) for n in range(3)]
    unlink = os.unlink

    def unlink_others(path: str) -> None:
        if path == str(paths[1]):
            raise PermissionError(13, os.strerror(13), path)
        unlink(path)

    monkeypatch.setattr(os, "unlink", unlink_others)
    with pytest.raises(WriteFailure, match=paths[1].name):
        store.clear()
    assert list(paths[1].parent.iterdir()) == [paths[1]]


def test_a_folder_that_is_cleared_while_a_snapshot_is_written(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_clear(path: Path, **told: object) -> None:
        write_snapshot(path, **told)  # type: ignore[arg-type]
        store.clear()

    monkeypatch.setattr(snapshots, "write_snapshot", write_and_clear)
    with pytest.raises(FileNotFoundError):
        add(store, [1])
    assert store.all().snapshots == ()


def test_speeds_are_remembered_each_for_itself(store: SnapshotStore) -> None:
    assert store.speeds() == Speeds()
    add(store, [1])
    store.measured(Speeds(write=5.0))
    store.measured(Speeds(read=7.0))
    assert store.speeds() == Speeds(5.0, 7.0)
    store.measured(Speeds(write=1.0))  # a busy moment
    store.measured(Speeds(read=70.0))
    assert store.speeds() == Speeds(2.5, 70.0)
    (store.folder / "speeds.json").write_text('{"write": "x"}')
    assert store.speeds() == Speeds()


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse)
        yield


def test_a_full_disk_is_told_and_leaves_nothing_behind(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, [1])
    with full_disk(monkeypatch), pytest.raises(WriteFailure, match="No space left"):
        add(store, [2])
    assert [path.suffix for path in (store.folder / MODEL).iterdir()] == [SUFFIX]
    assert only(store).tokens[0] == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriteFailure):
        add(SnapshotStore(tmp_path / "file" / "prefix", 1 << 20), [1])


def test_several_processes_and_threads_share_a_folder(tmp_path: Path) -> None:
    """Writers, readers and a bound that evicts all the time: every state read is one that was written."""
    store = SnapshotStore(tmp_path, 20_000)
    wrong: list[str] = []

    def write(seed: int) -> None:
        for n in range(60):
            tokens = [seed, n % 7]
            data = bytearray(bytes([seed, n % 7]) * 1000)
            place = Place(2, 0, len(data))
            store.write(
                model=MODEL, settings={}, title="", tokens=tokens, states=[(place, data)], prefill_s=0.0
            )

    def read() -> None:
        for _ in range(60):
            for snapshot in store.of_model(MODEL).snapshots:
                try:
                    (state,) = store.load(snapshot)
                except Damaged:  # removed between the search and the read
                    continue
                if bytes(state) != bytes(list(snapshot.tokens)) * 1000:
                    wrong.append(str(snapshot.tokens))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in (1, 2)]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert store.used_bytes() <= 20_000 + 2 * 3000  # two writers may pass the bound at the same moment


WRITER = """
import sys
from pathlib import Path
from llmrun.store.snapshot_file import Place
from llmrun.store.snapshots import SnapshotStore

store = SnapshotStore(Path(sys.argv[1]), 1 << 30)
print("begun", flush=True)
for n in range(10**6):
    data = bytearray(bytes([n % 251]) * 400_000)
    states = [(Place(2, 0, len(data)), data)]
    store.write(model="a" * 64, settings={}, title="", tokens=[n % 251, 1], states=states, prefill_s=0.0)
"""


def test_a_writer_killed_at_any_moment_leaves_no_wrong_hit(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, 1 << 30)
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begun\n"
            wait_until(lambda: bool(store.of_model(MODEL).snapshots))
            child.send_signal(signal.SIGKILL)
        found = store.of_model(MODEL)
        assert found.damaged == 0
        for snapshot in found.snapshots:
            (state,) = store.load(snapshot)
            assert set(bytes(state)) == {snapshot.tokens[0]}


def test_a_models_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    model, folder = tmp_path / "m.gguf", tmp_path / "prefix"
    model.write_bytes(b"weights")
    assert remembered_digest(ModelFiles.now([model]), folder) is None
    assert unknown_bytes(ModelFiles.now([model]), folder) == 7
    digest = compute_digest(ModelFiles.now([model]), folder)
    assert (
        remembered_digest(ModelFiles.now([model]), folder)
        == digest
        == compute_digest(ModelFiles.now([model]), folder)
    )
    assert unknown_bytes(ModelFiles.now([model]), folder) == 0

    before = model.stat()
    wait_for_a_new_time_stamp(model)
    model.write_bytes(b"WEIGHTS")
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a tool that hides its change would
    assert remembered_digest(ModelFiles.now([model]), folder) is None
    assert compute_digest(ModelFiles.now([model]), folder) != digest

    copy = tmp_path / "copy.gguf"
    copy.write_bytes(b"weights")
    assert remembered_digest(ModelFiles.now([copy]), folder) is None
    assert compute_digest(ModelFiles.now([copy]), folder) == digest


def test_the_digest_of_a_split_model_covers_all_its_parts(tmp_path: Path) -> None:
    parts = [tmp_path / f"{n}.gguf" for n in range(3)]
    for n, part in enumerate(parts):
        part.write_bytes(bytes([n]))
    whole = compute_digest(ModelFiles.now(parts), tmp_path)
    assert whole == remembered_digest(ModelFiles.now(parts), tmp_path)
    assert whole not in {compute_digest(ModelFiles.now([part]), tmp_path) for part in parts}
    assert whole != compute_digest(ModelFiles.now(parts[::-1]), tmp_path)
    parts[2].write_bytes(b"other")
    assert remembered_digest(ModelFiles.now(parts), tmp_path) is None
    assert compute_digest(ModelFiles.now(parts), tmp_path) != whole


def test_the_time_a_model_was_used_adds_up_until_its_file_changes(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    assert time_used(ModelFiles.now([model]), tmp_path, 1.5) == 1.5
    assert time_used(ModelFiles.now([model]), tmp_path, 2.0) == 3.5
    (kept,) = (tmp_path / "digests").iterdir()
    kept.write_text("nonsense")
    assert time_used(ModelFiles.now([model]), tmp_path, 1.0) == 1.0
    wait_for_a_new_time_stamp(model)
    model.write_bytes(b"others.")
    assert time_used(ModelFiles.now([model]), tmp_path, 0.25) == 0.25


def test_a_remembered_digest_that_is_none_is_not_believed(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    digest = compute_digest(ModelFiles.now([model]), tmp_path)
    (kept,) = (tmp_path / "digests").iterdir()
    kept.write_text("not a digest")
    assert remembered_digest(ModelFiles.now([model]), tmp_path) is None
    assert compute_digest(ModelFiles.now([model]), tmp_path) == digest


@pytest.mark.parametrize("how", ["renamed over it", "written to"])
def test_a_file_that_is_no_longer_the_one_that_was_opened_has_no_digest(tmp_path: Path, how: str) -> None:
    """K/V of the old weights must not be kept under the digest of the new ones."""
    model, new = tmp_path / "m.gguf", tmp_path / "new.gguf"
    model.write_bytes(b"weights")
    new.write_bytes(b"WEIGHTS")
    opened = ModelFiles.now([model])
    digest = compute_digest(opened, tmp_path)
    if how == "written to":
        wait_for_a_new_time_stamp(model)
        model.write_bytes(new.read_bytes())
    else:
        new.replace(model)
    assert not opened.unchanged
    assert remembered_digest(opened, tmp_path) is None
    with pytest.raises(Replaced):
        compute_digest(opened, tmp_path)
    assert compute_digest(ModelFiles.now([model]), tmp_path) != digest


@pytest.mark.parametrize("patience", [Patience(stopped=lambda: True), Patience(until_s=0.0)])
def test_hashing_and_writing_end_when_they_are_in_the_way(
    store: SnapshotStore, tmp_path: Path, patience: Patience
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    with pytest.raises(GaveUp):
        compute_digest(ModelFiles.now([model]), tmp_path, patience)
    assert remembered_digest(ModelFiles.now([model]), tmp_path) is None
    with pytest.raises(GaveUp) as gave_up:
        add(store, [1, 2, 3], patience=patience)
    assert gave_up.value.in_time is patience.stopped()
    assert list((store.folder / MODEL).iterdir()) == []


def test_a_search_opens_what_can_serve_it_and_few_others(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = list(range(HEAD_TOKENS))
    for n in range(40):
        add(store, [1000 + n, *common])
    wanted = [add(store, [*common, 5]), add(store, [*common, 6, 7])]
    for path in wanted:
        os.utime(path, (1, 1))  # not used for the longest time
    opened: list[Path] = []

    def count(path: Path) -> Snapshot:
        opened.append(path)
        return read_snapshot(path)

    monkeypatch.setattr(snapshots, "read_snapshot", count)
    found = store.of_model(MODEL, begin=[*common, 6, 7, 8])
    assert {*wanted} <= {one.path for one in found.snapshots}
    assert len(opened) == len(wanted) + MOST_OTHERS
    assert len(store.of_model(MODEL).snapshots) == 42
