"""Names, arguments, their order and their defaults are Horovod's: scripts pass them by position.

The table `horovod_torch_signatures.json` is Horovod's side. Ours may have more names, and more
arguments where those are keyword-only.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import aiacc.array as array
import aiacc.torch as hvd
from aiacc import exceptions
from aiacc.process_sets import ProcessSet
from tests.support.signatures import look_up, text_of

TABLE = json.loads(Path(__file__).with_name("horovod_torch_signatures.json").read_text())
SIGNATURES, MEMBERS, MODULES = TABLE["signatures"], TABLE["members"], TABLE["modules"]
CONSTANTS, OBJECTS = TABLE["constants"], TABLE["objects"]


def test_table_has_every_public_name():
    assert len({*SIGNATURES, *CONSTANTS, *OBJECTS} - {"is_homogeneous"}) == 67


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature_is_horovods(name):
    assert name in hvd.__all__
    assert text_of(getattr(hvd, name)) == SIGNATURES[name]


@pytest.mark.parametrize("path", MEMBERS)
def test_member_is_horovods(path):
    assert text_of(look_up(hvd, path)) == MEMBERS[path]


@pytest.mark.parametrize("name", sorted(set(SIGNATURES) & set(array.__all__)))
def test_array_front_end_has_the_same_signature(name):
    expected = SIGNATURES[name].replace("compression=Compression.none, ", "")  # which torch's has
    assert text_of(getattr(array, name)) == expected


def test_array_front_end_has_every_operation():
    for_torch_only = ("sparse_", "broadcast_optimizer", "broadcast_p")
    operations = {
        name
        for name in MODULES["mpi_ops"]
        if name in SIGNATURES and not name.startswith(for_torch_only)
    }
    assert operations - set(array.__all__) == set()


def test_constants_are_horovods():
    for module in (hvd, array):
        assert {name: getattr(module, name) for name in CONSTANTS} == CONSTANTS


def test_objects_are_of_horovods_kind():
    kinds = {"class": type, "ProcessSet": ProcessSet}
    for name, kind in OBJECTS.items():
        assert isinstance(getattr(hvd, name), kinds[kind]), name


@pytest.mark.parametrize("module", MODULES)
def test_submodule_is_imported_and_has_its_names(module):
    found = importlib.import_module(f"aiacc.torch.{module}")
    assert getattr(hvd, module) is found
    missing = [name for name in MODULES[module] if not hasattr(found, name)]
    assert missing == []
    for name in set(MODULES[module]) & set(dir(hvd)):
        assert getattr(found, name) is getattr(hvd, name), name


@pytest.mark.parametrize("module", [hvd, array])
def test_everything_public_exists(module):
    for name in module.__all__:
        assert hasattr(module, name), name


def test_a_difference_is_noticed():
    """The comparison sees order, default, kind and surplus arguments."""

    def right(tensor, name=None, process_set=hvd.global_process_set, *, extra=0):
        pass

    def other_order(tensor, process_set=hvd.global_process_set, name=None):
        pass

    def other_default(tensor, name="", process_set=hvd.global_process_set):
        pass

    def surplus(tensor, name=None, process_set=hvd.global_process_set, extra=0):
        pass

    def required(tensor, name=None, process_set=hvd.global_process_set, *, extra):
        pass

    expected = SIGNATURES["allgather"]
    assert text_of(right) == expected
    for wrong in (other_order, other_default, surplus):
        assert text_of(wrong) != expected
    with pytest.raises(AssertionError, match="extra must be optional"):
        text_of(required)


def test_exceptions_have_horovods_classes_and_attributes():
    assert issubclass(hvd.HorovodInternalError, RuntimeError)
    for name, error in vars(exceptions).items():
        if isinstance(error, type) and issubclass(error, hvd.CollectiveError):
            assert issubclass(error, hvd.HorovodInternalError), name
    interrupt = hvd.HostsUpdatedInterrupt(True)
    assert isinstance(interrupt, RuntimeError)
    assert not isinstance(interrupt, hvd.HorovodInternalError)
    assert interrupt.skip_sync
    assert not hvd.HostsUpdatedInterrupt().skip_sync
    mismatch = hvd.HorovodVersionMismatchError("torch", "2.0", "2.1")
    assert isinstance(mismatch, ImportError)
    assert (mismatch.name, mismatch.version, mismatch.installed_version) == ("torch", "2.0", "2.1")
    assert "torch 2.1 is installed (expected 2.0)" in str(mismatch)


@pytest.mark.parametrize(
    "call",
    [
        lambda: hvd.elastic.run(lambda state: None),
        lambda: hvd.elastic.TorchState(model=None, batch=0),
        lambda: hvd.elastic.ElasticSampler([1, 2]),
    ],
)
def test_elastic_says_what_to_do(call):
    with pytest.raises(NotImplementedError, match=r"not available yet.*--max-restarts"):
        call()
