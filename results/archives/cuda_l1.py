"""Reader of kernels in the form of CUDA-L1 (github.com/deepreinforce-ai/CUDA-L1, optimized_cuda_code).

A record is a problem with its own reference, a kernel or null, and its speedups over the reference, eager
(`score_default`, or `score`) and compiled (`score_torch_compile_default`). A file has one a line, or is a
list of them, or maps levels to lists:

    {"level_id": 1, "task_id": 19, "ref_code": "…", "custom_code": "…", "score_default": 1.07}
    {"1": [{"task_id": 19, "ref_code": "…", "custom_code": "…", "score": "1.07"}], "2": […]}
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.text_files import text_of
from kernelwright.results.archives.records import PublishedClaim, PublishedKernel


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


_Speedup = Annotated[float | None, Field(gt=0, allow_inf_nan=False)]
_Text = Annotated[str, AfterValidator(_encodable)]
_FIX = "give a JSON file with level_id, task_id, ref_code and custom_code, as of CUDA-L1"


class _CudaL1Record(BaseModel):
    level_id: int
    task_id: int
    ref_code: _Text
    custom_code: _Text | None
    score: _Speedup = None
    score_default: _Speedup = None
    score_torch_compile_default: _Speedup = None

    @property
    def claim(self) -> PublishedClaim:
        eager = self.score_default if self.score_default is not None else self.score
        correct = True if eager is not None else None  # only what was correct has a score
        return PublishedClaim(correct=correct, eager=eager, compile=self.score_torch_compile_default)


def read(path: Path) -> tuple[list[PublishedKernel], list[str]]:
    """Return the kernels of a file, and a line for whatever is left out. Raises UsageError."""
    try:
        text = text_of(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text", _FIX) from None
    kernels: list[PublishedKernel] = []
    left_out: list[str] = []
    without: list[str] = []
    samples: Counter[tuple[int, int]] = Counter()
    for where, found in _records(text, path):
        if isinstance(found, str):
            left_out.append(f"{where}: {found}")
            continue
        try:
            record = _CudaL1Record.model_validate(found)
        except ValidationError as error:
            left_out.append(f"{where}: {_in_words(error)}")
            continue
        problem = record.level_id, record.task_id
        if not record.custom_code:
            without.append(f"{problem[0]}/{problem[1]}")
            continue
        kernels.append(
            PublishedKernel(
                level=problem[0],
                problem=problem[1],
                sample=samples[problem],
                source=record.custom_code,
                reference=record.ref_code,
                claim=record.claim,
                where=where,
            )
        )
        samples[problem] += 1
    if without:
        more = f" and {len(without) - 5} more" if len(without) > 5 else ""
        left_out.append(f"{len(without)} problems have no kernel: {', '.join(without[:5])}{more}")
    return kernels, left_out


def _records(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the records of a file, each with its place; of one that is damaged what is wrong, as a string."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        yield from _of_lines(text, path)
        return
    match whole:
        case list():
            yield from ((f"{path.name}, record {number}", one) for number, one in enumerate(whole, 1))
        case dict() if "level_id" in whole:
            yield path.name, whole
        case dict() if whole and all(key.isdecimal() and isinstance(whole[key], list) for key in whole):
            for level, records in whole.items():
                for number, one in enumerate(records, 1):
                    with_level = {"level_id": int(level), **one} if isinstance(one, dict) else one
                    yield f"{path.name}, level {level}, record {number}", with_level
        case _:
            raise UsageError(f"{path} holds no records of kernels", _FIX)


def _of_lines(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = [(f"{path.name}, line {number}", _parsed(line)) for number, line in lines]
    if not any(isinstance(one, dict) for _, one in found):
        why = found[0][1] if found and isinstance(found[0][1], str) else "it is empty"
        raise UsageError(f"{path} is neither JSON nor a JSON object a line ({why})", _FIX)
    yield from found


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return f"damaged JSON: {error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"damaged JSON: {error}"


def _in_words(error: ValidationError) -> str:
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "the record"
    return f"{field}: {first['msg']}"
