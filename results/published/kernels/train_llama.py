"""Trains a small Llama of Transformers with and without the kernels of a package, from the same seed.

    python results/published/kernels/train_llama.py PACKAGE FILE... --steps 300

PACKAGE is what `kernelwright export` wrote, installed or on the path; FILEs are the text that is learnt, byte by
byte. Prints what was replaced and how far the two trainings are from each other; a third, whose first weights
differ from the first's by a rounding, says how far that is by itself. Exits with 1 where logits or gradients of
the kernels, at the weights that the first training ends with, are further from float64 than allowed.
"""

import argparse
import copy
import sys
import time
from importlib import import_module
from pathlib import Path

import torch
from llama import Model, batch_size, get_init_inputs, tokens

ALLOWED = 4.0  # times the error that the model has without kernels


def batches(text, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - tokens - 1, (batch_size,), generator=generator).tolist()
        yield torch.stack([text[start : start + tokens + 1] for start in starts])


def loss_of(model, batch):
    logits = model(batch[:, :-1])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def trained(model, text, steps, name):
    """The loss at each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, began = [], time.perf_counter()
    for step, batch in enumerate(batches(text, steps), 1):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % max(1, steps // 6) == 0:
            print(f"{name}: step {step} of {steps}, loss {loss.item():.4f}", flush=True)
    print(f"{name}: {1e3 * (time.perf_counter() - began) / steps:.0f} ms a step")
    return losses


def at(model, weights, batch):
    """Logits and gradients with these weights."""
    model.load_state_dict(weights)
    model.zero_grad(set_to_none=True)
    logits = model(batch[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
    return {"logits": logits.detach(), "gradients": torch.cat([p.grad.flatten() for p in model.parameters()])}


def picture(path, losses):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(7, 5), height_ratios=(2, 1), layout="constrained"
    )
    styles = {"stock": ("C0", "-"), "drop-in": ("C1", "--"), "stock, rounded": ("C7", ":")}
    steps = range(1, len(losses["stock"]) + 1)
    for name, values in losses.items():
        colour, line = styles[name]
        above.plot(steps, values, line, color=colour, label=name)
        if name != "stock":
            away = [max(abs(a - b), 1e-9) for a, b in zip(values, losses["stock"], strict=True)]
            below.semilogy(steps, away, line, color=colour, label=name)
    above.set_ylabel("loss, nats a byte")
    above.legend()
    below.set_ylabel("from stock")
    below.set_xlabel("step")
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--picture", type=Path, help="loss curves, as SVG or PNG; takes matplotlib")
    asked = parser.parse_args()
    package = import_module(asked.package)
    text = torch.frombuffer(
        bytearray(b"".join(file.read_bytes() for file in asked.files)), dtype=torch.uint8
    ).long()

    torch.manual_seed(0)
    stock = Model(*get_init_inputs())
    dropped, rounded = copy.deepcopy(stock), copy.deepcopy(stock)
    print(package.apply(dropped))
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.mul_(1 + 2**-23)
    models = {"stock": stock, "drop-in": dropped, "stock, rounded": rounded}
    losses = {name: trained(model, text, asked.steps, name) for name, model in models.items()}
    for name in ("drop-in", "stock, rounded"):
        away = max(abs(a - b) for a, b in zip(losses[name], losses["stock"], strict=True))
        print(
            f"{name}: last loss {losses[name][-1]:.5f}, stock {losses['stock'][-1]:.5f}; at most {away:.2g} away"
        )
    if asked.picture:
        picture(asked.picture, losses)

    batch = next(batches(text, 1, seed=1))
    weights = copy.deepcopy(stock.state_dict())
    exact = at(copy.deepcopy(stock).double(), weights, batch)
    theirs, ours = at(stock, weights, batch), at(dropped, weights, batch)
    far = False
    for what, right in exact.items():
        errors = [(found[what].double() - right).abs().max().item() for found in (theirs, ours)]
        far |= errors[1] > ALLOWED * errors[0]
        print(f"{what} at the last weights, from float64: stock {errors[0]:.2g}, drop-in {errors[1]:.2g}")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
