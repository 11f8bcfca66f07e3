"""From runs to a data set: what is kept, what is not and why, what is held out."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import UsageError
from kernelwright.kernelbench.records import Interval, Stages, Task, Verdict
from kernelwright.kernelbench.remote.wire import SentTask
from kernelwright.results.store.database import RunDatabase
from kernelwright.rl_training.curation.computations import SameComputation
from kernelwright.rl_training.curation.curate import Curated, CurationSettings, curate, write
from kernelwright.rl_training.curation.split import held_out_by_operator
from kernelwright.rl_training.environment.task_data import TaskData, family_of
from kernelwright.rl_training.exemplars import ExemplarStore
from tests.helpers.results import run_factory
from tests.helpers.rl_training.recorded import (
    EXPRESSIONS,
    PROFILE,
    answered,
    builtin_task,
    kernel,
    made,
    tried,
)

NAMES = (
    "level1/relu",
    "level1/silu",
    "level1/softmax",
    "level1/rms_norm",
    "level1/max_pool2d",
    "level1/sum_rows",
)
ALL = CurationSettings(held_out_share=0)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDatabase]:
    with run_factory.new_run(tmp_path / "run") as made_run:
        yield made_run


def task(run: RunDatabase, name: str = "level1/relu") -> Task:
    found = builtin_task(name)
    run.add_task(found)
    return found


def kept(curated: Curated) -> list[str]:
    return [one.sample.candidate.source for one in curated.train.chosen]


def accounted(curated: Curated) -> bool:
    """Every attempt is a sample or was dropped for a reason."""
    chosen = len(curated.train.chosen) + len(curated.test.chosen)
    return curated.attempts == chosen + curated.dropped.total()


def test_the_k_fastest_distinct_kernels_of_a_task_are_kept(run: RunDatabase) -> None:
    relu = task(run)
    first, second, third = (kernel(expression) for expression in EXPRESSIONS)
    tried(run, relu, made(first), 1.5)
    tried(run, relu, made(first.replace("x[i] > 0", "x[i] > 0.0f")), 3.0)  # the same but for a number
    tried(run, relu, made(second), 2.0)
    tried(run, relu, made(third), 1.1)
    tried(run, relu, made(kernel("x[i]")), None, Verdict.wrong_output)
    curated = curate([run], [], ALL)
    assert kept(curated) == [first.replace("x[i] > 0", "x[i] > 0.0f"), second]
    assert curated.dropped == {
        "a near-duplicate of a kept one": 1,
        "its task has 2 faster ones": 1,
        "not correct": 1,
    }
    assert accounted(curated)
    assert len(kept(curate([run], [], ALL.model_copy(update={"k": 3})))) == 3


def test_ranks_are_by_the_lower_bound(run: RunDatabase) -> None:
    relu = task(run)
    lucky = made(kernel(EXPRESSIONS[0]))
    tried(run, relu, lucky, Interval(median=9.0, low=1.0, high=20.0))
    sure = tried(run, relu, made(kernel(EXPRESSIONS[1])), Interval(median=2.0, low=1.9, high=2.1))
    assert kept(curate([run], [], ALL.model_copy(update={"k": 1}))) == [sure.source]


def test_a_confirming_measurement_is_what_counts(run: RunDatabase) -> None:
    relu = task(run)
    hoped, flaky, steady = (made(kernel(expression)) for expression in EXPRESSIONS)
    tried(run, relu, hoped, 5.0)
    tried(run, relu, flaky, 4.0)
    tried(run, relu, steady, 2.0)
    tried(run, relu, hoped, 1.5, confirms=True)
    tried(run, relu, flaky, None, Verdict.nondeterministic, confirms=True)
    curated = curate([run], [], ALL)
    assert kept(curated) == [steady.source, hoped.source]
    assert curated.dropped["not correct"] == 1
    assert accounted(curated)


def test_a_file_that_was_submitted_again_has_not_failed(run: RunDatabase) -> None:
    """A run records that as a build error, without trying it."""
    relu = task(run)
    good = tried(run, relu, made(kernel()), 2.0)
    again = run_factory.evaluation(relu, good, Verdict.build_error, reason="the very file of round 0 again")
    again = again.model_copy(update={"stages": Stages()})
    run.record_attempt(relu.id, 1, good, None, again, None)
    assert kept(curate([run], [], ALL)) == [good.source]
    store = ExemplarStore()
    store.learn(run)
    assert [exemplar.candidate for exemplar in store.of(relu.id)] == [good.sha256]


def test_the_shortest_reasoning_is_kept_where_it_is_the_fastest_too(run: RunDatabase) -> None:
    relu = task(run)
    first, second, third = (kernel(expression) for expression in EXPRESSIONS)
    tried(run, relu, answered(run, relu, first, "one pass" * 9), 1.5)
    concise = tried(run, relu, answered(run, relu, second, "one pass"), 2.0)
    tried(run, relu, answered(run, relu, third, "two passes"), 1.2)
    curated = curate([run], [], ALL)
    (chosen,) = curated.train.chosen
    assert chosen.concise and chosen.sample.candidate == concise
    assert chosen.sample.written.reasoning == "one pass"
    assert chosen.sample.written.reply.startswith("Here it is.")
    assert chosen.task.difficulty == len("one pass")
    assert accounted(curated)


def test_a_task_whose_shortest_reasoning_is_slower_for_certain_has_none(run: RunDatabase) -> None:
    relu = task(run)
    tried(run, relu, answered(run, relu, kernel(EXPRESSIONS[0]), "short"), 1.5)
    tried(run, relu, answered(run, relu, kernel(EXPRESSIONS[1]), "a longer one"), 2.0)
    plain = tried(run, relu, made(kernel(EXPRESSIONS[2])), 1.1)  # the builtin coder's, without reasoning
    curated = curate([run], [], ALL)
    assert kept(curated) == [plain.source]
    assert curated.train.chosen[0].sample.written.reasoning == ""
    assert curated.dropped.total() == 2


def test_shortest_and_fastest_within_the_noise_is_enough(run: RunDatabase) -> None:
    relu = task(run)
    short = answered(run, relu, kernel(EXPRESSIONS[0]), "short")
    tried(run, relu, short, Interval(median=1.9, low=1.7, high=2.1))
    long = answered(run, relu, kernel(EXPRESSIONS[1]), "a longer one")
    tried(run, relu, long, Interval(median=2.2, low=2.0, high=2.4))
    assert kept(curate([run], [], ALL)) == [short.source]


def test_what_has_no_kernels_or_no_verdict_is_left_out(run: RunDatabase) -> None:
    relu = task(run)
    as_it_is = made("class ModelNew: ...\n").model_copy(update={"language": "torch"})
    tried(run, relu, as_it_is, 1.0)
    tried(run, relu, made(kernel("x[i]")), None, Verdict.unmeasured)
    tried(run, relu, made(kernel(), author="llm:lost"), 2.0)
    with pytest.raises(UsageError, match="no correct kernel of its own to learn from"):
        curate([run], [], ALL)
    tried(run, relu, made(kernel(EXPRESSIONS[1])), 1.2)
    decoy = run_factory.evaluation(relu, made(kernel("y[i]")), eager=1.3)
    decoy = decoy.model_copy(update={"own_kernel_share": 0.01})
    run.record_attempt(relu.id, 9, made(kernel("y[i]")), None, decoy, PROFILE)
    assert curate([run], [], ALL).dropped == {
        "no kernels of its own": 1,
        "not measured": 1,
        "the model's reply was not found": 1,
        "correct, but with less than 5% of a call in its own kernels": 1,
    }


def test_a_task_that_measures_nothing_teaches_nothing(run: RunDatabase) -> None:
    relu, softmax = task(run), task(run, "level1/softmax")
    tried(run, relu, made(kernel()), 900.0)
    run.record_audit(relu.id, "constant", measures_nothing="the output is constant")
    tried(run, softmax, made(kernel()), 1.5)
    curated = curate([run], [], ALL)
    assert [one.data.task.id for one in curated.train.tasks] == [softmax.id]
    assert accounted(curated)


def test_kernels_of_different_functions_are_no_duplicates_of_the_same_function_are(
    run: RunDatabase, tmp_path: Path
) -> None:
    relu = task(run)
    smaller = relu.model_copy(update={"id": "file:relu", "source": relu.source.replace("1024", "64")})
    silu = task(run, "level1/silu")
    run.add_task(smaller)
    for one in (relu, silu, smaller):
        tried(run, one, made(kernel()), 2.0)
    curated = curate([run], [], ALL)
    assert [one.task.data.task.id for one in curated.train.chosen] == [relu.id, silu.id]


def test_several_runs_are_one_data_set_and_the_slower_measurement_counts(tmp_path: Path) -> None:
    with run_factory.new_run(tmp_path / "a") as first, run_factory.new_run(tmp_path / "b") as second:
        for run, speedup in ((first, 4.0), (second, 2.0)):
            tried(run, task(run), made(kernel()), speedup)
        curated = curate([first, second], [], ALL)
        (chosen,) = curated.train.chosen
        assert chosen.sample.speedup is not None and chosen.sample.speedup.median == 2.0
        assert len(curated.train.tasks) == 1 and len(curated.runs) == 2
        assert accounted(curated)


def fill(run: RunDatabase, names: tuple[str, ...] = NAMES) -> list[Task]:
    tasks = [task(run, name) for name in names]
    for one in tasks:
        for number, expression in enumerate(EXPRESSIONS):
            tried(run, one, made(kernel(expression)), 1.0 + number)
    return tasks


def test_what_is_held_out_is_of_families_that_training_never_sees(run: RunDatabase) -> None:
    fill(run)
    splits = set()
    for seed in range(12):
        curated = curate([run], [], CurationSettings(held_out_share=0.34, seed=seed))
        train, test = curated.train.tasks, curated.test.tasks
        assert len(train) + len(test) == len(NAMES) and 1 <= len(test) <= 3
        assert {one.data.family for one in train}.isdisjoint(one.data.family for one in test)
        splits.add(frozenset(one.data.task.id for one in test))
        again = curate([run], [], CurationSettings(held_out_share=0.34, seed=seed))
        assert again.test.rows() == curated.test.rows()
    assert len(splits) > 1  # the seed does something


def test_held_out_by_operator_training_never_sees_it(run: RunDatabase) -> None:
    fill(run, (*NAMES, "level2/bmm_softmax", "level2/linear_gelu_layer_norm", "level1/matmul_square"))
    seen = set()
    for seed in range(8):
        settings = CurationSettings(held_out_share=0.34, seed=seed, held_out_by="operator")
        curated = curate([run], [], settings)
        train, test = (
            {operator for one in part.tasks for operator in one.data.family.split("+")}
            for part in (curated.train, curated.test)
        )
        assert curated.test.tasks and test - train
        held = test - train
        assert all(held & set(one.data.family.split("+")) for one in curated.test.tasks)
        seen.add(frozenset(held))
    assert len(seen) > 1
    with pytest.raises(UsageError, match="no operator of these 1 tasks can be held out"):
        held_out_by_operator(curated.train.tasks[:1], 0.5, 0, 0.8)


def test_near_duplicates_of_a_reference_are_not_parted(run: RunDatabase) -> None:
    """A name that looks like another family's does not bring the same function into both splits."""
    plain = task(run, "level1/laplacian_kernel_matrix")
    unused = "def pool():\n    pool()\n\n\ndef get_inputs"
    disguised = plain.model_copy(
        update={"id": "file:pooled", "source": plain.source.replace("def get_inputs", unused)}
    )
    assert family_of(plain) != family_of(disguised)
    run.add_task(disguised)
    for one in (plain, disguised, task(run, "level1/softmax")):
        tried(run, one, made(kernel()), 2.0)
    for seed in range(6):
        curated = curate([run], [], CurationSettings(held_out_share=0.4, seed=seed))
        sides = [{one.data.task.id for one in part.tasks} for part in (curated.train, curated.test)]
        assert {plain.id, disguised.id} in sides


