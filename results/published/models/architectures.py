"""Fifteen architectures of Transformers, small and with random weights, with kernels for their parts.

    python results/published/models/architectures.py llama PACKAGE checks.json

Holds a model with a package's kernels against the model without: loss and gradients of a step, under
autocast, with LoRA, with checkpointing, the tokens that it generates, in two processes (DDP, FSDP2), and
compiled as one graph at three sizes. Adds each check to the file when it is done, and leaves out those that
are there: "ok", or what differs; "-" for what the architecture does not do; calls by kernels and by layers.
"""

import copy
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn

WORDS = 512
SIZES = ((2, 32), (3, 40), (1, 48))  # batch, length
Batch = Callable[[int, int], dict[str, Tensor]]
_COMMON = {
    "vocab_size": WORDS,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}
_GROUPED = {**_COMMON, "num_key_value_heads": 2, "head_dim": 32}
_GPT = {"vocab_size": WORDS, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128}
_BERT = {**_COMMON, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_T5 = {
    "vocab_size": WORDS,
    "d_model": 128,
    "d_ff": 256,
    "d_kv": 32,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
_BART = {
    "vocab_size": WORDS, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.0,
    "max_position_embeddings": 128,
}  # fmt: skip
_VIT = {**_BERT, "image_size": 32, "patch_size": 8, "num_labels": 16}
_FORMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("Llama", "ForCausalLM", _GROUPED),
    "mistral": ("Mistral", "ForCausalLM", _GROUPED),
    "qwen2": ("Qwen2", "ForCausalLM", _GROUPED),
    "qwen3": ("Qwen3", "ForCausalLM", _GROUPED),
    "gemma": ("Gemma", "ForCausalLM", _GROUPED),
    "gemma2": ("Gemma2", "ForCausalLM", {**_GROUPED, "attn_implementation": "eager"}),
    "phi3": ("Phi3", "ForCausalLM", {**_GROUPED, "resid_pdrop": 0.0}),
    "olmo2": ("Olmo2", "ForCausalLM", _GROUPED),
    "gpt_neox": ("GPTNeoX", "ForCausalLM", _COMMON),
    "gpt2": ("GPT2", "LMHeadModel", {**_GPT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "bert": ("Bert", "ForMaskedLM", _BERT),
    "roberta": ("Roberta", "ForMaskedLM", _BERT),
    "t5": ("T5", "ForConditionalGeneration", _T5),
    "bart": ("Bart", "ForConditionalGeneration", _BART),
    "vit": ("ViT", "ForImageClassification", _VIT),
}
ARCHITECTURES = tuple(_FORMS)
_ENCODERS = ("bert", "roberta", "vit")  # which generate nothing


def built(name: str) -> tuple[nn.Module, Batch]:
    """Return a model and what makes its batches."""
    config, kind, settings = _FORMS[name]
    torch.manual_seed(0)
    model = getattr(transformers, config + kind)(getattr(transformers, f"{config}Config")(**settings))

    def batch(batch: int, length: int) -> dict[str, Tensor]:
        if name == "vit":
            return {"pixel_values": torch.randn(batch, 3, 32, 32), "labels": torch.randint(16, (batch,))}
        tokens = torch.randint(3, WORDS, (batch, length))
        return {"input_ids": tokens, "labels": tokens.clone()}

    return model.train(), batch


for _name in ARCHITECTURES:  # as `kernelwright extract FILE.py:NAME` finds them
    globals()[_name] = partial(built, _name)


def step(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the loss and the gradients, by the parameters' names."""
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    named = {name.replace("module.", ""): each.grad for name, each in model.named_parameters()}
    whole = {name: each for name, each in named.items() if each is not None}
    return {"loss": loss.detach()} | {
        name: getattr(each, "full_tensor", lambda e=each: e)() for name, each in whole.items()
    }


def unlike(ours: dict[str, Tensor], theirs: dict[str, Tensor], exact: dict[str, Tensor]) -> str:
    """Describe the first result that is further from the exact one than stock's by more than a rounding."""
    if ours.keys() != theirs.keys():
        return f"gradients of other weights: {sorted(ours.keys() ^ theirs.keys())[0]}"
    for name, right in exact.items():
        right = right.double()
        error, other = (float((each[name].double() - right).norm()) for each in (ours, theirs))
        if not error <= 4 * other + 1e-5 * float(right.norm()) + 1e-9:
            return f"{name} is {error:.2g} from float64, stock {other:.2g}"
    return "ok"


def of_float64(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    wide = copy.deepcopy(model).double()
    return step(wide, {n: each.double() if each.is_floating_point() else each for n, each in batch.items()})


class _Architecture:
    """A model, with kernels and without: functions are replaced for all models, so one after the other."""

    def __init__(self, name: str, package: Path) -> None:
        self.name, self.package = name, imported(package)
        self.stock, self.batch_of = built(name)
        torch.manual_seed(1)
        self.batch = self.batch_of(*SIZES[0])

    @contextmanager
    def with_kernels(self) -> Iterator[nn.Module]:
        model = copy.deepcopy(self.stock)
        self.package.apply(model)
        try:
            yield model
        finally:
            self.package.remove(model)

    def held(self, run: Callable[[nn.Module], dict[str, Tensor]], exact: dict[str, Tensor]) -> str:
        """Hold what is run with kernels against the same without."""
        theirs = run(copy.deepcopy(self.stock))
        with self.with_kernels() as model:
            ours = run(model)
        return unlike(ours, theirs, exact)

    def step(self) -> str:
        return self.held(lambda model: step(model, self.batch), of_float64(self.stock, self.batch))

    def autocast(self) -> str:
        def run(model: nn.Module) -> dict[str, Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                return step(model, self.batch)

        return self.held(run, of_float64(self.stock, self.batch))

    def lora(self) -> str:
        from peft import LoraConfig, get_peft_model

        def adapted(model: nn.Module) -> nn.Module:
            torch.manual_seed(2)
            wanted = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
            return get_peft_model(model, wanted).train()

        exact = of_float64(adapted(copy.deepcopy(self.stock)), self.batch)
        return self.held(lambda model: step(adapted(model), self.batch), exact)

    def checkpointing(self) -> str:
        def run(model: nn.Module) -> dict[str, Tensor]:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            return step(model, self.batch)

        return self.held(run, of_float64(self.stock, self.batch))

    def compiled(self) -> str:
        batches = [self.batch_of(*size) for size in SIZES]
        plain = [(step(self.stock, batch), of_float64(self.stock, batch)) for batch in batches]
        with self.with_kernels() as model:
            whole = torch.compile(model, fullgraph=True)
            steps = [step(whole, batch) for batch in batches]
        for size, ours, (theirs, exact) in zip(SIZES, steps, plain, strict=True):
            ours = {name.replace("_orig_mod.", ""): each for name, each in ours.items()}
            if (found := unlike(ours, theirs, exact)) != "ok":
                return f"at {size}: {found}"
        return "ok"

    def generate(self) -> str:
        if self.name in _ENCODERS:
            return "-"

        def tokens(model: nn.Module) -> Tensor:
            model.eval()
            return model.generate(self.batch["input_ids"], max_new_tokens=8, do_sample=False)

        theirs = tokens(copy.deepcopy(self.stock))
        with self.with_kernels() as model:
            ours = tokens(model)
        return "ok" if torch.equal(ours, theirs) else "other tokens"

    def calls(self) -> tuple[int, int]:
        """Return the calls of one step that kernels compute, and those that replaced layers do."""
        with self.with_kernels() as model:
            step(model, self.batch)
            layers = self.package.report(model).layers.values()
            by = [
                sum(sum(getattr(each, kind).values()) for each in layers)
                for kind in ("by_kernel", "by_layer")
            ]
        return by[0], by[1]


def imported(folder: Path) -> Any:
    sys.path.insert(0, str(folder.parent))
    return import_module(folder.name)


def _in_rank(rank: int, name: str, package: str, way: str, folder: str) -> None:
    """Hold a step of one of two processes against the same of the model without kernels."""
    logging.disable()
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    one = _Architecture(name, Path(package))
    torch.manual_seed(rank)
    batch = one.batch_of(*SIZES[0])

    def parallel(model: nn.Module) -> nn.Module:
        if way == "ddp":
            return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
        return model

    wide = {n: each.double() if each.is_floating_point() else each for n, each in batch.items()}
    exact = step(parallel(copy.deepcopy(one.stock).double()), wide)
    found = one.held(lambda model: step(parallel(model), batch), exact)
    dist.barrier()
    dist.destroy_process_group()
    (Path(folder) / f"{rank}.txt").write_text(found)


def in_two_processes(name: str, package: str, way: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_in_rank, (name, package, way, folder), nprocs=2)
        said = [(Path(folder) / f"{rank}.txt").read_text() for rank in range(2)]
    return next((each for each in said if each != "ok"), "ok")


def main(name: str, package: str, file: str) -> None:
    logging.disable()
    one = _Architecture(name, Path(package))
    model = copy.deepcopy(one.stock)
    print(one.package.apply(model))
    one.package.remove(model)
    checks: dict[str, Callable[[], Any]] = {
        "calls": one.calls,
        "step": one.step,
        "autocast": one.autocast,
        "LoRA": one.lora,
        "checkpointing": one.checkpointing,
        "generate": one.generate,
        "DDP": lambda: in_two_processes(name, package, "ddp"),
        "FSDP2": lambda: in_two_processes(name, package, "fsdp2"),
        "compiled": one.compiled,
    }
    results = Path(file)
    found: dict[str, Any] = json.loads(results.read_text()) if results.exists() else {}
    for what, check in checks.items():
        if what in found:
            continue
        try:
            found[what] = check()
        except Exception as error:  # noqa: BLE001
            found[what] = f"{type(error).__name__}: {error}".split("\n")[0]
        print(what, found[what], flush=True)
        results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
