"""The Hugging Face cache: where it is, what it holds, and what may be removed from it."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import scan_cache_dir, try_to_load_from_cache
from hypothesis import given
from hypothesis import strategies as st

from llmrun.errors import NetworkFailure, UsageError, WriteFailure
from llmrun.store.download import download
from llmrun.store.hf_cache import (
    cached_files,
    cached_repos,
    current_commit,
    find_repo,
    hub_cache_dir,
    is_repo_name,
    partial_files,
    repo_folder,
    safe_parts,
)
from llmrun.store.hf_remove import remove
from llmrun.store.hub import Hub

from tests.support.hub import REPO, LoopbackHub

A, B = "a" * 40, "b" * 40
ENVIRONMENTS = [
    {},
    {"HF_HUB_CACHE": "/elsewhere/hub"},
    {"HF_HUB_CACHE": "~/models"},
    {"HF_HUB_CACHE": "$DISK/models"},
    {"HF_HUB_CACHE": ""},
    {"HF_HUB_CACHE": "relative/folder"},
    {"HUGGINGFACE_HUB_CACHE": "/old/place"},
    {"HUGGINGFACE_HUB_CACHE": "~/old", "HF_HUB_CACHE": "/new"},
    {"HF_HOME": "/hf"},
    {"HF_HOME": "~/hf/$DISK"},
    {"HF_HOME": ""},
    {"HF_HOME": "/hf", "HF_HUB_CACHE": "/cache"},
    {"HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"},
    {"XDG_CACHE_HOME": "/xdg"},
    {"XDG_CACHE_HOME": "~/xdg"},
    {"XDG_CACHE_HOME": "/xdg", "HF_HOME": "/hf"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=str)
def test_the_cache_is_where_the_hubs_client_has_it(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("DISK", "/big")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    source = Path(huggingface_hub.__file__).with_name("constants.py")
    spec = importlib.util.spec_from_file_location("constants_read_again", source)
    assert spec is not None
    assert spec.loader is not None
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    assert hub_cache_dir() == Path(theirs.HF_HUB_CACHE)


def test_the_cache_is_read_without_the_hubs_client() -> None:
    code = (
        "import sys; from llmrun.store.hf_cache import cached_repos, cached_files; cached_repos();"
        " cached_files('a/b'); print({'huggingface_hub', 'httpx2', 'filelock'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def put(root: Path, repo: str, commit: str, path: str, content: bytes, name: str = "") -> Path:
    """A file in the cache's layout; its blob is named after its content."""
    folder = repo_folder(repo, root)
    blob = folder / "blobs" / (name or hashlib.sha256(content).hexdigest())
    place = folder / "snapshots" / commit / path
    for parent in (blob.parent, place.parent):
        parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    place.symlink_to(os.path.relpath(blob, place.parent))
    return place


def point(root: Path, repo: str, commit: str) -> None:
    ref = repo_folder(repo, root) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def footprint(folder: Path) -> dict[str, int]:
    """Every file and link under a folder with the bytes it takes itself."""
    return {
        str(path.relative_to(folder)): 0 if path.is_symlink() else path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() or path.is_symlink()
    }


def test_files_of_the_current_commit_come_first(tmp_path: Path) -> None:
    old = put(tmp_path, REPO, A, "q4.gguf", b"old")
    new = put(tmp_path, REPO, B, "sub/q4.gguf", b"newer")
    point(tmp_path, REPO, B)
    found = cached_files(REPO, tmp_path)
    assert [(f.path, f.commit, f.current, f.size_bytes) for f in found] == [
        ("sub/q4.gguf", B, True, 5),
        ("q4.gguf", A, False, 3),
    ]
    assert [f.file for f in found] == [new, old]
    assert all(f.blob.read_bytes() == f.file.read_bytes() for f in found)
    assert current_commit(REPO, tmp_path) == B


def test_what_is_not_there_is_not_listed(tmp_path: Path) -> None:
    assert cached_repos(tmp_path / "none") == ()
    assert cached_files(REPO, tmp_path) == ()
    place = put(tmp_path, REPO, A, "q4.gguf", b"x")
    place.resolve().unlink()
    (tmp_path / "models--a--b").write_text("no folder")
    (tmp_path / "datasets--a--b").mkdir()
    (repo_folder(REPO, tmp_path) / "snapshots" / "not-a-commit").mkdir()
    assert cached_files(REPO, tmp_path) == ()
    assert cached_repos(tmp_path) == (REPO,)


def test_letter_case_of_a_repository_does_not_matter(tmp_path: Path) -> None:
    put(tmp_path, REPO, A, "x", b"x")
    assert find_repo(REPO.upper(), tmp_path) == REPO
    assert find_repo("other/one", tmp_path) == "other/one"


