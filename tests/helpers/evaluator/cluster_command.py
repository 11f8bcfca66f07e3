"""A command whose `--cluster` has evaluators that answer by what a candidate says, as in `cluster_nodes`.

`python -m tests.helpers.evaluator.cluster_command FOLDER WORDS` is `kernelwright WORDS` with such nodes.
"""

import sys
from functools import partial
from pathlib import Path

from kernelwright import cli
from kernelwright.agent.options import evaluation
from tests.helpers.evaluator.cluster_nodes import costly_slot


def main(folder: str, *words: str) -> None:
    evaluation.started_slot = partial(costly_slot, folder=Path(folder))
    sys.argv = ["kernelwright", *words]
    cli.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
