"""Size and settings of a demo."""

from pydantic import Field

from kernelwright.kernelbench.evaluator import Effort
from kernelwright.kernelbench.records import Record

# Of each kernel; what it is picked for is measured afresh, in two other processes.
ONCE = Effort(rounds=8, processes=1, most_processes=1, half_width=0.1, block_share=0.2)
AFRESH = Effort(rounds=8, processes=2, most_processes=2, half_width=0.05, block_share=0.2)


class DemoSettings(Record):
    """Settings of a demo. Tuned with seeds from 100 on; reported results use the seeds from 0 on."""

    seeds: int = Field(default=3, gt=0)
    first_seed: int = Field(default=0, ge=0)
    data_seed: int = 0  # of tasks and of which structures are held out
    known_tasks: int | None = None  # that SFT has files of; None: all that are not held out
    files_a_task: int = Field(default=8, gt=0)
    rewarded_tasks: int | None = Field(default=None, gt=0)  # of these; None: all
    tried_tasks: int = Field(default=5, gt=0)  # rewarded ones, and as many held out
    held_sequences: int = Field(default=16, gt=0)
    every_schedule: bool = True  # is tried, to know the best
    layers: int = 3
    width: int = 64
    longest: int = 400  # tokens of a prompt and its file
    top_p: float = 0.95  # without, one unlikely token in a hundred spoils a file
    sft_steps: int = Field(default=1000, gt=0)
    sft_batch: int = Field(default=16, gt=0)
    sft_rate: float = 5e-3
    rl_steps: int = Field(default=40, gt=0)
    rl_rate: float = 3e-4  # with 1e-3 two of three seeds lost what SFT had
    rl_kl: float = 0.05  # weight of the divergence from the policy after SFT
    rl_save_every: int = 10
    batch: int = 32
    group: int = 8
    tries: tuple[int, ...] = (1, 2, 4, 16)  # n of best of n


# Everything runs, nothing is learned but two tasks by heart, four files of each, so that RL has something to
# measure and to choose from.
SHORT = DemoSettings(
    seeds=1,
    known_tasks=2,
    files_a_task=4,
    rewarded_tasks=2,
    tried_tasks=1,
    every_schedule=False,
    layers=2,
    width=64,
    sft_steps=300,
    sft_batch=4,
    sft_rate=5e-3,
    rl_steps=2,
    rl_save_every=1,
    batch=8,
    group=4,
    tries=(1, 2),
)
