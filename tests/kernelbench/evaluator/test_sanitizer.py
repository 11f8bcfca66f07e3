"""compute-sanitizer, played by a script: no GPU is needed to see that its word counts."""

from collections.abc import Iterator

import pytest

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.evaluator import Referee, sanitizer
from kernelwright.kernelbench.evaluator.refusal import Refused
from kernelwright.kernelbench.evaluator.session import TaskSession
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import REFERENCE, candidate_of, task_of, variant

REPORT = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale(float *, int)+0x70
=========     by thread (31,0,0) in block (7,0,0)
=========     Address 0x7f2a4a000400 is out of bounds
========= ERROR SUMMARY: 1 error
"""
# Runs the program that it is given, and finds fault where the program has left a file.
TOOL = f"""\
#!/bin/sh
while [ "$1" != "--print-limit" ]; do shift; done
shift 2
"$@" || exit 3
if [ -e fault ]; then
cat <<END
{REPORT}END
exit 86
fi
"""


@pytest.fixture
def session(evaluator: Referee) -> TaskSession:
    """Of an evaluator whose workers find the script."""
    return evaluator.sessions.open(task_of(REFERENCE))


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    folder = tmp_path_factory.mktemp("cuda") / "bin"
    folder.mkdir()
    tool = folder / "compute-sanitizer"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=":")
        patch.setenv("CUDA_HOME", str(folder.parent))  # which candidates may read
        with Referee.start(cache=tmp_path_factory.mktemp("cache"), without=("distinct_uid",)) as made:
            yield made


@pytest.mark.slow
def test_a_candidate_that_it_finds_no_fault_with_goes_on(session: TaskSession) -> None:
    sanitizer.sanitize(session, candidate_of(variant("gelu", "gelu")), "memcheck")


def test_a_fault_is_a_runtime_error_that_says_where(session: TaskSession) -> None:
    faulty = variant("import torch\n", "import torch\nopen('fault', 'w').close()\n")
    with pytest.raises(Refused) as refused:
        sanitizer.sanitize(session, candidate_of(faulty), "memcheck")
    assert refused.value.verdict is Verdict.runtime_error
    assert "memcheck: Invalid __global__ write of size 4 bytes; at scale" in refused.value.reason
    assert "by thread (31,0,0) in block (7,0,0)" in refused.value.reason


def test_a_candidate_that_fails_there_says_with_what(session: TaskSession) -> None:
    with pytest.raises(Refused, match="NameError"):
        sanitizer.sanitize(session, candidate_of(variant("self.norm(x)", "nothing(x)")), "racecheck")


def test_without_the_tool_it_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingPrerequisite, match="CUDA toolkit"):
        sanitizer.require()
