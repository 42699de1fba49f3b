"""Two network namespaces with a link of limited bandwidth between them, for benchmarks of two machines on one."""

import os
import subprocess
import sys

ADDRESSES = ("10.77.0.1", "10.77.0.2")
PORT, DEVICE = 29511, "wire"


class Link:
    """A link of `rate` (as tc writes it: "200mbit", "1gbit") in each direction. Making one needs root, ip and tc.

    Rank i of a job of two runs in namespace i: `command(i, words)` with `environment(i)`. The limit is a token bucket
    (tc-tbf) with a burst of 64 KiB. The kernel adds no latency of its own.
    """

    def __init__(self, rate: str):
        self.rate = rate
        self.names = [f"dovetail{os.getpid()}{side}" for side in "ab"]

    def __enter__(self) -> "Link":
        first, second = self.names
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            pair = ["type", "veth", "peer", "name", DEVICE, "netns", second]
            run("ip", "link", "add", "name", DEVICE, "netns", first, *pair)
            for name, address in zip(self.names, ADDRESSES, strict=True):
                run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
                for device in ("lo", DEVICE):
                    run("ip", "-n", name, "link", "set", device, "up")
                limit = ["rate", self.rate, "burst", "64kb", "latency", "400ms"]
                run("tc", "-n", name, "qdisc", "add", "dev", DEVICE, "root", "tbf", *limit)
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            reason = getattr(error, "stderr", None) or error
            sys.exit(f"bench: no link of {self.rate} can be made: {reason}; run as root, with iproute2")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:  # the link goes with its namespaces
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)

    def command(self, rank: int, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.names[rank], *words]

    def environment(self, rank: int) -> dict[str, str]:
        ranks = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "GROUP_RANK": rank}
        store = {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": PORT, "GLOO_SOCKET_IFNAME": DEVICE}
        return {**os.environ, **{name: str(value) for name, value in (ranks | store).items()}}


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)
