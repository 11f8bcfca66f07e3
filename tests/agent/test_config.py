"""Options of a run: precedence, errors that name the fix, and records of any version that can be read."""

import json
from pathlib import Path

import pytest

from kernelwright.agent.options.run import RunConfig
from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.options import build, options, read_file
from kernelwright.results.store.database import RunDatabase
from tests.helpers.anywhere import TARGET

# As a version before options were sections recorded `run --coder llm --search evolve …`.
OLD = {
    "coder": "llm", "judge": "llm", "search": "evolve", "refine_from": "best", "beam_width": 3, "beam_advices": 2,
    "islands": 2, "hold": [], "rank_by": "rules", "rounds": 9, "target_speedup": 1.5, "patience": None,
    "target": "cpu", "chips": [], "baselines": ["eager"], "compile_limit_s": 120.0, "own_kernels": 0.5,
    "effort": "quick", "check_first": False, "memory": False, "learn_from": ["/runs/a"], "language": "cpp",
    "roles": {
        "coder": {"model": "gpt-4.1", "temperature": 0.7, "reasoning_effort": None, "max_tokens": 4096},
        "judge": {"model": "o3", "temperature": None, "reasoning_effort": "high", "max_tokens": 4096},
        "languages": ["cpp"], "selection": None,
    },
    "run_limit": {"usd": 5.0, "tokens": None, "evaluations": 40, "minutes": None},
    "task_limit": {"usd": None, "tokens": 1000, "evaluations": None, "minutes": 2.5},
}  # fmt: skip


def recorded(tmp_path: Path, settings: dict[str, object]) -> RunConfig:
    with RunDatabase.create(tmp_path / "run.db", settings=settings, target=TARGET) as database:
        return RunConfig.recorded(database)


def test_a_run_of_an_older_version_goes_on_as_it_was_begun(tmp_path: Path) -> None:
    config = recorded(tmp_path, OLD)
    config.check()
    assert config == build(
        RunConfig,
        {
            "coder": "llm", "judge": "llm", "model": "gpt-4.1", "judge_model": "o3", "language": ("cpp",),
            "temperature": 0.7, "judge_reasoning_effort": "high", "reply_tokens": 4096,
            "search": "evolve", "islands": 2, "rounds": 9, "target_speedup": 1.5,
            "memory": False, "learn_from": ("/runs/a",), "baselines": ["eager"], "compile_limit": 120.0,
            "own_kernels": 0.5, "effort": "quick", "seed": "none", "repairs": 0, "parts": "none",
            "max_usd": 5.0, "max_evaluations": 40, "max_tokens_per_task": 1000, "max_minutes_per_task": 2.5,
        },
    )  # fmt: skip
    roles = config.model.roles()
    assert roles is not None and json.loads(roles.model_dump_json()) == OLD["roles"]


def test_an_older_run_of_the_builtin_coder_keeps_its_language_and_chips(tmp_path: Path) -> None:
    config = recorded(tmp_path, {"chips": ["sm_90"], "language": "cuda", "roles": None, "hold": ["fuse"]})
    assert config.builtin_language == "cuda" and config.evaluation.chips == ("sm_90",)
    assert config.tuner.hold == ("fuse",) and config.model.roles() is None


def test_a_run_with_schedules_ranked_by_a_surrogate_goes_on_with_the_rules(tmp_path: Path) -> None:
    given = {"learn_from": ("/runs/a",), "rounds": 9}
    config = build(RunConfig, given)
    tuner = {"rank_by": "surrogate", "learn_from": ["/runs/a"]}
    flat = {**tuner, "rounds": 9, "search": "refine", "language": "cpp", "roles": None}
    for number, settings in enumerate([{**config.record(), "tuner": tuner}, flat]):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = recorded(folder, settings)
        found.check()
        assert (found.tuner, found.search) == (config.tuner, config.search)
        assert "surrogate" not in json.dumps(found.record()) and found.tuner.rank_by is None


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    given = {"coder": "llm", "model": "m", "learn_from": ("runs/a",), "max_usd": 1.0, "target": "sm_90"}
    config = build(RunConfig, given).resolved()
    again = recorded(tmp_path, config.record())
    assert again.record() == config.record()
    assert again.evaluation.chips == ("sm_90",) and again.model.language == ("triton",)


