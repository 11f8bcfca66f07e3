"""Kernels that are right are found right, and what is wrong with others is found at its line (see specimen.py)."""

import pytest
import torch

from kernelwright.kernelbench.chips import nvrtc
from kernelwright.kernelbench.errors import Unavailable
from kernelwright.kernelbench.jit.errors import BuildError
from tests.helpers.emulate.specimen import Specimen, corpus

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU there"),
]


@pytest.mark.parametrize("specimen", corpus(), ids=lambda specimen: specimen.name)
def test_what_is_found(specimen: Specimen) -> None:
    assert specimen.run() == specimen.expected


def test_the_corpus_is_broad() -> None:
    specimens = corpus()
    assert len({specimen.path for specimen in specimens}) >= 60
    kinds = {kind for specimen in specimens for kind, _ in specimen.expected}
    assert kinds == {
        "out_of_bounds", "uninitialized", "misaligned", "read_after_write", "write_after_read",
        "write_after_write", "divergent_barrier", "stuck", "not_in_mask", "failed", "unsupported", "refused",
        "wrong_output",
    }  # fmt: skip


def test_what_is_right_here_is_cuda_for_nvrtc() -> None:
    refused = {}
    for specimen in corpus():
        source = specimen.path.read_text()
        if specimen.expected or "cooperative_groups" in source:  # of which only the toolkit has all headers
            continue
        try:
            nvrtc.cubin(source, "sm_90")
        except Unavailable as error:
            pytest.skip(str(error))
        except BuildError as error:
            refused[specimen.name] = str(error)
    assert not refused
