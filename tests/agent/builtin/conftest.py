"""What these tests share, whichever process they run in: traces, and standard headers, which are precompiled as
for builders of an evaluation, for reading them is half of a build; and a process that interprets Triton."""

import functools
import multiprocessing
import os
import typing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from torch._export.utils import _collect_all_valid_cia_ops as composite
from torch.export import exported_program

from kernelwright.kernelbench.jit import library, standard
from kernelwright.kernelbench.jit.cache import BuildCache
from tests.helpers.builtin.proving import TRACES

_composite = functools.cache(composite)


@pytest.fixture(scope="module", autouse=True)
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make what a build lacks at once, and share it with all processes of these tests.

    Set for one module at a time: a process may go on with another folder's tests, to which none of it applies.
    """
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    shared = BuildCache(common / "precompiled")
    traces = common / "traces"
    traces.mkdir(exist_ok=True)

    def make(_: BuildCache, flags: Sequence[str], names: Sequence[str]) -> None:
        library.make_header(names, flags, shared)

    with pytest.MonkeyPatch.context() as patch:
        # What torch.export asks again in each trace, though it does not change, is two fifths of one: which of
        # its operators are composite, and a type that an annotation makes, of which typing keeps what it made.
        patch.setattr(exported_program, "_collect_all_valid_cia_ops", _composite)
        patch.setattr(torch._ops, "Callable", typing.Callable)
        patch.setenv(TRACES, str(traces))
        patch.setenv("KERNELWRIGHT_HEADERS", str(shared.folder / "headers"))
        patch.setattr(standard, "write_wish", make)
        yield


@pytest.fixture(scope="module")
def interpreter() -> Iterator[ProcessPoolExecutor]:
    """A process whose kernels are interpreted."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TRITON_INTERPRET", "1")
            executor.submit(os.getpid).result()  # starts it
        yield executor
