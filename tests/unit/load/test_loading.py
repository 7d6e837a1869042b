"""Whole repositories, read with the git of this machine into a list."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from repositories import GitRepository

from counters.errors import InputError
from counters.load import Progress, Repository, Skip, load_repository
from counters.load.objects import OBJECT_TYPES, TARGET_TYPES, origin_key

EMPTY_SNAPSHOT = bytes.fromhex("1a8893e6a86f444e8be8e7bda6cb34fb1735a00e")


class ListSink:
    """Keeps what was written, for every object type by key."""

    def __init__(self) -> None:
        self.written: list[tuple[str, bytes]] = []
        self.values: dict[str, dict[bytes, Any]] = {object_type: {} for object_type in OBJECT_TYPES}
        self.flushed = 0

    def write(self, object_type: str, key: bytes, value: bytes | None) -> None:
        assert value is not None
        self.written.append((object_type, key))
        self.values[object_type][key] = msgspec.msgpack.decode(value)

    def flush(self, timeout: float) -> None:
        self.flushed = len(self.written)

    def keys(self) -> dict[str, set[bytes]]:
        """Keys of the objects that git stores, by git's types."""
        return {kind.decode(): set(self.values[object_type]) for kind, object_type in TARGET_TYPES.items()}

    def only(self, object_type: str) -> Any:
        """The one value of a type."""
        (value,) = self.values[object_type].values()
        return value


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture(params=["sha1", "sha256"])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> GitRepository:
    """Three commits, two branches, tags of everything that can be tagged, a symbolic link, a submodule."""
    repository = GitRepository.create(tmp_path / "repository", f"--object-format={request.param}")
    repository.commit({"README": "one\n", "src/a b\n.py": "1\n"})
    (repository.path / "link").symlink_to("README")
    repository.commit({"README": "two\n"})
    repository.git("branch", "side")
    head = repository.id("HEAD")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},submodule")
    repository.git("commit", "--quiet", "--message", "Add a submodule")
    for name, target in [
        ("v1", "HEAD"),
        ("v1-again", "v1"),
        ("tree", "HEAD^{tree}"),
        ("blob", "HEAD:README"),
    ]:
        repository.git("tag", "--annotate", "--message", name, name, target)
    repository.git("tag", "light", "HEAD~1")
    return repository


def test_the_published_keys_are_those_git_lists_as_reachable(
    repository: GitRepository, sink: ListSink
) -> None:
    report = load_repository(repository.path, sink)
    assert sink.keys() == repository.reachable()
    assert (report.skipped, report.exact, report.total) == ({}, True, len(sink.written))


def test_every_object_is_published_once_and_flushed_at_the_end(
    repository: GitRepository, sink: ListSink
) -> None:
    load_repository(repository.path, sink)
    assert len(set(sink.written)) == len(sink.written) == sink.flushed


def test_snapshot_and_origin_come_last(repository: GitRepository, sink: ListSink) -> None:
    load_repository(repository.path, sink)
    assert [object_type for object_type, _ in sink.written[-2:]] == ["snapshot", "origin"]


def test_values_say_what_git_says(repository: GitRepository, sink: ListSink) -> None:
    load_repository(repository.path, sink)
    head = sink.values["revision"][bytes.fromhex(repository.id("HEAD"))]
    root = sink.values["directory"][head["directory"]]
    entries = {entry["name"]: (entry["type"], entry["target"].hex()) for entry in root["entries"]}
    assert head["parents"] == [bytes.fromhex(repository.id("HEAD~1"))]
    assert head["author"]["fullname"] == b"Ada Example <ada@example.org>"
    assert head["committer"]["email"] == b"bo@example.org"
    assert entries == {
        b"README": ("file", repository.id("HEAD:README")),
        b"link": ("file", repository.id("HEAD:link")),
        b"src": ("dir", repository.id("HEAD:src")),
        b"submodule": ("rev", repository.id("HEAD~1")),
    }
    assert sink.values["content"][bytes.fromhex(repository.id("HEAD:README"))]["length"] == 4


def test_tags_are_releases_of_what_they_tag(repository: GitRepository, sink: ListSink) -> None:
    load_repository(repository.path, sink)
    targets = {release["name"]: release["target_type"] for release in sink.values["release"].values()}
    assert targets == {b"v1": "revision", b"v1-again": "release", b"tree": "directory", b"blob": "content"}


