"""Settings as arguments of transformers' trainers, and checks that these would only make once begun."""

import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kernelwright.kernelbench.errors import MissingPrerequisite, UsageError
from kernelwright.rl_training.trainers.precision import autocasts
from kernelwright.rl_training.trainers.processes import TIMEOUT_S, share_of
from kernelwright.rl_training.trainers.settings import OnlineSettings, TrainingSettings

_VLLM_URL = "http://0.0.0.0:8000"  # TRL's default
_SERVER_S = 10.0  # that a server has to accept a connection
NOT_TRACKED: Mapping[str, str] = {"report_to": "none"}


def arguments(settings: TrainingSettings, out: Path, reporting: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of any `TrainingArguments`. `reporting`: from `trackers.reporting`."""
    import torch

    return {
        **reporting,
        "output_dir": str(out),
        "max_steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": settings.micro_batch,
        "gradient_accumulation_steps": share_of(settings.batch, settings.micro_batch),
        "ddp_timeout": TIMEOUT_S,
        "seed": settings.seed,
        "use_cpu": settings.cpu,
        "bf16": autocasts(settings.precision),
        "fp16": False,
        **_optimizer(settings.optimizer),
        "deepspeed": settings.deepspeed,
        "gradient_checkpointing": settings.gradient_checkpointing,
        "max_grad_norm": settings.max_grad_norm,
        "save_strategy": "steps",
        "save_steps": settings.save_every,
        "save_total_limit": 3,
        "logging_strategy": "steps",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": torch.cuda.is_available(),  # else torch warns that it cannot
    }


def require_runnable(settings: TrainingSettings) -> None:
    """Raise UsageError if this machine cannot train so, MissingPrerequisite for a package."""
    import torch

    vllm = settings.vllm if isinstance(settings, OnlineSettings) else "none"
    if vllm != "none":
        _require("vllm", f"--vllm {vllm}", "leave --vllm out")
    if isinstance(settings, OnlineSettings) and vllm == "server":
        _require_server(settings.vllm_url or _VLLM_URL)
    if settings.deepspeed is not None:
        if not Path(settings.deepspeed).is_file():
            raise UsageError(
                f"--deepspeed {settings.deepspeed}: the file does not exist", "give a DeepSpeed configuration"
            )
        if settings.cpu or not torch.cuda.is_available():  # it is left out, or each process is alone
            raise UsageError(
                "--deepspeed: accelerate uses DeepSpeed on GPUs alone",
                "leave it out, or --cpu where there is one",
            )
        _require("deepspeed", "--deepspeed", "leave it out")
    _require_optimizer(settings.optimizer)
    from transformers.utils import is_torch_bf16_gpu_available

    if autocasts(settings.precision) and not settings.cpu and not is_torch_bf16_gpu_available():
        raise UsageError(
            f"--precision {settings.precision}: no GPU of this machine supports bf16",
            "use --precision float32, or --cpu",
        )


def _require_server(url: str) -> None:
    fix = "start it with `trl vllm-serve --model MODEL` on other GPUs, and give its address as --vllm-url"
    try:
        address = urlsplit(url)
        port = address.port or {"http": 80, "https": 443}[address.scheme]
        socket.create_connection((address.hostname or "", port), timeout=_SERVER_S).close()
    except (KeyError, ValueError):
        raise UsageError(f"--vllm-url {url} is no address", "give one such as http://gpu3:8000") from None
    except OSError as error:
        raise UsageError(f"no vLLM answers at {url} ({error.strerror or error})", fix) from None


def _optimizer(name: str) -> dict[str, str]:
    projects = name.startswith(("galore", "apollo"))  # gradients of matrices, and is to be told of which
    return {"optim": name} | ({"optim_target_modules": "all-linear"} if projects else {})


def _require_optimizer(name: str) -> None:
    import torch
    from transformers import Trainer, TrainingArguments
    from transformers.training_args import OptimizerNames

    if name not in {each.value for each in OptimizerNames}:
        raise UsageError(
            f"--optimizer {name}: transformers has no such optimizer",
            "use one of its OptimizerNames: adamw_torch, adamw_8bit, galore_adamw, apollo_adamw …",
        )
    made = TrainingArguments(use_cpu=True, report_to="none", **_optimizer(name))
    try:
        Trainer.get_optimizer_cls_and_kwargs(made, torch.nn.Sequential(torch.nn.Linear(1, 1)))
    except ImportError as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise MissingPrerequisite(
            f"--optimizer {name}: {why}", "install it, or leave --optimizer out"
        ) from None
    except (ValueError, TypeError, NotImplementedError) as error:
        why = str(error).splitlines()[0].rstrip(".")
        raise UsageError(f"--optimizer {name}: {why}", "use another, such as adamw_torch") from None


def _require(package: str, what: str, otherwise: str) -> None:
    if find_spec(package) is None:
        raise MissingPrerequisite(
            f"{what} needs the package {package}", f"pip install {package}, or {otherwise}"
        )
