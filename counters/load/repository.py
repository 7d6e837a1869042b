"""Reading a git repository through git itself: a fixed number of processes, whatever the repository holds.

Nothing here can wait for itself: every process reads its requests from a file, so that only its answers
travel through a pipe. Repositories are input that nobody vouches for: git is kept from fetching what is
missing, from substituting objects, and from listening to the environment of whoever started us.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Self, TypeVar

from counters.errors import InputError
from counters.load.objects import public_url

logger = logging.getLogger(__name__)

T = TypeVar("T")

ID_LENGTHS = {"sha1": 20, "sha256": 32}
"""Bytes of an object's identifier, by the repository's object format."""

MAX_BROKEN = 1_000
"""Objects on which git may die, per pass, before the repository counts as unreadable."""

READ_BUFFER = 1 << 20

_GIT = (
    "git",
    # A repository that belongs to somebody else is only read; nothing that its configuration names is run.
    *("-c", "safe.directory=*", "-c", "safe.bareRepository=all"),
    *("-c", "protocol.allow=never"),
)
_SETTINGS = {
    "LC_ALL": "C",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    # An object must be what its identifier says, not what refs/replace puts in its place.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


class GitError(Exception):
    """A git process ended badly; the message is the last line it wrote."""


class Reference(NamedTuple):
    """A reference and the object it leads to; ``alias`` names the reference it follows, or is empty."""

    name: bytes
    target: bytes
    alias: bytes


class Header(NamedTuple):
    """What git says about an object: identifier in hexadecimal, type, size in bytes.

    The type is ``b"missing"`` for an object that the repository should have and has not, or cannot read.
    """

    digits: bytes
    kind: bytes
    size: int


class IdList:
    """Identifiers in a temporary file, in lines of one width, so that reading can start at any of them."""

    def __init__(self, id_length: int) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=READ_BUFFER)  # noqa: SIM115
        self._digits = 2 * id_length
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, position: int) -> bytes:
        self._file.flush()
        return os.pread(self._file.fileno(), self._digits, position * (self._digits + 1))

    def append(self, digits: bytes) -> None:
        """Add an identifier, in hexadecimal."""
        if len(digits) != self._digits:
            raise GitError(f"git listed {digits!r}, which is no identifier of {self._digits} digits")
        self._file.write(digits + b"\n")
        self._count += 1

    def clear(self) -> None:
        """Forget every identifier."""
        self._file.seek(0)
        self._file.truncate()
        self._count = 0

    def open_at(self, position: int) -> IO[bytes]:
        """The file, for a process that is to read it from ``position`` on."""
        self._file.flush()
        os.lseek(self._file.fileno(), position * (self._digits + 1), os.SEEK_SET)
        return self._file


@dataclass(frozen=True, slots=True)
class Repository:
    """A git repository on this machine.

    Attributes:
        git_dir: what git calls it, absolute.
        object_format: ``sha1`` or ``sha256``.
        origin: URL of the remote ``origin`` without credentials, or the repository's own ``file://`` URL.
    """

    git_dir: Path
    object_format: str
    origin: str

    @classmethod
    def open(cls, path: Path) -> Repository:
        """The repository at ``path``: a work tree or a directory in it, a linked work tree, or a bare one.

        Raises:
            InputError: there is no such directory, it is no repository, or git cannot be run.
        """
        if path.is_file():
            raise InputError(f"{path}: is a file; name the directory of a git repository")
        if not path.is_dir():
            raise InputError(f"{path}: no such directory; name a git repository")
        parse = ("-C", str(path), "rev-parse", "--path-format=absolute")
        try:
            object_format = _output(*parse, "--show-object-format").decode().strip()
            git_dir = Path(os.fsdecode(_output(*parse, "--git-dir").removesuffix(b"\n")))
            common = Path(os.fsdecode(_output(*parse, "--git-common-dir").removesuffix(b"\n")))
        except GitError as error:
            raise InputError(f"{path}: not a git repository ({error})") from None
        if object_format not in ID_LENGTHS:
            raise InputError(f"{path}: object format {object_format}; known are {', '.join(ID_LENGTHS)}")
        return cls(git_dir, object_format, _origin(common))

    @property
    def id_length(self) -> int:
        """Bytes of an object's identifier."""
        return ID_LENGTHS[self.object_format]

    def references(self) -> list[Reference]:
        """Every reference and HEAD, as they are now. A HEAD whose branch is not born yet is left out."""
        listing = self._output("for-each-ref", "--format=%(refname) %(objectname) %(symref)")
        references = [Reference(*line.split(b" ")) for line in listing.splitlines()]
        try:
            head = self._output("rev-parse", "--quiet", "--verify", "HEAD").strip()
        except GitError:
            return references
        try:
            branch = self._output("symbolic-ref", "--quiet", "HEAD").strip()
        except GitError:
            branch = b""
        return [*references, Reference(b"HEAD", head, branch)]

    def list_reachable(self, references: list[Reference], ids: IdList) -> bool:
        """Fill ``ids`` with the objects of ``git rev-list --objects --all``; False if it got all there are.

        Objects that git knows to be missing are in the list too. Where a commit or tree in the middle is
        missing or corrupt, git cannot tell what is reachable: then all objects that are there are listed.

        The targets of ``references`` are given in addition to ``--all``, because they may have moved
        meanwhile and a snapshot must not name what was not published.

        Raises:
            GitError: git can list nothing at all.
        """
        walk = ("rev-list", "--objects", "--no-object-names", "--missing=print", "--ignore-missing")
        with IdList(self.id_length) as targets:
            for reference in references:
                targets.append(reference.target)
            try:
                with self._stream(*walk, "--all", "--stdin", stdin=targets.open_at(0)) as lines:
                    for line in lines:
                        ids.append(line.strip(b"?\n"))
                return True
            except GitError as error:
                logger.warning(
                    "git cannot walk the history of %s, listing every object: %s", self.git_dir, error
                )
        ids.clear()
        everything = ("cat-file", "--batch-all-objects", "--unordered", "--buffer")
        with self._stream(*everything, "--batch-check=%(objectname)") as lines:
            for line in lines:
                ids.append(line.strip())
        return False

    def headers(self, ids: IdList) -> Generator[Header, None, None]:
        """Type and size of every object in ``ids``, in order, without reading its data.

        Closing the generator ends its process, as it does for :meth:`objects`.

        Raises:
            GitError: more than ``MAX_BROKEN`` objects cannot be read.
        """
        return self._answers(ids, "--batch-check", _read_header, lambda header: header)

    def objects(self, ids: IdList) -> Generator[tuple[Header, bytes], None, None]:
        """Header and data of every object in ``ids``, in order.

        Raises:
            GitError: more than ``MAX_BROKEN`` objects cannot be read.
        """
        return self._answers(ids, "--batch", _read_object, lambda header: (header, b""))

    def _answers(
        self,
        ids: IdList,
        mode: str,
        read: Callable[[IO[bytes]], T | None],
        missing: Callable[[Header], T],
    ) -> Generator[T, None, None]:
        """What ``git cat-file`` answers, started again behind every object on which it died."""
        position = broken = 0
        while position < len(ids):
            try:
                with self._stream("cat-file", mode, "--buffer", stdin=ids.open_at(position)) as stream:
                    while (answer := read(stream)) is not None:
                        position += 1
                        yield answer
            except GitError as error:
                broken += 1
                if broken > MAX_BROKEN:
                    raise GitError(f"{broken} objects cannot be read, try git fsck ({error})") from None
                yield missing(Header(ids[position], b"missing", 0))
                position += 1
                continue
            if position < len(ids):
                raise GitError(f"git answered for {position} objects of {len(ids)}")

    def _output(self, *args: str) -> bytes:
        return _output(f"--git-dir={self.git_dir}", *args)

    @contextmanager
    def _stream(self, *args: str, stdin: IO[bytes] | None = None) -> Iterator[IO[bytes]]:
        """The answers of a git process, which ends with the block.

        Raises:
            GitError: the process failed, once the block has read everything.
            InputError: the process was killed.
        """
        command = [*_GIT, f"--git-dir={self.git_dir}", *args]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command,
                bufsize=READ_BUFFER,
                stdin=stdin or subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=_environment(),
            ) as process,
        ):
            assert process.stdout is not None
            try:
                yield process.stdout
            except BaseException:
                process.kill()
                raise
            if process.wait() < 0:
                # Answers that git had not written yet are lost with it: nobody knows at which object it was.
                raise InputError(
                    f"git was ended by signal {-process.returncode} in {self.git_dir}; load it again"
                )
            if process.returncode != 0:
                errors.seek(0)
                raise GitError(_last_line(errors.read(), process.returncode))


