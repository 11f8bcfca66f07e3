"""Speedups that the referee's clock gives on the tests' own GPU, beside the ratios of what kernels take there.

    python -m tests.helpers.gpu.clock --us 20 200 --ratio 1 2 --wait 0 2000

One kernel a call. `--us`: what the candidate's takes; `--ratio`: how many times as long the reference's does;
`--wait`: what it costs the host to wait for the device, in us, beside the wait: a part of each block that is no
call's. The host needs some 30 us to launch a kernel there, as torch pretends in Python; so kernels below that
are told by their launches, and "true" is the ratio of what calls take one after the other in a plain loop.
"""

import argparse
import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

from kernelwright.kernelbench.evaluator import EFFORTS, Measurement, Referee
from tests.helpers.gpu.busy_tasks import copying
from tests.helpers.gpu.evaluating import gpu_referee


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--us", type=float, nargs="+", default=[5, 20, 200, 1000, 5000])
    parser.add_argument("--ratio", type=float, nargs="+", default=[1.0, 1.2, 2.0, 10.0])
    parser.add_argument("--wait", type=float, nargs="+", default=[0, 500, 2000])
    parser.add_argument("--effort", choices=list(EFFORTS), default="quick")
    given = parser.parse_args()
    how = Measurement(("eager",), EFFORTS[given.effort])
    print(
        f"{'us':>7} {'ratio':>6} {'wait us':>8} {'measured':>9} {'error':>7} {'interval':>16}  clocks, reason"
    )
    for wait in given.wait:
        with (
            TemporaryDirectory() as folder,
            gpu_referee(Path(folder), Path(folder) / "cache") as (referee, page),
        ):
            page.sync_ns = int(1000 * wait)  # before there is a session, which learns what is usual
            for us, ratio in itertools.product(given.us, given.ratio):
                print(f"{us:7g} {ratio:6g} {wait:8g} {measured(referee, us, ratio, how)}", flush=True)


def measured(referee: Referee, us: float, ratio: float, how: Measurement) -> str:
    """Speedup of a candidate whose kernel takes `us`, that of the reference `ratio` times as long."""
    task, candidate = copying(us * ratio, us)
    found = referee.evaluate(task, candidate, how)
    eager = None if found.speedup is None else found.speedup.eager
    if eager is None:
        return f"{found.verdict.value}: {found.reason}"
    interval = f"{eager.low:7.3f} to {eager.high:5.3f}"
    clocks = found.timing.clocks_differ if found.timing is not None else None
    return (
        f"{eager.median:9.3f} {eager.median / ratio - 1:+7.1%} {interval}  {clocks or 0:.3f}, {found.reason}"
    )


if __name__ == "__main__":
    main()
