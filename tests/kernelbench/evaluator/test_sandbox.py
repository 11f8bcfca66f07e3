"""What the sandbox keeps in, and what it says of itself."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import InfrastructureError
from kernelwright.kernelbench.evaluator import EAGER, Effort, Limits, Protocol, Referee
from kernelwright.kernelbench.evaluator.processes import worker_handle as process
from kernelwright.kernelbench.evaluator.processes.worker_pool import WorkerPool
from kernelwright.kernelbench.evaluator.sandbox import layers as sandbox
from kernelwright.kernelbench.evaluator.sandbox import process_tree
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, Evaluate, candidate_of, task_of, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"


def on(evaluator: Referee, layer: str) -> bool:
    return next(found.on for found in evaluator.sessions.pool.layers() if found.name == layer)


def alive(mark: str) -> list[int]:
    """Processes that carry `mark` in their command line or environment name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "comm").read_text():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_a_daemon_that_forked_twice_dies_with_the_candidate(evaluate: Evaluate) -> None:
    mark = f"kwd{os.getpid()}"
    daemon = f"""
import ctypes, os, signal, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"{mark}", 0, 0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(1)
    os._exit(0)
"""
    evaluation = evaluate(daemon + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason
    deadline = time.monotonic() + 5
    while alive(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(mark) == []


def test_there_is_no_network(evaluator: Referee, evaluate: Evaluate) -> None:
    if not on(evaluator, "network_namespace"):
        pytest.skip("this machine does not permit network namespaces")
    probe = "import os; return x if os.listdir('/sys/class/net') == [] or not _up() else " + RETURN[7:]
    source = """
import socket
def _up():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        s.connect(("192.0.2.1", 9))
        return True
    except OSError:
        return False
""" + variant(RETURN, probe.replace("import os; ", "").replace("os.listdir('/sys/class/net') == [] or ", ""))
    # Without a route the candidate answers with its input, which is wrong.
    assert evaluate(source).verdict is Verdict.wrong_output


def test_the_loopback_of_a_worker_s_own_network_is_up(evaluator: Referee, evaluate: Evaluate) -> None:
    if not on(evaluator, "network_namespace"):
        pytest.skip("this machine does not permit network namespaces")
    talk = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:  # as ncu and compute-sanitizer do
    with socket.create_connection(server.getsockname(), timeout=5) as client:
        client.sendall(b"hello")
        assert server.accept()[0].recv(5) == b"hello"
"""
    evaluation = evaluate(talk + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_the_environment_is_an_allowlist(evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    leak = "import os\nassert 'OPENAI_API_KEY' not in os.environ, 'leaked'\n"
    assert evaluate(leak + variant("Model", "Model")).verdict is Verdict.correct


LOOK = """
import os
from pathlib import Path
from kernelwright import kernelbench

def opened(path):
    try:
        path.read_bytes() if path.is_file() else list(path.iterdir())
    except PermissionError:
        return False
    return True

tasks = Path(kernelbench.__file__).parent / "tasks"
secret = [tasks, tasks / "level1" / "softmax.py", Path.cwd().parent, Path("/root"), Path("/home"), Path("/tmp")]
found = [str(path) for path in secret if path.exists() and opened(path)]
assert not found, found
"""


def test_a_candidate_reads_neither_tasks_nor_homes_nor_other_workers_folders(
    evaluator: Referee, evaluate: Evaluate
) -> None:
    if not on(evaluator, "landlock"):
        pytest.skip("this machine does not offer Landlock")
    evaluation = evaluate(LOOK + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_a_candidate_writes_to_its_scratch_folder_only(evaluator: Referee, evaluate: Evaluate) -> None:
    if not on(evaluator, "landlock"):
        pytest.skip("this machine does not offer Landlock")
    write = """
def written(path):
    try:
        path.write_text("here")
    except OSError:  # PermissionError, or EROFS in a mount namespace
        return False
    return True
"""
    places = "[Path(os.environ['KERNELWRIGHT_CACHE']), Path('/tmp'), Path(__file__).parents[1]]"
    body = f"""assert written(Path.cwd() / 'mine') and not any(written(place / 'mine') for place in {places})
        {RETURN}"""
    # The builder, which may write to the cache, calls it too; there an assertion that fails changes nothing.
    evaluation = evaluate(LOOK + write + variant(RETURN, body))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_a_fence_that_cannot_be_made_is_not_the_candidate_s_doing(
    evaluator: Referee, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody clears the cache between the making of a folder for builds and the start of the builder."""
    if not on(evaluator, "mount_namespace"):
        pytest.skip("nothing is mounted here")
    candidate = variant("self.norm(x)", "self.norm(x) + 0")
    with monkeypatch.context() as patch:
        patch.setattr(evaluator.sessions.pool, "builds_of", lambda sha256: Path("/nonexistent") / sha256)
        with pytest.raises(InfrastructureError, match="a worker could not be started"):
            evaluate(candidate)
    assert evaluate(candidate).verdict is Verdict.correct  # the next time, the evaluator goes on


def test_a_candidate_cannot_look_into_another_process(evaluator: Referee, evaluate: Evaluate) -> None:
    if not on(evaluator, "seccomp") or platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86-64, behind seccomp")
    probe = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (101, 310, 311, 272):  # ptrace, process_vm_readv, process_vm_writev, unshare
    assert libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, number
"""
    evaluation = evaluate(probe + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


MANY = """
import os, time
children = 0
while children < 900 and os.fork():
    children += 1
if children == 900:
    print("ready", flush=True)
time.sleep(60)
"""


def test_a_tree_of_very_many_processes_is_seen_whole() -> None:
    """Their pids take several reads of /proc, of which none fills its buffer."""
    parent = subprocess.Popen([sys.executable, "-S", "-c", MANY], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "ready\n"
        assert len(process_tree.tree(parent.pid)) == 901
    finally:
        process_tree.kill(parent.pid)
        parent.wait()


def test_a_frozen_tree_stands_still_and_thaws() -> None:
    counter = os.memfd_create("counter")
    os.ftruncate(counter, 8)
    child = os.fork()
    if child == 0:
        for number in range(10**9):
            os.pwrite(counter, number.to_bytes(8, "little"), 0)
        os._exit(0)
    try:
        time.sleep(0.05)
        stopped = list(process_tree.freeze(child))
        assert stopped == [child]
        before = os.pread(counter, 8, 0)
        time.sleep(0.05)
        assert os.pread(counter, 8, 0) == before
        process_tree.thaw(stopped)
        time.sleep(0.05)
        assert os.pread(counter, 8, 0) != before
    finally:
        process_tree.kill(child)
        os.waitpid(child, 0)
        os.close(counter)


VFORKS = r"""
#include <unistd.h>
int main() {
    if (write(1, "ready", 5) == 5 && !vfork()) {
        usleep(200000);
        execlp("sleep", "sleep", "60", nullptr);
    }
    pause();
}
"""


def test_what_is_about_to_start_a_program_can_be_frozen(tmp_path: Path) -> None:
    """Its child, stopped between vfork and exec, would keep it from stopping for ever."""
    source, program = tmp_path / "vforks.cpp", tmp_path / "vforks"
    source.write_text(VFORKS)
    subprocess.run(["g++", "-o", program, source], check=True)
    parent = subprocess.Popen([program], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    try:
        assert parent.stdout.read(5) == b"ready"
        while len(process_tree.tree(parent.pid)) < 2:
            time.sleep(0.001)
        assert list(process_tree.freeze(parent.pid)) == process_tree.tree(parent.pid)
    finally:
        process_tree.kill(parent.pid)
        parent.wait()


def test_every_layer_says_why_it_is_on_or_off(evaluator: Referee, evaluate: Evaluate) -> None:
    evaluation = evaluate("x = 1")
    assert evaluation.environment.sandbox == evaluator.sessions.pool.layers()
    assert all(layer.why for layer in evaluator.sessions.pool.layers())


def test_few_timers_go_off_while_a_process_stands_still(evaluate: Evaluate) -> None:
    """Their interrupts cost whoever runs then."""
    armed = """
import ctypes
libc = ctypes.CDLL(None)
timers = sum(libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p())) == 0 for _ in range(1000))
assert timers < 300, timers
"""
    evaluation = evaluate(armed + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


def test_scratch_folders_are_gone_afterwards(evaluator: Referee, evaluate: Evaluate) -> None:
    evaluate("open('left', 'w').write('x')\n" + variant("Model", "Model"))
    left = [
        p.name for p in evaluator.sessions.pool._base.iterdir() if p.name.startswith(("candidate", "builder"))
    ]
    assert left == []


def test_a_scratch_folder_that_a_dying_process_wrote_to_is_removed_too(
    evaluator: Referee, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, calls = process.remove, []

    def interfered(folder: Path) -> None:
        remove(folder)
        calls.append(folder)
        if len(calls) == 1:
            folder.mkdir()
            (folder / "late").write_text("x")

    monkeypatch.setattr(process, "remove", interfered)
    worker = evaluator.sessions.pool.start(
        "builder", "kernelwright.kernelbench.evaluator.processes.worker:serve", "0" * 64
    )
    worker.close()
    assert calls == [worker.scratch, worker.scratch]
    assert not worker.scratch.exists()


EVERY = ("pid_namespace", "network_namespace", "ipc_namespace", "mount_namespace", "landlock", "seccomp")


@pytest.mark.slow
@pytest.mark.parametrize(
    "off", [("pid_namespace",), ("mount_namespace",), ("landlock",), EVERY], ids=",".join
)
def test_the_evaluator_works_without_a_layer_and_says_so(off: tuple[str, ...], evaluator: Referee) -> None:
    protocol = Protocol(
        effort=Effort(rounds=3, processes=1, most_processes=1, half_width=1.0),
        min_rounds=3,
        block_s=0.005,
        families=("task",),
    )
    with Referee.start(cache=evaluator.sessions.pool.cache, protocol=protocol, without=off) as less:
        task = task_of(REFERENCE)
        honest = less.evaluate(task, candidate_of(variant("Model", "Model")), EAGER)
        assert honest.verdict is Verdict.correct, honest.reason
        assert {layer.name for layer in honest.environment.sandbox if not layer.on} >= set(off)
        wrong = less.evaluate(task, candidate_of(variant(RETURN, "return x")), EAGER)
        assert wrong.verdict is Verdict.wrong_output


def test_what_threads_wait_for_a_cpu_is_counted() -> None:
    """Three that spin on one CPU wait two thirds of the time each."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count what threads wait")
    cpu = min(os.sched_getaffinity(0))
    spin = f"import os, time; os.sched_setaffinity(0, [{cpu}]); print(flush=True)\nwhile True: pass"
    spinning = [
        subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    try:
        for process in spinning:
            assert process.stdout is not None
            process.stdout.readline()
        pids = [process.pid for process in spinning]
        before, started = process_tree.waited_s(pids), time.monotonic()
        time.sleep(1.0)
        assert process_tree.waited_s(pids) - before > 1.0 * (time.monotonic() - started)
    finally:
        for process in spinning:
            process.kill()
            process.communicate()
    assert process_tree.waited_s(pids) == 0.0  # they are gone


def test_a_protocol_without_the_task_s_own_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match="'task'"):
        Protocol(families=("needle",))


def test_workers_of_a_gpu_have_a_proc_of_their_own_pid_namespace() -> None:
    on = ("pid_namespace", "network_namespace", "mount_namespace")
    assert sandbox.layers_of("baseline", on, gpu=True) == ("pid_namespace", "mount_namespace")
    assert sandbox.layers_of("baseline", on) == ("pid_namespace",)
    without = {layer.name: layer.on for layer in sandbox.layers(None, ("mount_namespace",), gpu=True)}
    assert not without["pid_namespace"] and not without["mount_namespace"]


@pytest.mark.slow
@pytest.mark.builds
@pytest.mark.parametrize("role", ["baseline", "candidate"])
def test_a_worker_of_a_gpu_can_name_its_threads(role: str, tmp_path: Path) -> None:
    """As CUDA does when it starts; where it cannot, cuInit returns error 304."""
    with WorkerPool(threads=1, cache=tmp_path, limits=Limits(), device="cuda:0") as pool:
        pool.import_first(("tests.helpers.evaluator.naming",))
        with pool.start(role, "tests.helpers.evaluator.naming:serve", "0" * 64) as worker:
            assert worker.ask({}, 60) == {"pid": "own", "named": "renamed"}
