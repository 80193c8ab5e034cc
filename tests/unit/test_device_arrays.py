"""What aiacc.array takes for arrays on a CUDA device, by their interfaces; nothing is submitted."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from aiacc.array import adapter as arrays
from aiacc.array import device_arrays
from tests.support.gpu.device_array import DeviceArray


def test_place_is_that_of_the_interface_and_of_dlpack():
    array = DeviceArray(np.zeros((2, 3), np.float32), device=1, stream=2)
    view = arrays.view_of(array, "here")
    assert (view.device, view.stream) == (1, 2)
    assert (view.shape, view.code) == ((2, 3), arrays.DTYPE_CODES["float32"])
    assert view.address == array.host.__array_interface__["data"][0]
    assert view.array is array
    array.stream = 9
    assert (view.stream, view.stream_now()) == (2, 9)


@pytest.mark.parametrize(
    ("interface", "driver"),
    [
        ({}, 0),  # an old version: the legacy one
        ({"stream": None}, 0),
        ({"stream": 1}, 0),
        ({"stream": 2}, 2),
        ({"stream": 0x7F00}, 0x7F00),
    ],
)
def test_streams_are_as_the_driver_knows_them(interface, driver):
    array = SimpleNamespace(__cuda_array_interface__=interface)
    assert device_arrays.stream_of(array) == driver


def test_new_arrays_come_from_the_library_of_the_given_one_which_must_make_them_there():
    array = DeviceArray(np.zeros(3, np.int16), device=1)
    view = arrays.view_of(array, "here")
    made = view.empty((2, 5))
    assert isinstance(made, DeviceArray)
    assert (made.shape, made.dtype, made.device) == ((2, 5), np.int16, 1)
    for array.made_on in (0, -1):
        with pytest.raises(ValueError, match=r"device 1.*on device (0|-1) .*make device 1 the"):
            view.empty((1,))


_INTERFACE = DeviceArray(np.zeros(1)).__cuda_array_interface__
_PLACELESS = SimpleNamespace(__cuda_array_interface__=_INTERFACE)
REFUSED = [
    (DeviceArray(np.zeros((4, 4), np.float32)[:, ::2]), ValueError, "strides.*contiguous"),
    (DeviceArray(np.zeros(2, np.complex64)), ValueError, r"complex64.*view\('float32'\)"),
    (_PLACELESS, TypeError, r"__dlpack_device__.*cupy\.asarray"),
    ({}, TypeError, "dict.*CUDA array interface or DLPack"),
]


@pytest.mark.parametrize(("array", "kind", "text"), REFUSED)
def test_refusals_name_value_expectation_and_remedy(array, kind, text):
    with pytest.raises(kind, match=f"'x'.*{text}"):
        arrays.view_of(array, "allreduce of 'x'")


def test_strides_of_c_order_are_taken_and_what_must_not_be_written_is_read():
    array = DeviceArray(np.zeros((2, 1, 3), np.float32))
    array.strides = (12, 999, 4)  # the middle one steps nowhere
    array.read_only = True
    assert arrays.view_of(array, "here").shape == (2, 1, 3)
    with pytest.raises(ValueError, match="must not be written"):
        arrays.writable_view_of(array, "here")


def test_dlpack_on_a_device_is_read_by_cupy(monkeypatch):
    given = SimpleNamespace(__dlpack__=None, __dlpack_device__=lambda: (2, 0))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(TypeError, match=r"with DLPack alone.*install cupy"):
        arrays.view_of(given, "here")
    seen = DeviceArray(np.zeros(5, np.float64))
    cupy = SimpleNamespace(from_dlpack=lambda array: seen if array is given else None)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    assert arrays.view_of(given, "here").array is seen


def test_dlpack_in_host_memory_is_read_by_numpy():
    host = np.arange(4.0)
    given = SimpleNamespace(__dlpack__=host.__dlpack__, __dlpack_device__=host.__dlpack_device__)
    view = arrays.view_of(given, "here")
    assert (view.device, view.stream) == (-1, 0)
    assert view.address == host.__array_interface__["data"][0]
