"""Small git repositories with fixed dates and invented people."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_AUTHOR_NAME": "Ada Example",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Bo Example",
    "GIT_COMMITTER_EMAIL": "bo@example.org",
}
START = 1_700_000_000


@dataclass(slots=True)
class GitRepository:
    """A repository of a test, and what git says about it."""

    path: Path
    commits: int = 0

    @classmethod
    def create(cls, path: Path, *options: str) -> GitRepository:
        """An empty repository; ``options`` are those of ``git init``."""
        path.mkdir(parents=True)
        repository = cls(path)
        repository.git("init", "--quiet", "--initial-branch=main", *options)
        return repository

    def clone(self, path: Path, *options: str) -> GitRepository:
        """A clone of this repository; ``options`` are those of ``git clone``."""
        self.git("clone", "--quiet", "--no-local", *options, self.path.as_uri(), str(path))
        return GitRepository(path, self.commits)

    def git(self, *args: str, stdin: bytes = b"") -> bytes:
        """Run git in this repository; what it printed, without the last newline."""
        date = f"{START + 60 * self.commits} +0100"
        environment = {**os.environ, **_ENVIRONMENT, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        done = subprocess.run(
            ["git", "-C", str(self.path), *args],
            input=stdin,
            capture_output=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.removesuffix(b"\n")

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Write and commit ``files``; the commit's identifier in hexadecimal."""
        for name, text in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        self.commits += 1
        return self.id("HEAD")

    def id(self, name: str) -> str:
        """The identifier of what ``name`` means to git, in hexadecimal."""
        return self.git("rev-parse", name).decode()

    def store(self, kind: str, data: bytes) -> str:
        """Store an object as it is, well formed or not; its identifier in hexadecimal."""
        return self.git("hash-object", "-t", kind, "-w", "--stdin", "--literally", stdin=data).decode()

    def object_file(self, digits: str) -> Path:
        """The file of a loose object."""
        return self.path / ".git" / "objects" / digits[:2] / digits[2:]

    def reachable(self) -> dict[str, set[bytes]]:
        """Identifiers of ``git rev-list --objects --all``, for every type of git."""
        ids = self.git("rev-list", "--objects", "--no-object-names", "--all")
        found: dict[str, set[bytes]] = {"blob": set(), "tree": set(), "commit": set(), "tag": set()}
        for line in self.git("cat-file", "--batch-check", stdin=ids + b"\n" if ids else b"").splitlines():
            digits, kind, _ = line.decode().split()
            found[kind].add(bytes.fromhex(digits))
        return found
