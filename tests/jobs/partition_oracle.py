"""The best partitions by integer programs, for partition_test.cpp: HiGHS through SciPy.

python partition_oracle.py PROGRAMS.json ENDS.json
"""

import json
import sys

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp


def end_of(grains: int, devices: list) -> float:
    """min T with T >= a z + b x of each device, x <= most z, sum x = grains; x whole, z 0 or 1."""
    if grains == 0:
        return 0.0
    a, b, most = (np.array(column, dtype=float) for column in zip(*devices, strict=True))
    n = len(devices)
    one, zero = np.eye(n), np.zeros((n, 1))
    result = milp(
        np.concatenate([np.zeros(2 * n), [1]]),
        integrality=np.concatenate([np.ones(2 * n), [0]]),
        bounds=Bounds(0, np.concatenate([most, np.ones(n), [np.inf]])),
        constraints=[
            LinearConstraint(np.hstack([one * b, one * a, zero - 1]), ub=0),
            LinearConstraint(np.hstack([one, -one * most, zero]), ub=0),
            LinearConstraint(np.concatenate([np.ones(n), np.zeros(n), [0]])[None], lb=grains, ub=grains),
        ],
        options={"mip_rel_gap": 1e-9},
    )
    assert result.success, result.message
    return float(result.fun)


def main():
    with open(sys.argv[1]) as file:
        programs = json.load(file)
    with open(sys.argv[2], "w") as file:
        json.dump([end_of(program["grains"], program["devices"]) for program in programs], file)


if __name__ == "__main__":
    main()
