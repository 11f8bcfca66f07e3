"""What the demo's policy reads of a conversation."""

from kernelwright.rl_training.demo.tokenizer import shown

TASK = "# The task: drawn:relu\n```python\nh = torch.relu(x)\n```\n\n"
RULES = {"role": "system", "content": "You are an expert in C++ kernels. The machine has 2 threads."}


def asked(machine: str) -> list[dict[str, str]]:
    return [RULES, {"role": "user", "content": f"{TASK}# The machine\n{machine}\n\nWrite `ModelNew`.\n"}]


def test_nothing_that_is_measured_of_the_machine() -> None:
    slow, fast = (
        asked("Memory is copied at 9 GB/s.\nA call takes 55 us."),
        asked("Memory is copied at 90 GB/s."),
    )
    assert shown(slow) == shown(fast) == f"{TASK}Write `ModelNew`.\n"


def test_replies_and_what_is_said_of_them() -> None:
    after = [
        {"role": "assistant", "content": "```python\nfirst\n```\n"},
        {"role": "user", "content": "BuildError: no such variable\n\nMend it."},
    ]
    read = shown([*asked("2 threads"), *after])
    assert "first" in read and read.endswith("BuildError: no such variable\n\nMend it.")
