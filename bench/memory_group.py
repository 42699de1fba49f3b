"""A control group for benchmarks that train within a given memory."""

import os
import pathlib
import sys

CGROUPS = pathlib.Path("/sys/fs/cgroup")


class MemoryGroup:
    """Processes that together get no more memory than `cap`, the page cache of their files counted.

    A control group of version 2 or 1, whichever has the memory controller; making one needs root.
    """

    def __init__(self, cap: int):
        name = f"dovetail_bench_{os.getpid()}"
        unified = [d for d in [CGROUPS, CGROUPS / "unified"] if "memory" in read(d / "cgroup.controllers").split()]
        legacy = CGROUPS / "memory"
        try:
            if unified:
                (unified[0] / "cgroup.subtree_control").write_text("+memory")
                self.folder, self.peak, limit = unified[0] / name, "memory.peak", "memory.max"
            elif (legacy / "memory.limit_in_bytes").exists():
                self.folder, self.peak, limit = legacy / name, "memory.max_usage_in_bytes", "memory.limit_in_bytes"
            else:
                raise OSError("no memory controller is mounted in /sys/fs/cgroup")
            self.folder.mkdir()
            (self.folder / limit).write_text(str(cap))
        except OSError as e:
            sys.exit(f"no memory control group can be made: {e}; run as root on a machine that has them")
        self.cap = int(read(self.folder / limit))

    def join(self) -> None:
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def own_bytes(self) -> int:
        """Memory that belongs to no file, now."""
        fields = dict(line.split() for line in read(self.folder / "memory.stat").splitlines())
        return int(fields["anon"] if "anon" in fields else fields["rss"])

    def peak_bytes(self) -> int | None:
        text = read(self.folder / self.peak)
        return int(text) if text else None

    def close(self) -> None:
        self.folder.rmdir()


def read(path: pathlib.Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