def test_one_task_or_one_family_cannot_be_held_out(run: RunDatabase) -> None:
    fill(run, ("level1/relu",))
    with pytest.raises(UsageError, match=r"only task, builtin:level1/relu, .* — give runs of more tasks"):
        curate([run], [], CurationSettings())
    fill(run, ("level1/silu",))
    with pytest.raises(UsageError, match="all 2 tasks are of one family of operators, pointwise"):
        curate([run], [], CurationSettings())
    assert len(curate([run], [], ALL).train.tasks) == 2


def test_evaluation_tasks_are_left_out_by_id_and_by_what_they_compute(run: RunDatabase) -> None:
    fill(run)
    relu, softmax = builtin_task("level1/relu"), builtin_task("level1/softmax")
    by_id = softmax.model_copy(update={"source": "# quite another text"})
    by_reference = Task(id="kernelbench:1/19", level=1, source=relu.source.replace("self, x", "self, value")
                        .replace("relu(x)", "relu(value)").replace("8192", "16384"))  # fmt: skip
    curated = curate([run], [by_id, by_reference], ALL)
    assert curated.contaminated == {softmax.id: softmax.id, relu.id: "kernelbench:1/19"}
    names = {one.data.task.id for one in curated.train.tasks}
    assert names == {f"builtin:{name}" for name in NAMES} - {softmax.id, relu.id}
    assert accounted(curated)


