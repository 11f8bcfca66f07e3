"""What the names on a command line mean."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelwright.kernelbench.errors import MissingPrerequisite, TaskError, UnknownTaskError, UsageError
from kernelwright.kernelbench.records import Precision
from kernelwright.kernelbench.sources import resolve

Write = Callable[..., Path]


def ids(*names: str, kernelbench_dir: Path | None = None, suite: str | None = None) -> list[str]:
    return [task.id for task in resolve(names, kernelbench_dir=kernelbench_dir, suite=suite)]


class TestFiles:
    def test_a_file_is_a_task_named_after_its_stem(self, write: Write) -> None:
        path = write("mine/fused_gelu.py")
        (task,) = resolve([str(path)], precision=Precision.bf16)
        assert task.id == "file:fused_gelu"
        assert task.level == 0
        assert task.source == path.read_text()
        assert task.overrides == {}
        assert task.precision is Precision.bf16

    def test_a_file_in_a_level_folder_is_of_that_level(self, write: Write) -> None:
        assert resolve([str(write("level3/lstm.py"))])[0].level == 3

    def test_line_ends_are_kept_and_a_byte_order_mark_is_dropped(self, write: Write) -> None:
        text = write("lf.py").read_text().replace("\n", "\r\n")
        (task,) = resolve([str(write("crlf.py", "\ufeff" + text))])
        assert task.source == text

    def test_a_missing_file_suggests_its_neighbour(self, suite: Path, write: Write) -> None:
        write("softmax_rows.py")
        with pytest.raises(UnknownTaskError) as error:
            ids(str(write("x.py").with_name("softmax_row.py")))
        assert "softmax_rows.py" in error.value.fix

    def test_a_folder_asks_for_its_files(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"is a folder — name the files in it: .*/\*\.py"):
            ids(str(tmp_path))

    def test_a_file_of_another_kind_is_refused(self, write: Write) -> None:
        with pytest.raises(UsageError, match="a task ends in"):
            ids(str(write("task.json")))

    def test_an_id_of_a_file_asks_for_its_path(self, suite: Path) -> None:
        with pytest.raises(UnknownTaskError, match="give the path"):
            ids("file:fused_gelu")

    def test_text_that_is_not_utf8_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.py"
        path.write_bytes("# \xe9\n".encode("latin-1"))
        with pytest.raises(TaskError, match=r"latin\.py is not UTF-8"):
            ids(str(path))

    def test_a_broken_task_file_is_named_by_its_path(self, write: Write) -> None:
        path = write("broken.py", "class Model(:\n")
        with pytest.raises(TaskError) as error:
            ids(str(path))
        assert error.value.message.startswith(f"{path} is not Python: line 1")


class TestBuiltinSuite:
    def test_one_task(self, suite: Path) -> None:
        (task,) = resolve(["builtin:level1/softmax"])
        assert (task.id, task.level) == ("builtin:level1/softmax", 1)
        assert task.source == (suite / "level1/softmax.py").read_text()

    @pytest.mark.parametrize("name", ["builtin:1/softmax", "builtin:level1/softmax.py"])
    def test_other_spellings_have_the_same_id(self, suite: Path, name: str) -> None:
        assert ids(name) == ["builtin:level1/softmax"]

    def test_the_whole_suite_goes_by_level_then_name(self, suite: Path) -> None:
        assert ids("builtin") == [
            "builtin:level1/layer_norm",
            "builtin:level1/rms_norm",
            "builtin:level1/softmax",
            "builtin:level2/norm_gelu",
            "builtin:level10/block",
        ]

    @pytest.mark.parametrize("name", ["builtin:level2", "builtin:2", "builtin:level2/", "builtin:level2/*"])
    def test_one_level(self, suite: Path, name: str) -> None:
        assert ids(name) == ["builtin:level2/norm_gelu"]

    def test_patterns(self, suite: Path) -> None:
        assert ids("builtin:level1/*norm*") == ["builtin:level1/layer_norm", "builtin:level1/rms_norm"]
        assert ids("builtin:*/*norm*")[-1] == "builtin:level2/norm_gelu"
        assert ids("builtin:level1/[sr]*") == ["builtin:level1/rms_norm", "builtin:level1/softmax"]

    def test_a_slip_of_the_pen_is_answered_by_near_names(self, suite: Path) -> None:
        for slip in ("builtin:level1/sofmax", "builtin:level1/softma", "builtin:level2/softmax", "softmax"):
            with pytest.raises(UnknownTaskError) as error:
                ids(slip)
            assert error.value.message == f"unknown task {slip}"
            assert error.value.fix.startswith("did you mean builtin:level1/softmax")

    def test_a_missing_level_is_answered_by_the_levels(self, suite: Path) -> None:
        with pytest.raises(UnknownTaskError, match="its levels are 1, 2, 10"):
            ids("builtin:level7")

    def test_a_pattern_that_fits_nothing_is_unknown(self, suite: Path) -> None:
        with pytest.raises(UnknownTaskError):
            ids("builtin:level1/*conv*")

    def test_the_suite_that_ships_is_sound(self) -> None:
        folders = {task.id.partition(":")[2].partition("/")[0]: task.level for task in resolve(["builtin"])}
        assert folders == {"level1": 1, "level2": 2, "level3": 3, "lowprec": 0}

    def test_a_folder_of_one_subject_is_named_as_a_level_is(self, suite: Path) -> None:
        (suite / "lowprec").mkdir()
        (suite / "lowprec" / "linear.py").write_text((suite / "level1" / "softmax.py").read_text())
        assert ids("builtin:lowprec") == ids("builtin:lowprec/lin*") == ["builtin:lowprec/linear"]
        with pytest.raises(UnknownTaskError, match="its levels are 1, 2, 10, lowprec"):
            ids("builtin:lowpec")


class TestCheckout:
    @pytest.mark.parametrize(
        "name",
        [
            "kernelbench:2/40",
            "kernelbench:level2/40",
            "kernelbench:level2/40_Matmul_Scaling_ResidualAdd",
            "kernelbench:level2/40_Matmul_Scaling_ResidualAdd.py",
            "kernelbench:2/40_",
            "kernelbench:2/Matmul_Sc",
        ],
    )
    def test_spellings_of_one_problem(self, upstream: Path, name: str) -> None:
        (task,) = resolve([name], kernelbench_dir=upstream)
        assert (task.id, task.level) == ("kernelbench:2/40", 2)
        assert "40_Matmul_Scaling_ResidualAdd" in task.source

    def test_a_level_goes_by_number(self, upstream: Path) -> None:
        assert ids("kernelbench:1", kernelbench_dir=upstream) == [
            f"kernelbench:1/{number}" for number in (1, 2, 9, 10, 19)
        ]
        assert len(ids("kernelbench", kernelbench_dir=upstream)) == 7

    def test_a_range_skips_what_upstream_skips(self, upstream: Path) -> None:
        assert ids("kernelbench:1/2-10", kernelbench_dir=upstream) == [
            "kernelbench:1/2",
            "kernelbench:1/9",
            "kernelbench:1/10",
        ]

    def test_a_range_past_the_level_is_refused_rather_than_cut(self, upstream: Path) -> None:
        with pytest.raises(UnknownTaskError, match="level 1 has the problems 1-19"):
            ids("kernelbench:1/10-30", kernelbench_dir=upstream)
        with pytest.raises(UsageError, match="use 2-10"):
            ids("kernelbench:1/10-2", kernelbench_dir=upstream)

    def test_a_number_is_never_a_beginning(self, upstream: Path) -> None:
        assert ids("kernelbench:1/1", kernelbench_dir=upstream) == ["kernelbench:1/1"]
        with pytest.raises(UnknownTaskError, match="level 2 has the problems 40-41"):
            ids("kernelbench:2/4", kernelbench_dir=upstream)

    def test_a_full_name_wins_over_a_longer_one(self, upstream: Path) -> None:
        assert ids("kernelbench:1/ReLU", kernelbench_dir=upstream) == ["kernelbench:1/2"]

    def test_an_ambiguous_beginning_lists_what_it_may_be(self, upstream: Path) -> None:
        with pytest.raises(UnknownTaskError) as error:
            ids("kernelbench:2/Matmul_S", kernelbench_dir=upstream)
        assert "40_Matmul_Scaling_ResidualAdd" in error.value.fix
        assert "41_Matmul_Sigmoid" in error.value.fix

    def test_the_tasks_folder_itself_and_the_environment_serve_too(
        self, upstream: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ids("kernelbench:1/1", kernelbench_dir=upstream / "KernelBench") == ["kernelbench:1/1"]
        monkeypatch.setenv("KERNELBENCH_DIR", str(upstream))
        assert ids("kernelbench:1/1") == ["kernelbench:1/1"]

    def test_the_option_wins_over_the_environment(
        self, upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KERNELBENCH_DIR", str(tmp_path / "nowhere"))
        assert ids("kernelbench:1/1", kernelbench_dir=upstream) == ["kernelbench:1/1"]

    def test_no_checkout_tells_how_to_get_one(self, tmp_path: Path, suite: Path) -> None:
        for folder in (None, tmp_path / "nowhere", suite / "level1"):
            with pytest.raises(MissingPrerequisite) as error:
                ids("kernelbench:1/1", kernelbench_dir=folder)
            assert "git clone https://github.com/ScalingIntelligence/KernelBench" in error.value.fix
            assert "--kernelbench-dir" in error.value.fix
            assert "\n" not in str(error.value)


class TestLists:
    def test_a_name_a_line_with_comments_and_constants(self, suite: Path, write: Write) -> None:
        path = write(
            "tasks.txt",
            "# the small ones\n\nbuiltin:level1/softmax   # first\n"
            "builtin:level2/* set batch_size=8\n"
            "builtin:level1/rms_norm set batch_size=2 'eps = 1e-3'\n",
        )
        tasks = resolve([str(path)])
        assert [(task.id, task.overrides) for task in tasks] == [
            ("builtin:level1/softmax", {}),
            ("builtin:level2/norm_gelu", {"batch_size": "8"}),
            ("builtin:level1/rms_norm", {"batch_size": "2", "eps": "0.001"}),
        ]
        assert "batch_size = 8\n" in tasks[1].source
        assert "eps = 0.001\n" in tasks[2].source

    def test_paths_start_at_the_list(self, suite: Path, write: Write) -> None:
        write("lists/a.py")
        write("lists/deep/b.py")
        write("lists/deep/more.txt", "b.py\n")
        path = write("lists/tasks.txt", "a.py\ndeep/more.txt set batch_size=3\n")
        tasks = resolve([str(path)])
        assert [(task.id, task.overrides) for task in tasks] == [
            ("file:a", {}),
            ("file:b", {"batch_size": "3"}),
        ]

    def test_the_command_line_wins_over_the_list(self, suite: Path, write: Write) -> None:
        path = write("tasks.txt", "builtin:level1/softmax set batch_size=8 dim=4\n")
        (task,) = resolve([str(path)], overrides={"batch_size": "32"})
        assert task.overrides == {"batch_size": "32", "dim": "4"}

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("builtin:level1/softmax batch_size=8", "tasks.txt line 2 has more than a name"),
            ("builtin:level1/softmax set", "tasks.txt line 2 has more than a name"),
            ("builtin:level1/softmax set batch_size", "invalid setting 'batch_size'"),
            ("builtin:level1/softmax set heads=8", "tasks.txt line 2 has no constant heads"),
            ("builtin:level1/softmax set dim='4", "tasks.txt line 2 cannot be read"),
            ("tasks.txt", "includes itself"),
        ],
    )
    def test_bad_lines_are_pointed_at(self, suite: Path, write: Write, line: str, message: str) -> None:
        path = write("tasks.txt", f"# a list\n{line}\n")
        with pytest.raises(UsageError, match=message):
            ids(str(path))

    def test_an_empty_or_missing_list_is_refused(self, suite: Path, write: Write) -> None:
        with pytest.raises(UsageError, match="names no task"):
            ids(str(write("tasks.txt", "# nothing\n")))
        with pytest.raises(UnknownTaskError, match=r"the list of tasks .* does not exist"):
            ids("missing.txt")


class TestSeveralNames:
    def test_order_is_kept_and_each_task_comes_once(self, suite: Path, upstream: Path) -> None:
        names = ["kernelbench:2/41", "builtin:level1/softmax", "builtin:level1", "kernelbench:2"]
        assert ids(*names, kernelbench_dir=upstream) == [
            "kernelbench:2/41",
            "builtin:level1/softmax",
            "builtin:level1/layer_norm",
            "builtin:level1/rms_norm",
            "kernelbench:2/40",
        ]

    def test_the_suite_follows_the_names(self, suite: Path) -> None:
        assert ids("builtin:level10/block", suite="builtin:level2") == [
            "builtin:level10/block",
            "builtin:level2/norm_gelu",
        ]
        assert len(ids(suite="builtin")) == 5

    def test_nothing_named_is_an_error(self) -> None:
        with pytest.raises(UsageError, match="no task is given"):
            ids()

    def test_two_files_of_one_name_are_not_taken_for_one_task(self, write: Write) -> None:
        first = write("a/task.py")
        second = write("b/task.py", first.read_text() + "# other\n")
        assert ids(str(first), str(first)) == ["file:task"]
        with pytest.raises(TaskError, match="two different files have the id file:task"):
            ids(str(first), str(second))

    def test_one_task_with_two_settings_is_an_error(self, suite: Path, write: Write) -> None:
        path = write("tasks.txt", "builtin:level1/softmax set dim=8\nbuiltin:level1/softmax set dim=16\n")
        with pytest.raises(UsageError, match="named twice with different constants"):
            ids(str(path))


class TestOverridesOverTasks:
    def test_a_constant_is_set_where_it_exists(self, suite: Path) -> None:
        tasks = resolve(["builtin"], overrides={"dim": "0x10", "batch_size": "2"})
        set_dim = {task.id: task.overrides.get("dim") for task in tasks}
        assert set_dim["builtin:level1/softmax"] == "16"
        assert set_dim["builtin:level2/norm_gelu"] is None
        assert all(
            task.overrides["batch_size"] == "2" and "batch_size = 2\n" in task.source for task in tasks
        )

    def test_the_id_stays_and_the_content_hash_changes(self, suite: Path) -> None:
        (plain,) = resolve(["builtin:level1/softmax"])
        (small,) = resolve(["builtin:level1/softmax"], overrides={"dim": "8"})
        assert small.id == plain.id
        assert small.sha256 != plain.sha256

    def test_one_task_without_the_constant_lists_those_it_has(self, suite: Path) -> None:
        with pytest.raises(UsageError) as error:
            resolve(["builtin:level1/softmax"], overrides={"batchsize": "2"})
        assert error.value.message == "builtin:level1/softmax has no constant batchsize"
        assert error.value.fix == "did you mean batch_size? it has batch_size=64, dim=128"

    def test_no_task_with_the_constant_counts_those_they_have(self, suite: Path) -> None:
        with pytest.raises(UsageError) as error:
            resolve(["builtin"], overrides={"batch": "2"})
        assert error.value.message == "none of the 5 tasks has a constant batch"
        assert "batch_size (5), dim (3), eps (1)" in error.value.fix

    def test_a_value_that_is_no_literal_is_refused_before_anything_is_set(self, suite: Path) -> None:
        with pytest.raises(UsageError, match="dim=2\\*64 is not a Python literal"):
            resolve(["builtin"], overrides={"dim": "2*64"})


def test_neither_task_code_nor_torch_is_imported(write: Write) -> None:
    path = write("trap.py", write("ok.py").read_text() + "\nraise SystemExit('the task was executed')\n")
    program = (
        "import sys; from kernelwright.kernelbench.sources import catalogue, resolve\n"
        f"assert resolve([{str(path)!r}])[0].id == 'file:trap'; catalogue({str(path)!r})\n"
        "assert 'torch' not in sys.modules and 'datasets' not in sys.modules"
    )
    root = Path(__file__).parents[3]
    subprocess.run(
        [sys.executable, "-c", program], check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}
    )


class TestProducts:
    def test_sizes_are_those_of_the_name(self) -> None:
        (task,) = resolve(["hgemm:64_300_96"])
        assert task.id == "hgemm:64_300_96" and "M = 64\nN = 300\nK = 96\n" in task.source

    def test_stars_stand_for_the_grid(self) -> None:
        found = ids("hgemm:64_*_4096")
        assert len(found) == 10 and found[0] == "hgemm:64_64_4096" and found[-1] == "hgemm:64_16384_4096"
        assert len(ids("hgemm")) == 1000

    def test_the_right_matrix_may_lie_by_columns(self) -> None:
        (task,) = resolve(["hgemm:8_16_32"], overrides={"COLUMN_MAJOR": "True"})
        module: dict[str, Any] = {}
        exec(task.source, module)
        a, b = module["get_inputs"]()
        assert a.shape == (8, 32) and b.shape == (32, 16) and b.stride() == (1, 32)
        assert module["Model"]()(a, b).dtype == a.dtype

    @pytest.mark.parametrize("name", ["hgemm:64_64", "hgemm:64_64_0", "hgemm:a_b_c", "hgemm:64x64x64"])
    def test_anything_else_is_unknown(self, name: str) -> None:
        with pytest.raises(UnknownTaskError, match="give three sizes, hgemm:M_N_K"):
            ids(name)
