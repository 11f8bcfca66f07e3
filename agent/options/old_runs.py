"""Settings of runs recorded by earlier versions, read as today's.

Before options were sections, a record was flat. Options that have been removed are left out; what a run did
without, before there were seeds, repairs and parts, it goes on without.
"""

from collections.abc import Mapping
from typing import Any

# Field of the flat record: section and field of today's.
_MOVED = {
    "coder": ("model", "coder"),
    "judge": ("model", "judge"),
    "search": ("search", "search"),
    "refine_from": ("search", "refine_from"),
    "beam_width": ("search", "beam_width"),
    "beam_advices": ("search", "beam_advices"),
    "islands": ("search", "islands"),
    "rounds": ("search", "rounds"),
    "target_speedup": ("search", "target_speedup"),
    "patience": ("search", "patience"),
    "hold": ("tuner", "hold"),
    "rank_by": ("tuner", "rank_by"),
    "memory": ("tuner", "memory"),
    "learn_from": ("tuner", "learn_from"),
    "target": ("evaluation", "device"),
    "chips": ("evaluation", "chips"),
    "baselines": ("evaluation", "baselines"),
    "compile_limit_s": ("evaluation", "compile_limit"),
    "own_kernels": ("evaluation", "own_kernels"),
    "effort": ("evaluation", "effort"),
    "check_first": ("evaluation", "check_first"),
}
_LIMITS = {"run_limit": "", "task_limit": "_per_task"}
_REMOVED = [("tuner", "rank_by", "surrogate"), ("tuner", "rank_by", "rules")]  # section, field, value
_NOT_YET = {"seed": "none", "repairs": 0, "parts": "none"}  # in the section of models


def upgraded(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record as this version writes it. Raises KeyError for a field that no version wrote."""
    flat = recorded and not isinstance(recorded.get("search"), Mapping)
    sections = _in_sections(recorded) if flat else recorded
    known = {
        section: {field: value for field, value in fields.items() if (section, field, value) not in _REMOVED}
        for section, fields in sections.items()
    }
    return known | {"model": _NOT_YET | known.get("model", {})}


def _in_sections(recorded: Mapping[str, Any]) -> dict[str, Any]:
    sections: dict[str, dict[str, Any]] = {"model": {}, "budget": {}}
    for name, value in recorded.items():
        if name in _LIMITS:
            limits = {f"max_{kind}{_LIMITS[name]}": limit for kind, limit in value.items()}
            sections["budget"] |= limits
        elif name == "language":
            sections["model"].setdefault("language", [value])
        elif name == "roles":
            sections["model"] |= _roles(value) if value is not None else {}
        else:
            section, field = _MOVED[name]
            sections.setdefault(section, {})[field] = value
    evaluation = sections.get("evaluation", {})
    if "device" in evaluation:
        evaluation["target"] = evaluation["device"]
    return sections


def _roles(roles: Mapping[str, Any]) -> dict[str, Any]:
    coder, judge = roles["coder"], roles["judge"]
    return {
        "model": coder["model"],
        "judge_model": judge["model"],
        "temperature": coder.get("temperature"),
        "judge_temperature": judge.get("temperature"),
        "reasoning_effort": coder.get("reasoning_effort"),
        "judge_reasoning_effort": judge.get("reasoning_effort"),
        "reply_tokens": coder.get("max_tokens", 16384),
        "language": roles["languages"],
        "selection": roles.get("selection"),
    }