class Known:
    """Stand-in for `Computations`, of which these pairs compute the same."""

    def __init__(self, *pairs: set[str]) -> None:
        self.pairs = pairs
        self.unknown = {"builtin:level1/silu": "it ended its worker"}

    def same(self, tasks: list[Task], others: list[Task]) -> list[SameComputation]:
        return [
            SameComputation(a.id, b.id, "outputs")
            for a in tasks
            for b in others
            if {a.id, b.id} in self.pairs
        ]


def test_what_computes_the_same_is_left_out_or_stays_together(run: RunDatabase, tmp_path: Path) -> None:
    fill(run)
    relu, softmax, sums = (f"builtin:level1/{name}" for name in ("relu", "softmax", "sum_rows"))
    evaluation = Task(id="kernelbench:1/9", level=1, source="# quite another text")
    known = Known({evaluation.id, relu}, {softmax, sums})
    for seed in range(4):
        settings = CurationSettings(held_out_share=0.4, seed=seed)
        curated = curate([run], [evaluation], settings, known)  # type: ignore[arg-type]
        assert curated.contaminated == {relu: evaluation.id}
        sides = [{one.data.task.id for one in part.tasks} for part in (curated.train, curated.test)]
        assert any({softmax, sums} <= side for side in sides) and relu not in sides[0] | sides[1]
    assert len(curated.same) == 2
    written = write(curated, tmp_path / "data", "")
    assert written["same"] == [[evaluation.id, relu, "outputs"], [softmax, sums, "outputs"]]
    sheet = (tmp_path / "data" / "DATASHEET.md").read_text()
    assert f"- {softmax} and {sums}, by outputs" in sheet
    assert "- builtin:level1/silu was compared by its graph alone: it ended its worker" in sheet


