"""The status of a run, as a terminal and a log file show it."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from kernelwright.agent.display.progress import ShownProgress, opening_line
from kernelwright.agent.display.status import RunStatus, activities, seconds_left
from kernelwright.agent.options.run import RunConfig
from kernelwright.kernelbench.options import build

NOW = activities(
    ["kernelbench:1/40_LayerNorm", "kernelbench:1/40_LayerNorm", "kernelbench:2/2_Conv"],
    [*(("coder", f"kernelbench:1/{n}_Softmax") for n in range(11)), ("judge", "kernelbench:3/1_MLP")],
)
STATUS = RunStatus(
    usd=3.41,
    tokens=90_000,
    max_usd=75.0,
    calls=41,
    asked=12,
    device="GPU",
    queue=3,
    tasks=250,
    done=14,
    begun=30,
    share=0.12,
    took_s=3723.0,
    left_s=4.6 * 3600,
    now=NOW,
)


def drawn(width: int) -> list[str]:
    progress, screen = (
        ShownProgress(),
        Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None),
    )
    progress.watch(lambda: STATUS)
    screen.print(progress)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def test_a_log_file_gets_one_line() -> None:
    assert STATUS.line() == (
        "$3.41 of $75 · 41 calls, 12 under way · GPU queue 3 · 14/250 tasks done, 30 under way · about 4.6 h left"
    )


@pytest.mark.parametrize(("width", "lines"), [(60, 3), (80, 3), (160, 2)])
def test_a_terminal_is_not_wider_than_it_is(width: int, lines: int) -> None:
    shown = drawn(width)
    assert len(shown) == lines and max(len(line.rstrip()) for line in shown) <= width
    assert "1:02:03 evaluating 1/40_LayerNorm, 2/2_Conv" in shown[0]
    told = " · ".join(line.strip() for line in shown[1:])
    assert told == STATUS.line()  # broken only between its parts


def test_tasks_are_named_by_what_is_done_with_them() -> None:
    assert NOW == (
        "evaluating 1/40_LayerNorm, 2/2_Conv · writing 1/0_Softmax, 1/1_Softmax and 9 more · advising on 3/1_MLP"
    )
    assert activities([], []) == ""


def test_only_what_is_known_is_told() -> None:
    bare = replace(STATUS, usd=None, left_s=None)
    assert bare.line() == "GPU queue 3 · 14/250 tasks done, 30 under way"
    unlimited = replace(STATUS, max_usd=None)
    assert unlimited.line().startswith("$3.41 · 41 calls")
    free = replace(STATUS, usd=0.0, max_usd=None)
    assert free.line().startswith("90,000 tokens · 41 calls")


def test_the_time_left_follows_from_what_has_passed_since_the_run_went_on() -> None:
    """An hour for 10% of the run, the first 30% of which were done before: six hours for the other 60%."""
    assert seconds_left(3600.0, 0.3, 0.4, None) == pytest.approx(6 * 3600)
    assert seconds_left(3600.0, 0.3, 0.4, max_minutes=90.0) == pytest.approx(1800)
    assert seconds_left(3600.0, 0.3, 0.3, None) is None
    assert seconds_left(5.0, 0.0, 0.1, None) is None


def test_a_run_begins_with_who_writes_what_it_may_cost_and_where_it_goes() -> None:
    options: dict[str, object] = {
        "coder": "llm",
        "model": "m1",
        "judge_model": "m2",
        "rounds": 10,
        "max_usd": 75.0,
    }
    config = build(RunConfig, {**options, "max_minutes": 90.0})
    line = opening_line(config, "https://user:secret@models.example:8443/v1", 250, Path("runs/a"))
    assert line == (
        "m1, judge m2 at models.example:8443 · 250 tasks, 10 rounds each, refine, on cpu · "
        "at most $75 and 90 minutes · runs/a"
    )
    assert opening_line(build(RunConfig, options | {"max_usd": None}), None, 1, Path("b")).startswith(
        "m1, judge m2 at api.openai.com · 1 task, 10 rounds each, refine, on cpu · no limit of dollars"
    )
    assert opening_line(build(RunConfig, {}), None, 2, Path("b")).startswith("builtin coder · 2 tasks")
