"""`bench expert_plans` on four ranks in two network namespaces, with a link of limited bandwidth between them.

usage: ./dev bench expert_plans_link [--link RATE] [OPTIONS OF expert_plans]

Two ranks are in each namespace, which is a node. RATE is as tc writes it (200mbit). Needs root. Rank 0 prints the
result and decides the exit code.
"""

import argparse
import subprocess
import sys

from link import Link

from runs import ROOT

RANKS, NODE = 4, 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", default="200mbit")
    options, rest = parser.parse_known_args()
    program = str(ROOT / "build/release/bin/bench_expert_plans")
    with Link(options.link) as link:
        ranks = []
        for rank in range(RANKS):
            node = rank // NODE
            numbers = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank % NODE, "LOCAL_WORLD_SIZE": NODE}
            environment = link.environment(node) | {name: str(value) for name, value in numbers.items()}
            ranks.append(subprocess.Popen(link.command(node, [program, *rest]), env=environment))
        codes = [process.wait() for process in ranks]
    sys.exit(codes[0] or max(codes))


if __name__ == "__main__":
    main()