def test_the_snapshot_names_every_reference_and_what_it_points_at(
    repository: GitRepository, sink: ListSink
) -> None:
    report = load_repository(repository.path, sink)
    branches = sink.only("snapshot")["branches"]
    assert {name: branch["target_type"] for name, branch in branches.items()} == {
        b"HEAD": "alias",
        b"refs/heads/main": "revision",
        b"refs/heads/side": "revision",
        b"refs/tags/blob": "release",
        b"refs/tags/light": "revision",
        b"refs/tags/tree": "release",
        b"refs/tags/v1": "release",
        b"refs/tags/v1-again": "release",
    }
    assert branches[b"HEAD"]["target"] == b"refs/heads/main"
    assert branches[b"refs/heads/side"]["target"] == bytes.fromhex(repository.id("side"))
    assert sink.only("snapshot")["id"] == report.snapshot


def test_the_same_references_give_the_same_snapshot(repository: GitRepository, sink: ListSink) -> None:
    mirror = repository.clone(repository.path.with_name("mirror"), "--mirror")
    first = load_repository(repository.path, sink)
    assert load_repository(mirror.path, ListSink()).snapshot == first.snapshot


def test_a_fork_adds_only_what_is_new_in_it(repository: GitRepository, sink: ListSink) -> None:
    fork = repository.clone(repository.path.with_name("fork"))
    fork.commits = 10
    fork.commit({"README": "forked\n"})
    load_repository(repository.path, sink)
    load_repository(fork.path, sink)
    own, forked = repository.reachable(), fork.reachable()
    assert sink.keys() == {kind: own[kind] | forked[kind] for kind in own}


def test_unreachable_objects_are_not_published(repository: GitRepository, sink: ListSink) -> None:
    lost = repository.store("blob", b"never committed")
    load_repository(repository.path, sink)
    assert bytes.fromhex(lost) not in sink.values["content"]


def test_an_empty_repository_has_an_empty_snapshot_and_an_origin(tmp_path: Path, sink: ListSink) -> None:
    GitRepository.create(tmp_path / "empty")
    report = load_repository(tmp_path / "empty", sink)
    assert sink.only("snapshot") == {"id": EMPTY_SNAPSHOT, "branches": {}}
    assert sink.only("origin") == {"url": (tmp_path / "empty").as_uri()}
    assert report.total == 2


@pytest.fixture
def plain(tmp_path: Path) -> GitRepository:
    """Three commits with one file each."""
    repository = GitRepository.create(tmp_path / "plain")
    for number in range(3):
        repository.commit({f"file{number}": f"{number}\n"})
    return repository


def test_a_shallow_clone_ends_where_its_history_was_cut(plain: GitRepository, sink: ListSink) -> None:
    shallow = plain.clone(plain.path.with_name("shallow"), "--depth=1")
    report = load_repository(shallow.path, sink)
    assert sink.keys() == shallow.reachable()
    assert (report.objects["revision"], report.skipped) == (1, {})


def test_a_bare_repository_is_read_like_any_other(plain: GitRepository, sink: ListSink) -> None:
    bare = plain.clone(plain.path.with_name("bare.git"), "--bare")
    load_repository(bare.path, sink)
    assert sink.keys() == plain.reachable()


def test_a_linked_work_tree_leads_to_its_repository(plain: GitRepository, sink: ListSink) -> None:
    linked = plain.path.with_name("linked")
    plain.git("worktree", "add", "--quiet", "--detach", str(linked))
    load_repository(linked, sink)
    assert sink.keys() == plain.reachable()
    assert sink.only("origin") == {"url": plain.path.as_uri()}


def test_a_directory_in_a_work_tree_leads_to_its_repository(plain: GitRepository, sink: ListSink) -> None:
    (plain.path / "below").mkdir()
    load_repository(plain.path / "below", sink)
    assert sink.keys() == plain.reachable()


def test_a_detached_head_is_a_branch_of_its_own(plain: GitRepository, sink: ListSink) -> None:
    plain.git("checkout", "--quiet", "--detach")
    detached = plain.commit({"file": "detached\n"})
    load_repository(plain.path, sink)
    assert sink.only("snapshot")["branches"][b"HEAD"] == {
        "target": bytes.fromhex(detached),
        "target_type": "revision",
    }