def _read_header(stream: IO[bytes]) -> Header | None:
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    digits, kind, *size = line.split()
    return Header(digits, kind, int(size[0]) if size else 0)


def _read_object(stream: IO[bytes]) -> tuple[Header, bytes] | None:
    header = _read_header(stream)
    if header is None or header.kind == b"missing":
        return header and (header, b"")
    data = stream.read(header.size + 1)
    return (header, data[:-1]) if len(data) == header.size + 1 else None


def _origin(common_dir: Path) -> str:
    try:
        url = os.fsdecode(_output(f"--git-dir={common_dir}", "config", "--get", "remote.origin.url")).rstrip(
            "\n"
        )
    except GitError:
        url = ""
    if url and not url.startswith("/"):
        return public_url(url)
    local = Path(url) if url else common_dir.parent if common_dir.name == ".git" else common_dir
    return local.as_uri()


def _environment() -> dict[str, str]:
    """Ours without what would direct git elsewhere (GIT_DIR, GIT_OBJECT_DIRECTORY, GIT_CONFIG_…)."""
    return {key: value for key, value in os.environ.items() if not key.startswith("GIT_")} | _SETTINGS


def _output(*args: str) -> bytes:
    """The output of a git command that says little.

    Raises:
        GitError: it failed.
        InputError: there is no git.
    """
    try:
        done = subprocess.run([*_GIT, *args], capture_output=True, env=_environment(), check=False)
    except FileNotFoundError:
        raise InputError("git was not found; install git 2.31 or later") from None
    if done.returncode != 0:
        raise GitError(_last_line(done.stderr, done.returncode))
    return done.stdout


def _last_line(errors: bytes, code: int) -> str:
    lines = errors.decode(errors="backslashreplace").splitlines()
    return re.sub(r"^(fatal|error): ", "", lines[-1]) if lines else f"git ended with {code}"
