"""Find the lines of this tree that are new, for lint steps that leave older lines alone."""

import pathlib
import re
import subprocess

HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def git(root: pathlib.Path, *arguments: str) -> str:
    """Standard output of git, empty where the command fails."""
    command = ["git", "-c", "core.quotepath=off", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout if done.returncode == 0 else ""


def base(root: pathlib.Path) -> tuple[str, str]:
    """The revision to compare the working tree with, and a description of it.

    On a branch this is the merge base with `main`. On `main` itself, or without a `main`, it is the previous commit.
    """
    head = git(root, "rev-parse", "--verify", "HEAD").strip()
    for main in ("main", "origin/main"):
        fork = git(root, "merge-base", main, "HEAD").strip()
        if fork and fork != head:
            return fork, f"the merge base with {main} ({fork[:9]})"
    if previous := git(root, "rev-parse", "--verify", "HEAD~1").strip():
        return previous, f"the previous commit ({previous[:9]})"
    if git(root, "rev-parse", "--is-shallow-repository").strip() == "true":
        return head, f"{head[:9]}, for the clone is shallow: fetch more history to check commits"
    return EMPTY_TREE, "an empty tree"


def tracked(root: pathlib.Path) -> list[str]:
    """Files that git tracks or would track, by their paths from `root`."""
    return git(root, "ls-files", "-co", "--exclude-standard").splitlines()


def changed_lines(root: pathlib.Path, revision: str) -> dict[str, set[int]]:
    """Line numbers that were added or changed since `revision`, by file; uncommitted and untracked files count."""
    lines: dict[str, set[int]] = {}
    name = ""
    for line in git(root, "diff", "-U0", "-M", "--no-color", "--no-ext-diff", revision, "--").split("\n"):
        if line.startswith("+++ "):
            name = line.removeprefix("+++ ").removeprefix("b/").rstrip("\t")
        elif hunk := HUNK.match(line):
            start, count = int(hunk[1]), int(hunk[2] or 1)
            lines.setdefault(name, set()).update(range(start, start + count))
    for new in git(root, "ls-files", "-o", "--exclude-standard").splitlines():
        content = (root / new).read_bytes() if (root / new).is_file() else b""
        lines[new] = set(range(1, content.count(b"\n") + 2))
    return {name: added for name, added in lines.items() if added and name != "/dev/null"}