def test_a_path_may_hold_spaces_and_newlines(plain: GitRepository, sink: ListSink) -> None:
    odd = plain.path.with_name("a b\nc\n")
    plain.path.rename(odd)
    load_repository(odd, sink)
    assert sink.only("origin") == {"url": odd.as_uri()}


def test_a_replaced_object_is_published_as_it_was(plain: GitRepository, sink: ListSink) -> None:
    replaced = bytes.fromhex(plain.id("HEAD:file0"))
    plain.git("replace", replaced.hex(), plain.store("blob", b"much longer than before"))
    load_repository(plain.path, sink)
    assert sink.values["content"][replaced]["length"] == 2


def test_the_environment_of_the_caller_leads_nowhere_else(
    plain: GitRepository, tmp_path: Path, sink: ListSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = GitRepository.create(tmp_path / "other")
    expected = plain.reachable()
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    load_repository(plain.path, sink)
    assert sink.keys() == expected


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a repository to somebody else")
def test_a_repository_of_somebody_else_can_be_read(plain: GitRepository, sink: ListSink) -> None:
    expected = plain.reachable()
    for path in (plain.path, plain.path / ".git"):
        os.chown(path, 12345, 12345)
    load_repository(plain.path, sink)
    assert sink.keys() == expected


def damage_object(repository: GitRepository, digits: str, damage: str) -> None:
    """Make a loose object ``removed``, ``garbage`` or ``truncated``."""
    file = repository.object_file(digits)
    data = file.read_bytes()
    file.unlink()
    if damage != "removed":
        file.write_bytes(b"garbage" if damage == "garbage" else data[: len(data) * 2 // 3])


@pytest.mark.parametrize("damage", ["removed", "garbage", "truncated"])
@pytest.mark.parametrize("name", ["HEAD~1^{tree}", "HEAD~1"])
def test_an_object_that_cannot_be_read_costs_itself_only(
    plain: GitRepository, sink: ListSink, name: str, damage: str
) -> None:
    expected = set[bytes]().union(*plain.reachable().values())
    lost = plain.id(name)
    plain.git("branch", "older", "HEAD~1")
    damage_object(plain, lost, damage)
    report = load_repository(plain.path, sink)
    assert expected - set[bytes]().union(*sink.keys().values()) == {bytes.fromhex(lost)}
    assert report.skipped == {Skip.MISSING: 1}
    assert len(set(sink.written)) == len(sink.written)


@pytest.mark.parametrize("damage", ["removed", "garbage"])
def test_a_lost_content_is_not_published_and_the_history_is_exact(
    plain: GitRepository, sink: ListSink, damage: str
) -> None:
    lost = plain.id("HEAD:file1")
    damage_object(plain, lost, damage)
    report = load_repository(plain.path, sink)
    assert bytes.fromhex(lost) not in sink.values["content"]
    assert (report.skipped, report.exact) == ({Skip.MISSING: 1}, True)


def test_a_branch_whose_commit_is_missing_leads_nowhere(plain: GitRepository, sink: ListSink) -> None:
    plain.git("branch", "older", "HEAD~1")
    damage_object(plain, plain.id("HEAD"), "removed")
    report = load_repository(plain.path, sink)
    branches = sink.only("snapshot")["branches"]
    assert branches[b"refs/heads/main"] is None
    assert branches[b"refs/heads/older"] is not None
    assert (report.objects["revision"], report.skipped, report.exact) == (2, {Skip.MISSING: 1}, True)


@pytest.mark.parametrize("broken", ["", "0" * 40, "not an identifier"])
def test_a_broken_reference_costs_itself_only(plain: GitRepository, sink: ListSink, broken: str) -> None:
    expected = plain.reachable()
    (plain.path / ".git/refs/heads/broken").write_text(f"{broken}\n")
    load_repository(plain.path, sink)
    assert sink.keys() == expected
    assert sink.only("snapshot")["branches"].keys() == {b"HEAD", b"refs/heads/main"}


def test_what_a_partial_clone_lacks_is_counted_and_not_fetched(plain: GitRepository, sink: ListSink) -> None:
    plain.git("config", "uploadpack.allowFilter", "true")
    partial = plain.clone(plain.path.with_name("partial"), "--filter=blob:none", "--bare")
    report = load_repository(partial.path, sink)
    assert (report.objects["content"], report.objects["directory"]) == (0, 3)
    assert (report.skipped, report.exact) == ({Skip.MISSING: 3}, True)


def test_a_repository_of_which_too_much_is_broken_is_refused(
    plain: GitRepository, sink: ListSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counters.load.repository.MAX_BROKEN", 1)
    for digits in [plain.id("HEAD"), plain.id("HEAD~1")]:
        damage_object(plain, digits, "truncated")
    with pytest.raises(InputError, match="git fsck"):
        load_repository(plain.path, sink)


def test_a_malformed_object_is_counted_and_not_published(plain: GitRepository, sink: ListSink) -> None:
    odd = plain.store("tag", b"object %s\ntype commit\n\nno name" % plain.id("HEAD").encode())
    # Git itself refuses to walk over it; where the history is broken, everything is listed.
    damage_object(plain, plain.id("HEAD~1"), "removed")
    report = load_repository(plain.path, sink)
    assert bytes.fromhex(odd) not in sink.values["release"]
    assert (report.skipped, report.exact) == ({Skip.MALFORMED: 1}, False)


def test_an_object_too_large_for_the_journal_is_counted_and_not_published(
    plain: GitRepository, sink: ListSink
) -> None:
    large = plain.commit({}, "word " * 500)
    report = load_repository(plain.path, sink, max_bytes=2_000)
    assert report.skipped == {Skip.TOO_LARGE: 1}
    assert bytes.fromhex(large) not in sink.values["revision"]


def test_the_origin_is_the_remote_without_credentials(plain: GitRepository, sink: ListSink) -> None:
    plain.git("remote", "add", "origin", "https://ada:secret@example.org/plain.git")
    report = load_repository(plain.path, sink)
    assert sink.values["origin"] == {
        origin_key("https://example.org/plain.git"): {"url": "https://example.org/plain.git"}
    }
    assert report.origin == "https://example.org/plain.git"


def test_a_remote_on_this_machine_is_published_as_a_url(plain: GitRepository, sink: ListSink) -> None:
    plain.git("remote", "add", "origin", "/srv/a b.git")
    assert load_repository(plain.path, sink).origin == "file:///srv/a%20b.git"


def test_an_origin_that_was_given_wins(plain: GitRepository, sink: ListSink) -> None:
    plain.git("remote", "add", "origin", "https://example.org/plain.git")
    report = load_repository(plain.path, sink, origin="https://token@example.net/x")
    assert report.origin == "https://example.net/x"


def test_progress_begins_with_listing_and_ends_with_everything(
    plain: GitRepository, sink: ListSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counters.load.git.PROGRESS_EVERY", 4)
    seen: list[Progress] = []
    load_repository(plain.path, sink, progress=seen.append)
    assert seen == [Progress(0, None), Progress(4, 11), Progress(8, 11), Progress(11, 11)]


def test_an_error_of_the_journal_ends_the_load_and_every_process(plain: GitRepository) -> None:
    class Full(ListSink):
        def write(self, object_type: str, key: bytes, value: bytes | None) -> None:
            raise BufferError

    with pytest.raises(BufferError) as failure:
        load_repository(plain.path, Full())
    # Whoever holds the error holds the frames of the load, and nothing is left to the garbage collector.
    assert failure.tb
    assert [child for child in psutil.Process().children() if child.name() == "git"] == []


def test_a_git_that_is_killed_is_not_taken_for_missing_objects(
    plain: GitRepository, sink: ListSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "bin" / "git"
    killed.parent.mkdir()
    killed.write_text(
        f'#!/bin/sh\ncase "$*" in *cat-file*) kill -9 $$;; esac\nexec {shutil.which("git")} "$@"\n'
    )
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", f"{killed.parent}:{os.environ['PATH']}")
    with pytest.raises(InputError, match="signal 9"):
        load_repository(plain.path, sink)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere: no such directory"):
        Repository.open(tmp_path / "nowhere")


def test_a_path_of_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    file = tmp_path / "afile"
    file.touch()
    with pytest.raises(InputError, match="afile: is a file; name the directory of a git repository"):
        Repository.open(file)


def test_a_directory_that_is_no_repository_is_named(tmp_path: Path, sink: ListSink) -> None:
    with pytest.raises(InputError, match="not a git repository"):
        load_repository(tmp_path, sink)
    assert sink.written == []


def test_a_machine_without_git_is_told_so(
    plain: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="git was not found"):
        Repository.open(plain.path)
