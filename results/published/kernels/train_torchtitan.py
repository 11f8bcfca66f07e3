"""Trains torchtitan's debug Llama on the CPU for a few steps, with and without a package's override for its norms.

    python results/published/kernels/train_torchtitan.py PACKAGE

PACKAGE is what `kernelwright export --format torchtitan --layer torchtitan.models.common.nn_modules.RMSNorm` wrote of
tasks/rms_norm.py.
"""

import argparse

import torch
from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry

batch_size, tokens = 8, 128


def llama(*overrides):
    config = model_registry("debugmodel").model
    for layer in config.layers:  # flex attention has no backward on the CPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    for line in apply_overrides(OverrideConfig(imports=list(overrides)), config):
        print(line)
    torch.manual_seed(0)
    model = config.build()
    model.init_states()
    return model


def trained(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        batch = torch.randint(0, 256, (batch_size, tokens + 1), generator=generator)
        optimizer.zero_grad()
        logits = model(batch[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    stock, dropped = llama(), llama(f"{asked.package}.titan.rmsnorm")
    names = [name for name, layer in dropped.named_modules() if type(layer).__name__ == "DropInRMSNorm"]
    print(f"{len(names)} norms are drop-ins")
    for step, pair in enumerate(
        zip(trained(stock, asked.steps), trained(dropped, asked.steps), strict=True), 1
    ):
        print("step {}: loss {:.6f} stock, {:.6f} with drop-ins".format(step, *pair))


if __name__ == "__main__":
    main()
