"""Runs a stage of acceptance: `python -m tests.gpu.acceptance --help`."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.acceptance import packages
from tests.gpu.acceptance.records import Journal, Outcome, table

STAGE_S = 540.0  # of a stage: GPU time often comes in pieces of ten minutes


def main(words: Sequence[str] | None = None) -> int:
    """Return 1 if a check failed, 2 if something is missing."""
    given = _parser().parse_args(words)
    lacking = packages.missing([*packages.needed(), *(packages.TESTS if given.stage == 2 else ())])
    if lacking:
        print(f"error: {', '.join(lacking)} — {packages.HOW}", file=sys.stderr)
        return 2
    # With the packages it needs.
    from tests.gpu.acceptance import stage_1, stage_2, stage_3
    from tests.gpu.acceptance.bench import Bench, machine
    from tests.gpu.acceptance.running import outcome_of

    steps = (stage_1, stage_2, stage_3)[given.stage - 1].STEPS
    names = [step.name for step in steps]
    if unknown := set(given.only) - set(names):
        print(f"error: no step {', '.join(sorted(unknown))} — use of {', '.join(names)}", file=sys.stderr)
        return 2
    journal = Journal(given.out / f"stage-{given.stage}.jsonl")
    home = Path(os.environ.get("KERNELWRIGHT_HOME") or tempfile.mkdtemp(prefix="kernelwright-acceptance-"))
    bench = Bench(given.device, given.out, home, journal, given.small, given.without)
    passed = Journal(given.skip_passed).passed() if given.skip_passed else set()
    began, outcomes, checks = time.monotonic(), [], []
    for step in steps:
        if given.only and step.name not in given.only:
            continue
        print(f"== {step.name}: {step.what}", flush=True)
        begin, left_s = journal.size(), STAGE_S - (time.monotonic() - began)
        if step.name in passed:
            outcome = Outcome(step.name, "not tried", 0.0, "it passed before")
        elif given.device == "cpu" and not step.on_cpu:
            outcome = Outcome(step.name, "not tried", 0.0, "it needs a GPU")
        elif left_s < 1.0:
            outcome = Outcome(step.name, "not tried", 0.0, "the stage's time was over: --skip-passed goes on")
        else:
            outcome = outcome_of(step, bench.at(step.name), min(step.limit_s, left_s))
        journal.add(outcome)
        outcomes.append(outcome)
        checks.append(journal.checks(begin))
        print(f"== {step.name}: {outcome.state}, {outcome.seconds:.0f} s {outcome.why}", flush=True)
    command = f"python -m tests.gpu.acceptance {given.stage}"
    lines = [f"# Acceptance, stage {given.stage}", "", f"Made by `{command}` on {machine(given.device)}.", ""]
    lines += table(outcomes, checks)
    (given.out / f"stage-{given.stage}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(any(outcome.state == "failed" for outcome in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.gpu.acceptance", description="Acceptance of a GPU.")
    parser.add_argument("stage", type=int, choices=(1, 2, 3), help="does it run; is it right; how good is it")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, another GPU, or cpu for a dry run")
    parser.add_argument("--out", type=Path, default=Path("runs/acceptance"), help="folder of what is found")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="this step; repeatable")
    parser.add_argument(
        "--skip-passed", type=Path, metavar="FILE", help="stage-N.jsonl of a run to go on from"
    )
    parser.add_argument("--without", action="append", default=[], metavar="LAYER", help="of the sandbox")
    parser.add_argument("--small", action="store_true", help="sizes for a dry run, whose times say nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
