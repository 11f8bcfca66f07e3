"""What `kernelwright tasks` lists."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kernelwright.kernelbench.errors import MissingPrerequisite
from kernelwright.kernelbench.sources import Listing, catalogue
from tests.helpers.task_text import task_text

Write = Callable[..., Path]


def test_the_built_in_suite_with_titles_and_constants(suite: Path) -> None:
    listed = catalogue()
    assert len(listed) == 5
    assert listed[1] == Listing(
        id="builtin:level1/rms_norm",
        level=1,
        title="RMS normalization.",
        constants={"batch_size": "64", "dim": "128", "eps": "1e-5"},
    )


def test_a_known_checkout_is_listed_after_it(suite: Path, upstream: Path) -> None:
    listed = catalogue(kernelbench_dir=upstream)
    assert [each.id for each in listed[4:7]] == [
        "builtin:level10/block",
        "kernelbench:1/1",
        "kernelbench:1/2",
    ]
    assert len(listed) == 12


def test_a_suite_is_any_name(suite: Path, upstream: Path, write: Write) -> None:
    assert [each.id for each in catalogue("kernelbench:2", kernelbench_dir=upstream)] == [
        "kernelbench:2/40",
        "kernelbench:2/41",
    ]
    listed = catalogue(str(write("tasks.txt", "builtin:level1/*norm set dim=8\nbuiltin:level2\n")))
    assert [each.constants.get("dim") for each in listed] == ["8", "8", None]


def test_a_suite_that_is_not_there_says_how_to_get_it() -> None:
    with pytest.raises(MissingPrerequisite, match="git clone"):
        catalogue("kernelbench")


@pytest.mark.parametrize(
    ("docstrings", "title"),
    [
        (('"""\nOf the file.\nMore.\n"""', '"""Of the class."""'), "Of the file."),
        (("", '"""\n    Of the class,\n    two lines.\n    """'), "Of the class,"),
        (('""" """', "pass"), "Fused Gelu"),
    ],
)
def test_a_title_comes_from_the_nearest_docstring(
    write: Write, docstrings: tuple[str, str], title: str
) -> None:
    of_file, of_class = docstrings
    source = (
        f"{of_file}\nclass Net:\n    {of_class}\n    def forward(self, x): return x\n"
        "Model = Net\ndef get_inputs(): return []\ndef get_init_inputs(): return []\n"
    )
    (listing,) = catalogue(str(write("Fused_Gelu.py", source)))
    assert listing.title == title


def test_a_task_of_several_sizes_is_listed_with_them(write: Write) -> None:
    source = task_text(extra="workload = [{'batch_size': 4}, {'batch_size': 8, 'hidden': True}]")
    (listing,) = catalogue(str(write("a.py", source)))
    assert [str(size) for size in listing.sizes] == ["batch_size=4", "batch_size=8"]
    assert listing.constants == {"batch_size": "64"}
