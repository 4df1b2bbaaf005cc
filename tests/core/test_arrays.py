"""Helpers for arrays against PyTorch's functions."""

import numpy as np
import pytest
import torch

from torchrecmetrics.core import arrays


@pytest.mark.parametrize(
    "kind", [torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.float16]
)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 7), (600, 40)])
def test_rows_are_sorted_as_by_torch_and_the_input_is_unchanged(shape, kind, generator):
    values = torch.randint(-50, 50, shape, generator=generator).to(kind)
    before, expected = values.clone(), values.sort(dim=1).values

    assert torch.equal(arrays.sort_rows(values), expected)
    assert torch.equal(values, before)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_nan_is_sorted_last_and_without_a_graph(kind):
    values = torch.tensor([[torch.nan, 3, -1], [2, 1, 0]], dtype=kind, requires_grad=True)
    expected = torch.tensor([[-1, 3, torch.nan], [0, 1, 2]], dtype=kind)

    torch.testing.assert_close(arrays.sort_rows(values), expected, equal_nan=True)


VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    "array", [VALUES.T, VALUES[:, ::-1], VALUES.astype(">f4"), VALUES.astype(np.int16), VALUES > 2]
)
def test_a_read_only_array_of_any_order_or_type_becomes_a_tensor_of_its_numbers(array):
    array.flags.writeable = False
    tensor = arrays.as_tensor(array)

    assert tensor.tolist() == array.tolist()
    assert tensor.numpy().dtype == array.dtype.newbyteorder("=")


def test_an_array_that_can_be_written_shares_its_memory_with_the_tensor():
    assert arrays.as_tensor(VALUES).data_ptr() == VALUES.ctypes.data


@pytest.mark.parametrize(
    "value", [None, [1.0], np.float32(1), np.ma.array(VALUES), np.array(["a"]), VALUES.astype(np.longdouble)], ids=repr
)
def test_what_is_no_array_of_numbers_that_torch_has_is_returned_as_it_is(value):
    assert arrays.as_tensor(value) is value


@pytest.mark.parametrize("width", [0, 1, 2, 3, 4, 7, 8, 9, 100])
def test_sums_by_doubling_are_running_sums(width):
    """They replace `cumsum` where it refuses to be deterministic."""
    sums = arrays.doubling_sums(torch.arange(1.0, width + 1)[None])

    assert sums.tolist() == [[n * (n + 1) / 2 for n in range(1, width + 1)]]
