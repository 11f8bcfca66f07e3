"""Extraction of tasks from a model, in a sandboxed worker: the model's code never runs in this process."""

import itertools
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernelwright.agent.whole_model.model_name import ModelName, lengths
from kernelwright.agent.whole_model.records import ExtractedPart, ModelExtract
from kernelwright.kernelbench.errors import KernelwrightError
from kernelwright.kernelbench.evaluator.processes.channel import Channel
from kernelwright.kernelbench.modules.worker import ask_worker, refused

if TYPE_CHECKING:
    from kernelwright.agent.whole_model.parts import ModelPart

_TIMEOUT_S = 3600.0


def extract(model: ModelName, trains: bool, most_calls: int) -> tuple[ModelExtract, dict[str, str]]:
    """Return the parts of a model's step, and the text of each task file by its name.

    Raises UsageError, MissingPrerequisite.
    """
    request = {"model": model.to_json(), "trains": trains, "most_calls": most_calls}
    fix = "try a smaller batch or fewer layers"
    answer = ask_worker(f"{__name__}:serve", request, str(model), fix, _TIMEOUT_S)
    return ModelExtract.model_validate(answer["extract"]), answer["sources"]


def serve(channel: Channel) -> None:
    """Worker entry: survey one model."""
    from kernelwright.agent.whole_model.losses import losses_of
    from kernelwright.agent.whole_model.other_sizes import OtherSizes
    from kernelwright.agent.whole_model.parts import parts_of
    from kernelwright.agent.whole_model.survey import survey

    asked, _ = channel.receive_json()
    try:
        model = ModelName.from_json(asked["model"])
        step_at = model.steps(asked["trains"])
        step = step_at(lengths(model.workload[0]))
        surveyed = survey(step, time.perf_counter)
        others = OtherSizes(step_at, model.workload) if len(model.workload) > 1 else None
        losses = losses_of(step) if step.trains else []
        parts = parts_of(surveyed, asked["most_calls"], others, losses)
        total = surveyed.places[0].cost
        names = _file_names(parts)
        extract = ModelExtract(
            model=str(model),
            words=model.words,
            trains=step.trains,
            seconds=surveyed.seconds,
            profiled_s=total.seconds,
            products_s=total.products_s,
            kept_bytes=total.kept_bytes,
            parts=tuple(_record(part, name) for part, name in zip(parts, names, strict=True)),
        )
        sources = {name: part.source for part, name in zip(parts, names, strict=True) if part.source}
        channel.send_json({"extract": extract.model_dump(mode="json"), "sources": sources})
    except KernelwrightError as error:
        channel.send_json(refused(error))


def _file_names(parts: "Sequence[ModelPart]") -> list[str]:
    """Return a file name for each part with a task, by rank, 01_rms_norm.py; "" for the others."""
    rank = itertools.count(1)
    return [f"{next(rank):02}_{_words(part.name)}.py" if part.source else "" for part in parts]


def _words(name: str) -> str:
    """Return a class's name as a file is named: LlamaRMSNorm becomes llama_rms_norm."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"[^a-z0-9_]", "_", name.lower())


def _record(part: "ModelPart", task: str) -> ExtractedPart:
    from kernelwright.agent.whole_model.losses import LOSS

    return ExtractedPart(
        kind=part.kind,
        is_module=part.is_module,
        places=tuple(place.path for place in part.places),
        call=next(n for n, call in enumerate(part.places[0].calls) if call.form == part.form),
        calls=part.calls,
        forward_s=part.cost.forward_s,
        backward_s=part.cost.backward_s,
        products_s=part.cost.products_s,
        kept_bytes=part.cost.kept_bytes,
        torch_calls=part.torch_calls,
        task=task,
        reason=part.reason,
        one_size=part.one_size,
        constants=part.constants if part.source else {},
        reads_a_sum=bool(part.source) and part.reads_a_sum,
        function=LOSS if part.loss is not None else "",
    )