def test_a_reference_that_is_no_commit_is_none(tmp_path: Path) -> None:
    point(tmp_path, REPO, "../../etc")
    assert current_commit(REPO, tmp_path) == ""
    (repo_folder(REPO, tmp_path) / "refs" / "main").write_bytes(b"\xff\xfe")
    assert current_commit(REPO, tmp_path) == ""


@pytest.mark.parametrize("name", ["a/b", "A.b-c/d_e.f", "0/1", "user/Model-1.5B-GGUF"])
def test_names_of_repositories(name: str, tmp_path: Path) -> None:
    assert is_repo_name(name)
    assert repo_folder(name, tmp_path).name == "models--" + name.replace("/", "--")


@pytest.mark.parametrize(
    "name", ["", "a", "a/", "/b", "a/b/c", "../b", "a/..", "a/b\n", "a/b--c", "a b/c", "-a/b", "a/."]
)
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    assert not is_repo_name(name)
    with pytest.raises(UsageError):
        repo_folder(name, tmp_path)


@pytest.mark.parametrize(
    "path",
    ["x.gguf", "a/b/c.gguf", "My Модель (v2) 模型.gguf", "-x.gguf", "ab:c.gguf", "..x", "x..", "a/.git"],
)
def test_unusual_names_are_safe(path: str) -> None:
    assert "/".join(safe_parts(path)) == path


@given(
    st.lists(
        st.sampled_from(["..", ".", "", "a", "/", "\\", "C:", "\0", "\x1b", "\x7f", "b.gguf"]), max_size=6
    )
)
def test_a_safe_name_stays_below_its_folder(components: list[str]) -> None:
    for path in ("/".join(components), "".join(components)):
        try:
            parts = safe_parts(path)
        except NetworkFailure:
            continue
        assert ".." not in parts
        assert os.path.normpath(Path("/cache", *parts)) == f"/cache/{path}"


def test_partial_downloads_are_told_with_what_is_known_of_them(tmp_path: Path) -> None:
    blobs = repo_folder(REPO, tmp_path) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'1' * 64}.incomplete").write_bytes(b"12345")
    (blobs / f"{'1' * 64}.incomplete.json").write_text('{"path": "q4.gguf", "size_bytes": 99}')
    (blobs / f"{'2' * 64}.0a1b2c3d.incomplete").write_bytes(b"123")
    (blobs / f"{'3' * 64}.downloadInProgress").write_bytes(b"1")
    (blobs / f"{'4' * 64}.incomplete").write_bytes(b"")
    (blobs / f"{'4' * 64}.incomplete.json").write_text('["no", "note"]')
    found = [(p.path, p.size_bytes, p.total_bytes) for p in partial_files(REPO, tmp_path)]
    assert found == [("q4.gguf", 5, 99), ("", 3, None), ("", 1, None), ("", 0, None)]
    assert cached_files(REPO, tmp_path) == ()


# -- removing -----------------------------------------------------------------------------------------------