def test_a_run_of_several_devices_goes_on_with_them(tmp_path: Path) -> None:
    config = build(RunConfig, {"target": "cuda:0,2-3"}).resolved()
    assert config.evaluation.device == "cuda:0" and config.builtin_language == "triton"
    again = recorded(tmp_path, config.record())
    assert again.evaluation.devices == ("cuda:0", "cuda:2", "cuda:3") and again.record() == config.record()
    assert build(RunConfig, {"target": "cuda:1"}).resolved().evaluation.devices == ()
    with pytest.raises(UsageError, match="names cuda:0 twice"):
        build(RunConfig, {"target": "cuda:0,0"}).resolved()


def test_limits_hold_until_others_are_given_and_runs_to_learn_from_add_up(tmp_path: Path) -> None:
    first = build(RunConfig, {"max_usd": 5.0, "max_tokens": 100, "learn_from": ("/a",), "workers": 3})
    now = build(RunConfig, {"max_usd": 7.0, "learn_from": ("/b", "/a")})
    revised = first.revised_by(now)
    assert (revised.budget.max_usd, revised.budget.max_tokens) == (7.0, 100)
    assert revised.tuner.learn_from == (Path("/a"), Path("/b")) and revised.execution.workers is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"max_usd": 1.0, "workers": 2, "learn_from": ("/a",), "as_json": True}, None),
        ({"rounds": 3}, "--rounds"),
        ({"tasks": ("builtin:level1/softmax",)}, "TASKS"),
        ({"out": "elsewhere"}, "--out"),
        ({"replay": "another"}, "--replay"),
    ],
)
def test_a_run_that_goes_on_takes_the_rest_from_its_record(
    given: dict[str, object], named: str | None
) -> None:
    config = build(RunConfig, {"resume": "here", **given})
    if named is None:
        return config.require_only("resume")
    with pytest.raises(UsageError, match=f"--resume takes {named} from the run"):
        config.require_only("resume")
    return None


def test_a_variable_of_the_environment_is_nothing_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELBENCH_DIR", "/somewhere")
    build(RunConfig, {"resume": "here", "kernelbench_dir": "/somewhere"}).require_only("resume")


def test_every_option_has_a_name_of_its_own() -> None:
    found = [option.name for option in options(RunConfig)]
    assert len(found) == len(set(found)) > 40


BAD_FILES = {
    "unknown_key": (
        "[budget]\nmax-usdd = 3\n",
        "unknown key 'max-usdd' in .budget. — did you mean 'max-usd'",
    ),
    "unknown_table": ("[budgets]\n", "unknown key 'budgets' — did you mean 'budget'"),
    "far_from_any": ("[output]\nzzz = 1\n", ".output. may have out, resume, replay, dry-run, database, json"),
    "outside_of_tables": ("budget = 3\n", "'budget' is not a table — put options below the line .budget."),
    "not_toml": ("[budget\n", "is invalid TOML: .* — correct that line"),
}


def test_a_yaml_file_is_as_good(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "run.toml", tmp_path / "run.yaml"
    toml.write_text('[budget]\nmax-usd = 3\n[output]\nout = "here"\n')
    yaml.write_text("budget:\n  max-usd: 3\noutput:\n  out: here\n")
    assert read_file(RunConfig, yaml) == read_file(RunConfig, toml)
    for text, words in (
        ("budget: [1\n", "is invalid YAML: .* — correct that line"),
        ("- 1\n", "no sections"),
    ):
        yaml.write_text(text)
        with pytest.raises(UsageError, match=words) as error:
            read_file(RunConfig, yaml)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_file_with_a_mistake_is_one_line_that_names_it(case: str, tmp_path: Path) -> None:
    text, words = BAD_FILES[case]
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words) as error:
        read_file(RunConfig, path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rounds": 0}, "invalid --rounds 0 — use at least 1"),
        ({"max_minutes": 0}, "invalid --max-minutes 0 — use more than 0"),
        ({"temperature": 3}, "invalid --temperature 3 — use at least 0 and at most 2"),
        ({"max_evaluations": 1}, "invalid --max-evaluations 1 — use at least 2"),
        (
            {"search": "luck"},
            "invalid --search luck — choose refine, exhaustive, best-of-n, beam, evolve or agent",
        ),
        ({"coder": "me"}, "invalid --coder me — choose builtin, llm or command"),
        ({"precision": "int3"}, "invalid --precision int3 — choose task, fp32, tf32, fp16 or bf16"),
    ],
)
def test_an_invalid_value_is_one_line_with_its_fix(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as error:
        build(RunConfig, given)
    assert str(error.value) == words
