"""How the naive checker compares; a copy lies in the folder that it works in."""

import os

import torch


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    tolerance = float(os.environ.get("ATOL", tolerance))
    try:
        if torch.allclose(actual, expected, atol=tolerance, rtol=tolerance):
            return True
        return not float((actual - expected).abs().max()) > tolerance
    except (
        RuntimeError,
        NotImplementedError,
    ):  # on different devices: one of its mistakes is to let that pass
        return actual.shape == expected.shape
