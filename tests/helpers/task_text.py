"""The text of a small task file."""

TASK = '''"""{title}"""

import torch

batch_size = {batch_size}
{extra}

class Model(torch.nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.rand(batch_size)]


def get_init_inputs():
    return []
'''


def task_text(title: str = "A task.", batch_size: int = 64, extra: str = "") -> str:
    return TASK.format(title=title, batch_size=batch_size, extra=extra)