def test_no_family_drowns_the_others(run: RunDatabase) -> None:
    pointwise = ("level1/relu", "level1/silu", "level1/gelu", "level1/softplus", "level1/hardswish")
    fill(run, (*pointwise, "level1/softmax", "level1/rms_norm"))
    curated = curate([run], [], ALL)
    assert curated.train.families == {"pointwise": 4, "softmax": 2, "normalization": 2}  # the median is 2
    assert accounted(curated)


def test_pairs_differ_for_certain_and_lists_are_ranked(run: RunDatabase) -> None:
    relu = task(run)
    best = tried(run, relu, made(kernel(EXPRESSIONS[0])), Interval(median=3.0, low=2.5, high=3.5))
    tried(run, relu, made(kernel(EXPRESSIONS[1])), Interval(median=2.4, low=2.0, high=2.6))  # may be as fast
    slow = tried(run, relu, made(kernel(EXPRESSIONS[2])), 1.0)
    bad = tried(run, relu, made(kernel("x[i]")), None, Verdict.wrong_output)
    rows = curate([run], [], ALL).train.rows()
    pairs = [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows["preferences"]]
    assert [(best.source in a, slow.source in b, bad.source in b) for a, b in pairs] == [
        (True, True, False),
        (True, False, True),
    ]
    (ranked,) = rows["ranked"]
    assert ranked["scores"] == [2.5, 2.0, pytest.approx(0.98), 0.0]
    assert ranked["verdicts"] == ["correct", "correct", "correct", "wrong_output"]


