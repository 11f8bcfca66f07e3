"""Random references against float64: `KERNELWRIGHT_GRAPHS=3000 pytest tests/agent/builtin/test_random_graphs.py`.

A fault that is found this way is kept in tests/helpers/builtin/random_graphs.py.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers.builtin.grammar import references
from tests.helpers.builtin.proving import models, propose
from tests.helpers.builtin.random_graphs import (
    FOUND,
    graphs,
    squares_denormals,
    within_what_rounding_explains,
    works,
)

pytestmark = pytest.mark.builds

SCHEDULES = st.fixed_dictionaries(
    {},
    optional={
        "fuse": st.sampled_from(["all", "apart"]),
        "layout": st.sampled_from(["contiguous", "channels_last"]),
        "k0__block": st.sampled_from(["64", "1024"]),
        "k0__streaming": st.just("on"),
        "k0__keep": st.just("off"),
        "k0__prefetch": st.sampled_from(["on", "off"]),
        "k0__threads": st.sampled_from(["all", "1"]),
        "k0__in_place": st.just("off"),
    },
)


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name: str, tmp_path: Path) -> None:
    text, schedule = FOUND[name]
    hold(text, tmp_path, schedule)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("graphs")


@pytest.mark.timeout(0)
@graphs(16)
@given(references(), SCHEDULES)
def test_random_references(folder: Path, text: str, schedule: dict[str, str]) -> None:
    hold(text, folder, schedule)


@pytest.mark.timeout(0)
@graphs(6)
@given(st.sampled_from(["bfloat16", "float16"]).flatmap(references), SCHEDULES)
def test_random_references_in_16_bits(folder: Path, text: str, schedule: dict[str, str]) -> None:
    hold(text, folder, schedule)


def hold(text: str, folder: Path, schedule: dict[str, str], language: str = "cpp") -> None:
    assume(works(text) and not squares_denormals(text))
    candidate = propose(text, language, **schedule)
    (folder / "last.py").write_text(f"{text}\n# {schedule}\n")  # what a crash was caused by
    (folder / "last_candidate.py").write_text(candidate.source)
    with torch.no_grad():
        within_what_rounding_explains(*models(text, candidate, folder))
