"""One of several processes of a training, whose replies depend on their place in the whole batch alone."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_TOKENS = 12  # of a reply


def launch(processes: int, model: Path, out: Path, **changed: object) -> str:
    """Train in so many processes, as torchrun starts them, and return what they print.

    `changed`: settings; `pays`: of the n-th reply, as of `Paying`.
    """
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", __name__, str(model), str(out), json.dumps(changed)]
    made = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return made.stdout


def main() -> None:
    import torch

    from kernelwright.rl_training.trainers import online, online_run
    from kernelwright.rl_training.trainers.processes import rank
    from tests.helpers.rl_training.reading_pool import Paying, ReadingPool, run, settings

    model, out, changed = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    pays = changed.pop("pays", None)
    pool = Paying(lambda n: pays[n % len(pays)]) if pays else ReadingPool()

    class Scripted(online.OnlineTrainer):
        def _completed(self, prompts: Sequence[Sequence[int]], greedy: Sequence[bool]) -> list[Any]:
            first = rank() * len(self._rows) // self.settings.turns
            made = []
            for place, prompt in enumerate(prompts, first):
                drawn = torch.Generator().manual_seed(1000 * self.state.global_step + place)
                ids = torch.randint(20, len(self._tokenizer), (_TOKENS,), generator=drawn).tolist()
                made.append(online._Generated(list(prompt), ids, None))
            return made

    online_run.OnlineTrainer = Scripted  # type: ignore[misc]
    torch.manual_seed(0)
    done = run(settings(model, **changed), out, pool)
    print(f"process {rank()}: {done.steps} steps, {len(pool.seen)} replies graded")


if __name__ == "__main__":
    main()
