"""What candidates share is built without them; what they build is theirs alone."""

import json
import os
from pathlib import Path

import pytest

from kernelwright.kernelbench.evaluator import Referee
from kernelwright.kernelbench.evaluator.processes import toolchain
from kernelwright.kernelbench.jit.precompiled import WISH
from kernelwright.kernelbench.records import Verdict
from tests.helpers.evaluator.trial import Evaluate, variant

RETURN = "return torch.nn.functional.gelu(self.norm(x))"


def test_a_builder_sees_no_other_candidates_builds(evaluator: Referee, evaluate: Evaluate) -> None:
    if not any(layer.on for layer in evaluator.sessions.pool.layers() if layer.name == "landlock"):
        pytest.skip("this machine does not offer Landlock")
    kernel = """
from kernelwright import jit
library = jit.compile_cpp('extern "C" void nothing(float* y) {}')
"""
    assert evaluate(kernel + variant("Model", "Model")).verdict is Verdict.correct
    look = """
import os
from pathlib import Path
builds = Path(os.environ["KERNELWRIGHT_CACHE"])
assert not list(builds.rglob("*.so")), "of another"
try:
    assert not list(builds.parents[1].iterdir()), "listed"
except PermissionError:
    pass
try:
    (Path(os.environ["KERNELWRIGHT_HEADERS"]) / "mine").touch()
    raise AssertionError("written")
except OSError:
    pass
"""
    evaluation = evaluate(look + variant("Model", "Model"))
    assert evaluation.verdict is Verdict.correct, evaluation.reason


WISHES = {
    "a_folder": lambda path: path.mkdir(),
    "a_pipe": lambda path: os.mkfifo(path),
    "a_link": lambda path: path.symlink_to("/dev/zero"),
    "no_json": lambda path: path.write_text("{" * 100_000),
    "no_object": lambda path: path.write_text("[]"),
    "other_things": lambda path: path.write_text('{"flags": [], "standard": [], "text": []}'),
    "no_list": lambda path: path.write_text('{"flags": 1, "standard": []}'),
    "no_words": lambda path: path.write_text('{"flags": [], "standard": [1]}'),
}


@pytest.mark.parametrize("wish", WISHES)
def test_a_wish_that_no_builder_leaves_is_none(wish: str, tmp_path: Path) -> None:
    WISHES[wish](tmp_path / WISH)
    assert toolchain._read(tmp_path / WISH) is None


def test_a_wish_for_flags_outside_the_allowlist_is_refused(evaluator: Referee, tmp_path: Path) -> None:
    headers = evaluator.sessions.pool.cache / "trusted" / "headers"
    before = sorted(headers.rglob("*.gch"))
    for names in ([], ["cmath"]):
        (tmp_path / WISH).write_text(json.dumps({"flags": ["-fplugin=mine.so"], "standard": names}))
        assert not toolchain.make_wanted_header(evaluator.sessions.pool, tmp_path)
        assert not (tmp_path / WISH).exists()
    (tmp_path / WISH).write_text(json.dumps({"flags": [], "standard": ["/etc/passwd"]}))
    assert not toolchain.make_wanted_header(evaluator.sessions.pool, tmp_path)
    assert sorted(headers.rglob("*.gch")) == before
