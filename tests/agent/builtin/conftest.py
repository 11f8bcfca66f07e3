"""Standard headers are precompiled here, as for builders of an evaluation: reading them is half of a build."""

import os
from collections.abc import Iterator, Sequence

import pytest

from kernelbench.jit import library, standard
from kernelbench.jit.cache import BuildCache


@pytest.fixture(scope="session", autouse=True)
def _precompiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a build lacks is made at once, for those after it, of all processes of these tests."""
    own = tmp_path_factory.getbasetemp()
    shared = BuildCache((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "precompiled")

    def make(_: BuildCache, flags: Sequence[str], names: Sequence[str]) -> None:
        library.make_header(names, flags, shared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWRIGHT_HEADERS", str(shared.folder / "headers"))
        patch.setattr(standard, "write_wish", make)
        yield