def test_shared_content_stays_until_the_last_entry_goes(tmp_path: Path) -> None:
    put(tmp_path, REPO, A, "one.gguf", b"shared" * 100)
    put(tmp_path, REPO, A, "two.gguf", b"shared" * 100)
    put(tmp_path, REPO, B, "one.gguf", b"updated")
    point(tmp_path, REPO, B)
    first = remove(REPO, {"one.gguf"}, tmp_path)
    assert first.paths == ("one.gguf",)
    assert (first.freed_bytes, first.shared_bytes) == (len(b"updated"), 600)
    (left,) = cached_files(REPO, tmp_path)
    assert left.file.read_bytes() == b"shared" * 100
    assert not (repo_folder(REPO, tmp_path) / "snapshots" / B).exists()
    second = remove(REPO, {"two.gguf"}, tmp_path)
    assert second.freed_bytes >= 600
    assert footprint(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_other_files_and_other_repositories_stay(tmp_path: Path) -> None:
    put(tmp_path, "maker/other", A, "x.gguf", b"x")
    put(tmp_path, REPO, A, "README.md", b"# readme")
    before = footprint(tmp_path)
    put(tmp_path, REPO, A, "q/x.gguf", b"x" * 50)
    assert remove(REPO, {"q/x.gguf"}, tmp_path).freed_bytes == 50
    assert footprint(tmp_path) == before
    assert remove(REPO, {"absent"}, tmp_path).paths == ()
    assert footprint(tmp_path) == before


def test_freed_bytes_are_what_the_folder_lost(tmp_path: Path) -> None:
    for number, commit in itertools.product(range(3), (A, B)):
        put(tmp_path, REPO, commit, f"{number}.gguf", b"%d %s" % (number, commit[: 20 * number].encode()))
    while paths := {entry.path for entry in cached_files(REPO, tmp_path)}:
        before = sum(footprint(tmp_path).values())
        freed = remove(REPO, {min(paths)}, tmp_path).freed_bytes
        assert before - sum(footprint(tmp_path).values()) == freed


def test_content_shared_between_repositories_goes_with_the_last_link(tmp_path: Path) -> None:
    xet = "ab" + "0" * 62
    store = tmp_path / "blobs" / "ab" / xet
    for repo in ("maker/one", "maker/two"):
        place = put(tmp_path, repo, A, "x.gguf", b"x" * 10)
        blob = place.resolve()
        store.parent.mkdir(parents=True, exist_ok=True)
        os.replace(blob, store)
        blob.symlink_to(os.path.relpath(store, blob.parent))
    store.with_name(xet + ".refs").write_text("")
    assert remove("maker/one", {"x.gguf"}, tmp_path).freed_bytes == 0
    (left,) = cached_files("maker/two", tmp_path)
    assert left.file.read_bytes() == b"x" * 10
    assert remove("maker/two", {"x.gguf"}, tmp_path).freed_bytes >= 10
    assert not store.exists()


def test_a_link_that_leads_elsewhere_never_takes_the_file_along(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"precious")
    root = tmp_path / "hub"
    place = put(root, REPO, A, "x.gguf", b"x")
    place.unlink()
    place.symlink_to(mine)
    remove(REPO, {"x.gguf"}, root)
    assert mine.read_bytes() == b"precious"
    assert not place.is_symlink()


def test_a_broken_off_download_goes_with_its_note(tmp_path: Path) -> None:
    blobs = repo_folder(REPO, tmp_path) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'1' * 64}.incomplete").write_bytes(b"12345")
    (blobs / f"{'1' * 64}.incomplete.json").write_text('{"path": "q4.gguf", "size_bytes": 99}')
    (blobs / f"{'2' * 64}.incomplete").write_bytes(b"1")
    (blobs / f"{'2' * 64}.incomplete.json").write_text('{"path": "q8.gguf", "size_bytes": 99}')
    assert remove(REPO, {"q4.gguf"}, tmp_path).freed_bytes == 5
    assert [p.path for p in partial_files(REPO, tmp_path)] == ["q8.gguf"]
    assert remove(REPO, {"q8.gguf"}, tmp_path).paths == ("q8.gguf",)
    assert list(tmp_path.iterdir()) == []


def test_a_download_under_way_is_not_removed(tmp_path: Path) -> None:
    blobs = repo_folder(REPO, tmp_path) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{'1' * 64}.incomplete").write_bytes(b"12345")
    (blobs / f"{'1' * 64}.incomplete.json").write_text('{"path": "q4.gguf", "size_bytes": 99}')
    lock = tmp_path / ".locks" / repo_folder(REPO).name / f"{'1' * 64}.lock"
    lock.parent.mkdir(parents=True)
    code = (
        "import sys; from huggingface_hub.utils import WeakFileLock\n"
        "with WeakFileLock(sys.argv[1]): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(WriteFailure, match="right now"):
            remove(REPO, {"q4.gguf"}, tmp_path)
        assert partial_files(REPO, tmp_path)
        holder.communicate("")
    assert remove(REPO, {"q4.gguf"}, tmp_path).freed_bytes == 5


# -- the Hub's own client ------------------------------------------------------------------------------------


def test_the_client_finds_what_llmrun_fetched_and_counts_it_right(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(5000)
    server.add("q/x.gguf", content)
    server.add("config.json", b"{}", large=False)
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    list(download(hub, listing, listing.files))
    root = hub_cache_dir()
    found = try_to_load_from_cache(REPO, "q/x.gguf", cache_dir=root)
    assert isinstance(found, str)
    assert Path(found).read_bytes() == content
    scan = scan_cache_dir(root)
    assert not scan.warnings
    (repo,) = scan.repos
    assert (repo.repo_id, repo.size_on_disk, repo.nb_files) == (REPO, 5002, 2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    offline = huggingface_hub.hf_hub_download(REPO, "q/x.gguf", cache_dir=root)
    assert Path(offline) == next(f.file for f in cached_files(REPO) if f.path == "q/x.gguf")


def test_llmrun_finds_what_the_client_fetched_and_fetches_it_no_second_time(
    server: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    content = os.urandom(5000)
    server.add("q/x.gguf", content)
    root = hub_cache_dir()
    theirs = huggingface_hub.hf_hub_download(REPO, "q/x.gguf", endpoint=server.endpoint, cache_dir=root)
    (found,) = cached_files(REPO)
    assert str(found.file) == theirs
    assert found.current
    asked = len(server.bodies())
    hub = Hub(server.endpoint)
    listing = hub.listing(REPO)
    list(download(hub, listing, listing.files))
    assert len(server.bodies()) == asked
    remove(REPO, {"q/x.gguf"})
    assert footprint(repo_folder(REPO).parent).keys() <= {"CACHEDIR.TAG"}
