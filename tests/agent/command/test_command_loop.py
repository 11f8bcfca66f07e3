"""Runs of a command-line agent: worktrees, budgets, what is recorded, what it cannot reach."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from kernelwright.agent.command import attempts, confinement
from kernelwright.kernelbench.records import Size
from kernelwright.results.store.database import RunDatabase
from kernelwright.results.store.records import TaskState
from tests.helpers.command_runs import Said, execute, writing
from tests.helpers.conversing import TASK, Pool, file

confined = pytest.mark.skipif(
    confinement.why_not() is not None, reason="bubblewrap is not installed or may not be used"
)
CALL = "./kernelwright"
ROOT = Path(__file__).parents[3]


def ended(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "workspaces" / TASK.slug / "attempts.json").read_text())


def place(folder: Path, number: int = 1) -> Path:
    return folder / "workspaces" / TASK.slug / f"attempt-{number}"


def log(folder: Path, number: int = 1) -> str:
    return place(folder, number).with_suffix(".log").read_text()


def authors(folder: Path) -> list[str]:
    with RunDatabase.open(folder, read_only=True) as database:
        return [each.candidate.author for each in database.attempts(TASK.id) if not each.confirms]


def reason(folder: Path) -> str:
    with RunDatabase.open(folder, read_only=True) as database:
        [entry] = database.tasks()
        assert entry.state is TaskState.done
        return entry.stop_reason or ""


def test_the_prompt_is_one_word_whether_it_is_quoted_or_not(tmp_path: Path) -> None:
    assert execute(tmp_path, Pool(), """printf '[%s]\\n' {prompt} "{prompt}" '{prompt}'""")
    assert log(tmp_path) == f"[{attempts.PROMPT}]\n" * 3


def test_what_is_left_in_the_kernel_file_is_measured_and_confirmed(tmp_path: Path) -> None:
    pool = Pool()
    assert execute(tmp_path, pool, writing(1.5))
    assert pool.evaluated == ["measure speedup = 1.5", "confirm speedup = 1.5"]
    assert authors(tmp_path) == ["command:cat/1"]
    [attempt] = ended(tmp_path)
    assert {**attempt, "seconds": 0} == {"number": 1, "seconds": 0, "exit_status": 0, "why": "", "files": 1}
    assert reason(tmp_path) == "1 attempt"


def test_every_attempt_has_a_worktree_that_begins_with_the_best_file(tmp_path: Path) -> None:
    command = f"if grep -q 1.5 kernel.py; then {writing(1.2)}\nelse {writing(1.5)}\nfi"
    assert execute(tmp_path, Pool(), command, attempts=3)
    kernels = [(place(tmp_path, number) / "kernel.py").read_text() for number in (1, 2, 3)]
    assert kernels == [file(1.5), file(1.2), file(1.2)]
    assert authors(tmp_path) == ["command:if/1", "command:if/2"]  # the third file was known
    logged = subprocess.run(
        ["git", "log", "--format=%s", "attempt-2"], cwd=place(tmp_path), capture_output=True, text=True
    ).stdout.splitlines()
    assert logged == [
        "End of attempt 2: 1 files, exit status 0",
        "Start of attempt 2",
        "The task, and a kernel to start from",
    ]
    shown = subprocess.run(
        ["git", "show", "attempt-2~1:kernel.py"], cwd=place(tmp_path), capture_output=True, text=True
    ).stdout
    assert shown == file(1.5)
    tracked = subprocess.run(["git", "ls-files"], cwd=place(tmp_path), capture_output=True, text=True).stdout
    assert ".kernelwright.toml" not in tracked and ".mcp.json" not in tracked


def test_a_file_of_no_kernels_is_not_measured_and_that_is_said(tmp_path: Path) -> None:
    said = Said()
    assert execute(tmp_path, Pool(), "rm kernel.py", said)
    assert any("kernel.py was not measured" in line for line in said.lines)


def test_a_command_that_is_not_there_is_no_attempt(tmp_path: Path) -> None:
    said = Said()
    assert not execute(tmp_path, Pool(), "no-such-agent --now", said)
    assert any("--command cannot be run" in line and "no-such-agent" in line for line in said.lines)
    assert not (tmp_path / "workspaces" / TASK.slug / "attempts.json").exists()


def test_the_minutes_of_an_attempt_end_it_with_all_its_processes(tmp_path: Path) -> None:
    mark = tmp_path / "beating"
    loop = f"(while true; do date +%s%N > {mark}; sleep 0.05; done) & {writing(1.5)}\nsleep 100"
    assert execute(tmp_path, Pool(), loop, attempt_minutes=3 / 60)
    [attempt] = ended(tmp_path)
    assert attempt["why"] == "0.05 minutes are over" and attempt["files"] == 1 and attempt["seconds"] < 60
    before = mark.read_text() if mark.exists() else ""
    subprocess.run(["sleep", "0.3"], check=True)
    assert (mark.read_text() if mark.exists() else "") == before


@pytest.mark.parametrize("kernel", ["mkfifo kernel.py", "mkdir kernel.py", "ln -s /etc/passwd kernel.py"])
def test_what_is_no_file_in_the_place_of_the_kernel_is_not_read(tmp_path: Path, kernel: str) -> None:
    said = Said()
    assert execute(tmp_path, Pool(), f"rm kernel.py; {kernel}", said)
    assert any("kernel.py is no file of kernels" in line for line in said.lines)


def test_an_attempt_that_spoils_the_repository_does_not_end_the_run(tmp_path: Path) -> None:
    assert execute(tmp_path, Pool(), f"{writing(1.5)}rm -r ../start/.git/objects", attempts=2)
    assert reason(tmp_path) == "2 attempts" and (place(tmp_path, 2) / "kernel.py").read_text() == file(1.5)


@pytest.mark.slow
def test_git_that_an_attempt_makes_wait_for_ever_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "_GIT_S", 5.0)
    slow = "git config filter.slow.clean 'sleep 100'; echo '* filter=slow' > .gitattributes"
    began = time.monotonic()
    assert execute(tmp_path, Pool(), f"{writing(1.5)}{slow}")
    assert len(ended(tmp_path)) == 1 and time.monotonic() - began < 60


def test_files_of_a_workspace_are_not_written_through_links_that_an_attempt_has_made(tmp_path: Path) -> None:
    spoil = "\n".join(
        [
            "rm -r .claude AGENTS.md kernel.py; mkdir kernel.py; touch kernel.py/file",
            "ln -s ../../../elsewhere .claude; ln -s ../../../victim AGENTS.md",
            "git add -A; git commit -qm spoiled; git -C ../start update-ref refs/heads/main $(git rev-parse HEAD)",
            "git log --format=%s HEAD~1",
        ]
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "victim").write_text("kept")
    assert execute(tmp_path, Pool(), spoil, attempts=2)
    assert (tmp_path / "victim").read_text() == "kept" and not list((tmp_path / "elsewhere").iterdir())
    assert "spoiled" in log(tmp_path, 2)


def test_a_file_that_was_measured_counts_though_the_command_ends_as_one_that_is_not_found(
    tmp_path: Path,
) -> None:
    assert execute(tmp_path, Pool(), f"{writing(1.5)}no-such-notifier")
    assert reason(tmp_path) == "1 attempt" and ended(tmp_path)[0]["exit_status"] == 127


@pytest.mark.slow
def test_the_commands_of_the_workspace_ask_the_run(tmp_path: Path) -> None:
    command = "\n".join(
        [
            writing("element 3 is off"),
            f"{CALL} check; echo STATUS $?",
            writing(1.5),
            f"{CALL} check && {CALL} measure --idea tiling; echo STATUS $?",
            writing(1.7, "other.py"),
            f"{CALL} measure other.py --json",
            f"{CALL} history",
            f"{CALL} submit; echo STATUS $?",
            writing(1.7),
        ]
    )
    pool = Pool()
    assert execute(tmp_path, pool, command)
    text = log(tmp_path)
    assert pool.evaluated == [
        "check wrong = 'element 3 is off'",
        "check speedup = 1.5",
        "measure speedup = 1.5",
        "measure speedup = 1.7",
        "confirm speedup = 1.7",
    ], text
    assert text.count("STATUS 1") == 1 and text.count("STATUS 0") == 2, text
    assert "element 3 is off" in text and '"number":3' in text
    assert "Submitted: it is confirmed when this attempt has ended." in text
    assert "Budget: 8 timed files left." in text
    assert len(authors(tmp_path)) == 4


@pytest.mark.slow
def test_the_budget_of_the_run_is_that_of_the_command(tmp_path: Path) -> None:
    lines = [f"{writing(1 + n / 10)}{CALL} measure; echo STATUS $?" for n in range(4)]
    pool = Pool()
    assert execute(tmp_path, pool, "\n".join(lines), max_evaluations_per_task=3)
    assert pool.evaluated == ["measure speedup = 1.0", "measure speedup = 1.1", "confirm speedup = 1.1"]
    assert (
        "error: no more files: 3 evaluations are spent on this task, or kept for its winner — submit, and stop"
        in log(tmp_path)
    )
    assert log(tmp_path).count("STATUS 2") == 2


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_in_the_same_worktree(tmp_path: Path) -> None:
    command = "\n".join(
        [
            "if test -f notes; then echo AGAIN; exit; fi",
            f"{writing(1.5)}{CALL} measure",
            "touch notes",
            "sleep 100",
        ]
    )
    folder = tmp_path / "run"
    folder.mkdir()
    words = [sys.executable, "-m", "tests.helpers.command_runs", str(folder), command]
    process = subprocess.Popen(words, cwd=ROOT)
    notes = folder / "workspaces" / TASK.slug / "attempt-1" / "notes"
    while not notes.exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    assert not (notes.parent.parent / "attempts.json").exists()
    pool = Pool()
    assert execute(folder, pool, command)
    assert pool.evaluated == ["confirm speedup = 1.5"]
    assert (folder / "evaluated").read_text() == "measure speedup = 1.5\n"
    assert "AGAIN" in log(folder) and len(ended(folder)) == 1


@confined
def test_the_run_and_other_processes_are_hidden_from_the_command(tmp_path: Path) -> None:
    command = "\n".join(
        [
            f"ls {tmp_path}; ls {tmp_path}/workspaces/{TASK.slug}",
            f"echo spoiled > {tmp_path}/run.db; echo spoiled > {tmp_path}/workspaces/{TASK.slug}/attempts.json",
            "ls /proc | grep -c '^[0-9]'",
            f"touch {confinement.__file__} && echo WROTE",
            "kill -9 -1",
        ]
    )
    assert execute(tmp_path, Pool(), f"{writing(1.5)}{command}")
    text = log(tmp_path)
    assert "run.db" not in text.replace("run.db:", "") and "WROTE" not in text
    assert int(next(line for line in text.splitlines() if line.isdigit())) < 10
    assert authors(tmp_path) == ["command:cat/1"] and len(ended(tmp_path)) == 1


@confined
def test_temporary_files_of_others_are_hidden_and_secrets_of_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link in a shared /tmp, in the place of a compiler's output, would be written through: into run.db."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PGPASSWORD", "content of the environment")
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    (tmp_path / "home" / "runs" / "yesterday").mkdir(parents=True)
    for name in (".ssh/key", ".pgpass", "settings", "runs/yesterday/run.db"):
        (tmp_path / "home" / name).write_text(f"content of {name}")
    folder = tmp_path / "home" / "runs" / "run"
    with tempfile.NamedTemporaryFile(prefix="of-another-", suffix=".o") as theirs:
        left = Path(theirs.name).with_suffix(".left")
        command = "\n".join(
            [
                f"ls {left.parent}; rm -f {theirs.name}; ln -s {folder}/run.db {theirs.name}",
                f"echo mine > {left} && cat {left}",
                "cat ~/.ssh/key ~/.pgpass ~/settings ~/runs/*/run.db; echo kept > ~/written; env",
            ]
        )
        assert execute(folder, Pool(), f"{writing(1.5)}{command}")
        text = log(folder)
        assert not Path(theirs.name).is_symlink() and not left.exists()
    assert "of-another" not in text.replace(f"{left}", "") and "mine" in text
    assert "content of settings" in text and text.count("content of") == 1
    assert (tmp_path / "home" / "written").read_text() == "kept\n"


@confined
def test_the_file_of_a_task_is_hidden_if_it_has_hidden_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "task.py"
    path.write_text("rows = 1213\n")
    sizes = (Size(constants={"rows": "64"}), Size(constants={"rows": "1213"}, hidden=True))
    command = f"{writing(1.5)}cat {path}; echo END"
    for number, workload in enumerate((sizes[:1], sizes)):
        task = TASK.model_copy(update={"workload": workload})
        assert execute(tmp_path / f"run{number}", Pool(), command, task=task, tasks=[str(path)])
    said = [log(tmp_path / f"run{number}") for number in range(2)]
    assert ["rows = 1213" in text for text in said] == [True, False] and "END" in said[1]


def test_the_token_of_a_server_of_evaluations_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    words = confinement._words([tmp_path / "token"], [])
    assert words[words.index(str(tmp_path / "token")) - 1] == "/dev/null"


@confined
def test_what_hides_the_run_cannot_be_taken_away_nor_the_folders_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # which it may write
    folder = tmp_path / "runs" / "run"
    folder.parent.mkdir()
    command = "\n".join(
        [
            f"cd /; umount -l {folder}; mv {folder.parent} {tmp_path}/elsewhere && echo MOVED",
            f"mkdir -p {folder}; ls {folder}",
            "grep CapEff /proc/self/status",
        ]
    )
    assert execute(folder, Pool(), f"{writing(1.5)}{command}")
    text = log(folder)
    assert "MOVED" not in text and "run.db" not in text and "0000000000000000" in text
    assert authors(folder) == ["command:cat/1"]


@confined
def test_programs_and_modules_that_the_run_takes_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # which it may write
    programs, missing, modules = tmp_path / "bin", tmp_path / "own" / "bin", tmp_path / "modules"
    programs.mkdir()
    modules.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join([str(missing), str(programs), os.environ["PATH"]]))
    monkeypatch.syspath_prepend(str(modules))
    spoil = "\n".join(
        f"mkdir -p {each}; echo spoiled > {each}/git; mv {each.parent} {tmp_path}-elsewhere"
        for each in (programs, missing, modules)
    )
    assert execute(tmp_path / "run", Pool(), f"{writing(1.5)}{spoil}; touch {tmp_path}/own/free")
    assert not list(tmp_path.glob("**/git")) and (tmp_path / "own" / "free").exists()
