"""One of several processes of a training, whose replies depend on their place in the whole batch alone."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_TOKENS = 12  # of a reply


# What `accelerate launch` sets for a configuration with FSDP2.
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}

ZERO = {"DS_ACCELERATOR": "cpu"}


def launch(
    processes: int,
    model: Path,
    out: Path,
    environment: Mapping[str, str] | None = None,
    **changed: object,
) -> str:
    """Train in so many processes, as torchrun starts them, and return what they print.

    `changed`: settings; `pays`: of the n-th reply, as of `Paying`; `samples`: whether replies are the
    policy's own. `environment`: as `accelerate launch` sets it, of FSDP for one.
    """
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command += ["-m", __name__, str(model), str(out), json.dumps(changed)]
    made = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""} | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert made.returncode == 0, made.stderr[-3000:]
    return made.stdout


def _shard_on_cpus() -> None:
    """Let accelerate shard over processes without GPUs: it does so for GPUs alone, torch for any device."""
    from accelerate import PartialState
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    begin = AcceleratorState.__init__

    def begin_sharded(self: Any, mixed_precision: Any = None, cpu: bool = False, **given: Any) -> None:
        here = PartialState(cpu)._shared_state
        if here["distributed_type"] is DistributedType.MULTI_CPU:
            here["distributed_type"] = DistributedType.MULTI_GPU
        begin(self, mixed_precision, cpu, **given)
        here["distributed_type"] = self.distributed_type

    AcceleratorState.__init__ = begin_sharded


def _deepspeed_on_cpus() -> None:
    """Let accelerate use DeepSpeed over gloo: it takes processes without GPUs for one alone, or leaves it out."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    PartialState._prepare_backend = lambda *_, **__: ("gloo", DistributedType.MULTI_CPU)


def main() -> None:
    import torch

    from kernelwright.rl_training.trainers import online, online_run
    from kernelwright.rl_training.trainers.processes import rank
    from tests.helpers.rl_training.reading_pool import Paying, ReadingPool, run, settings

    model, out, changed = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    pays, samples = changed.pop("pays", None), changed.pop("samples", False)
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

    if not samples:
        online_run.OnlineTrainer = Scripted  # type: ignore[misc]
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        _shard_on_cpus()
    if "deepspeed" in changed:
        _deepspeed_on_cpus()
    torch.manual_seed(0)
    done = run(settings(model, **changed), out, pool)
    print(f"process {rank()}: {done.steps} steps, {len(pool.seen)} replies graded")


if __name__ == "__main__":
    main()