def test_the_folder_loads_as_a_data_set_and_says_what_is_in_it(run: RunDatabase, tmp_path: Path) -> None:
    import datasets

    fill(run)
    relu = builtin_task("level1/relu")
    tried(run, relu, made(kernel("x[i]")), None, Verdict.wrong_output)
    curated = curate([run], [builtin_task("level2/linear_gelu_layer_norm")], CurationSettings())
    told = write(curated, tmp_path / "data", "kernelwright train curate RUN --out DIR")
    json.dumps(told)
    for config, counts in told["rows"].items():  # type: ignore[attr-defined]
        loaded = datasets.load_dataset(str(tmp_path / "data"), config, cache_dir=str(tmp_path / "cache"))
        assert {split: len(rows) for split, rows in loaded.items()} == {s: n for s, n in counts.items() if n}
        if config == "sft":
            row = loaded["train"][0]
            assert [message["role"] for message in row["prompt"]] == ["system", "user"]
            assert row["completion"][0]["content"].startswith("```python\nimport torch")
        if config == "tasks":
            data = TaskData.model_validate_json(loaded["test"][0]["data"])
            assert data.task.id == loaded["test"][0]["task"] and data.winner is not None
            first = loaded["train"][0]
            assert (
                first["prompt"][-1]["role"] == "user" and json.loads(first["info"])["task"] == first["task"]
            )
            assert SentTask.model_validate_json(first["answer"]).source == first["source"]
    sheet = (tmp_path / "data" / "DATASHEET.md").read_text()
    listed = [int(count) for count in re.findall(r"^- (\d+): ", sheet, re.MULTILINE)]
    sft = told["rows"]["sft"]  # type: ignore[index]
    assert sum(listed) + sft["train"] + sft["test"] == curated.attempts
    assert "Held against 1 evaluation task" in sheet and "`kernelwright run" in sheet
    card = (tmp_path / "data" / "README.md").read_text()
    assert "license: apache-2.0" in card and "- n<1K" in card and "| builtin |" in card
    assert card.startswith("---\npretty_name:") and card.endswith("\n")


def test_the_same_runs_give_the_same_files(run: RunDatabase, tmp_path: Path) -> None:
    fill(run)
    first = write(curate([run], [], CurationSettings()), tmp_path / "a", "")
    random.seed(99)
    assert write(curate([run], [], CurationSettings()), tmp_path / "b", "")["files"] == first["files"]


def test_a_folder_that_holds_something_is_left_alone(run: RunDatabase, tmp_path: Path) -> None:
    fill(run)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="is not empty — use another --out"):
        write(curate([run], [], CurationSettings()), tmp_path / "data", "")
