"""Helpers for arrays against PyTorch's functions."""

import numpy as np
import pytest
import torch

from torchrecmetrics.core import arrays


@pytest.mark.parametrize(
    "kind", [torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 7), (600, 40)])
def test_rows_are_sorted(shape, kind, generator):
    """`sort_rows` gives the values of `torch.sort`, NaN last, and leaves its input unchanged."""
    values = torch.randint(-50, 50, shape, generator=generator).to(kind)
    if kind.is_floating_point and values.numel():
        values[::2, 0] = torch.nan
        values.requires_grad_()
    before = values.detach().clone()
    torch.testing.assert_close(arrays.sort_rows(values), values.detach().sort(dim=1).values, equal_nan=True)
    torch.testing.assert_close(values.detach(), before, equal_nan=True)


def test_arrays_of_numpy():
    """Numbers of numpy become tensors of their type, also read-only or of another byte order; the rest is unchanged."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert arrays.as_tensor(values).data_ptr() == values.ctypes.data
    for array in (values.T, values[:, ::-1], values.astype(">f4"), values.astype(np.int16), values > 2):
        array.flags.writeable = False
        tensor = arrays.as_tensor(array)
        assert (tensor.tolist(), tensor.numpy().dtype) == (array.tolist(), array.dtype.newbyteorder("="))
    for value in (None, [1.0], np.float32(1), np.ma.array(values), np.array(["a"]), values.astype(np.longdouble)):
        assert arrays.as_tensor(value) is value


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 7, 8, 9, 100])
def test_sums_by_doubling(width, generator):
    """`doubling_sums` equals `cumsum`, which it replaces where `cumsum` refuses to be deterministic."""
    values = torch.randint(-9, 9, (3, width), generator=generator).double()
    assert torch.equal(arrays.doubling_sums(values), values.cumsum(1))
