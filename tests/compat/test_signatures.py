"""Names, arguments, their order and their defaults are Horovod's: scripts pass them by position.

The tables `horovod_*_signatures.json` are Horovod's side. Ours may have more names, and more
arguments where those are keyword-only. Where ours differ in another way, it stands here.
"""

import importlib
import inspect
import json
from operator import attrgetter
from pathlib import Path

import pytest

import aiacc.array as array
import aiacc.torch as hvd
from aiacc import exceptions
from aiacc.collectives.reduce_ops import name_of_op
from aiacc.process_sets import ProcessSet, global_process_set


def _table(framework):
    return json.loads(Path(__file__).with_name(f"horovod_{framework}_signatures.json").read_text())


TORCH = _table("torch")
TABLE = {"horovod.torch": TORCH, **_table("tensorflow")}
del TABLE["source"]
SIGNATURES = TORCH["signatures"]

#: By Horovod's names: what ours have in place of Horovod's.
DIFFERENT = {
    # The same mean. There the default keeps `op` from being given.
    "horovod.keras.allreduce": ("average=True", "average=None"),
    # `aiacc.keras` has the callbacks of `aiacc.tensorflow.keras`.
    "horovod.keras.callbacks.BestModelCheckpoint": (
        "verbose=0, mode",
        "verbose=0, save_weights_only=False, mode",
    ),
}
#: Loaded with this file: TensorFlow changes the environment, which tests must not.
OURS = {name: importlib.import_module(name.replace("horovod", "aiacc")) for name in TABLE}


def text_of(function):
    """The signature as the tables write it, without what is keyword-only."""
    kinds = inspect.Parameter
    parts = []
    # A class is called as its __init__ is; some have a __new__ that takes anything.
    is_class = isinstance(function, type)
    signature = inspect.signature(function.__init__ if is_class else function)
    for parameter in list(signature.parameters.values())[is_class:]:
        if parameter.kind is kinds.KEYWORD_ONLY:
            assert parameter.default is not kinds.empty, f"{parameter.name} must be optional"
            continue
        assert parameter.kind is not kinds.POSITIONAL_ONLY, parameter.name
        star = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is kinds.empty else f"={_shown(parameter)}"
        parts.append(f"{star}{parameter.name}{default}")
    return f"({', '.join(parts)})"


def _shown(parameter):
    """The default as the tables write it."""
    if parameter.default is global_process_set:
        return "global_process_set"
    if getattr(parameter.default, "__name__", "") == "NoneCompressor":
        return "Compression.none"
    if parameter.name == "op" and parameter.default is not None:
        return name_of_op(parameter.default)
    return repr(parameter.default)


def cases(part):
    return [(front_end, name) for front_end in TABLE for name in TABLE[front_end][part]]


def expected(front_end, part, name):
    text = TABLE[front_end][part][name]
    theirs, instead = DIFFERENT.get(f"{front_end}.{name}", ("", ""))
    assert theirs in text
    return text.replace(theirs, instead) if theirs else text


def test_table_has_every_public_name():
    names = {*SIGNATURES, *TORCH["constants"], *TORCH["objects"]}
    assert len(names - {"is_homogeneous"}) == 67


@pytest.mark.parametrize(("front_end", "name"), cases("signatures"))
def test_signature_is_horovods(front_end, name):
    module = OURS[front_end]
    assert name in module.__all__
    assert text_of(getattr(module, name)) == expected(front_end, "signatures", name)


@pytest.mark.parametrize(("front_end", "path"), cases("members"))
def test_member_is_horovods(front_end, path):
    assert text_of(attrgetter(path)(OURS[front_end])) == expected(front_end, "members", path)


@pytest.mark.parametrize("front_end", TABLE)
def test_constants_and_objects_are_horovods(front_end):
    module, constants = OURS[front_end], TABLE[front_end]["constants"]
    assert {name: getattr(module, name) for name in constants} == constants
    kinds = {"class": type, "ProcessSet": ProcessSet}
    for name, kind in TABLE[front_end]["objects"].items():
        assert isinstance(getattr(module, name), kinds[kind]), name


@pytest.mark.parametrize(("front_end", "submodule"), cases("modules"))
def test_submodule_is_imported_and_has_its_names(front_end, submodule):
    module, names = OURS[front_end], TABLE[front_end]["modules"][submodule]
    found = getattr(module, submodule)
    if front_end == "horovod.torch":
        assert importlib.import_module(f"aiacc.torch.{submodule}") is found
    assert [name for name in names if not hasattr(found, name)] == []
    for name in set(names) & set(dir(module)):
        assert getattr(found, name) is getattr(module, name), name


@pytest.mark.parametrize("front_end", TABLE)
def test_everything_public_exists(front_end):
    module = OURS[front_end]
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert [name for name in TABLE[front_end].get("left out", ()) if hasattr(module, name)] == []


@pytest.mark.parametrize("name", sorted(set(SIGNATURES) & set(array.__all__)))
def test_array_front_end_has_the_same_signature(name):
    expected = SIGNATURES[name].replace("compression=Compression.none, ", "")  # which torch's has
    assert text_of(getattr(array, name)) == expected


def test_array_front_end_has_every_operation_and_constant():
    for_torch_only = ("sparse_", "broadcast_optimizer", "broadcast_p")
    operations = {
        name
        for name in TORCH["modules"]["mpi_ops"]
        if name in SIGNATURES and not name.startswith(for_torch_only)
    }
    assert operations - set(array.__all__) == set()
    assert {name: getattr(array, name) for name in TORCH["constants"]} == TORCH["constants"]
    assert [name for name in array.__all__ if not hasattr(array, name)] == []


def test_a_difference_is_noticed():
    """The comparison sees order, default, kind and surplus arguments."""

    everyone, expected = hvd.global_process_set, SIGNATURES["allgather"]
    assert text_of(lambda tensor, name=None, process_set=everyone, *, extra=0: 0) == expected
    for wrong in (
        lambda tensor, process_set=everyone, name=None: 0,
        lambda tensor, name="", process_set=everyone: 0,
        lambda tensor, name=None, process_set=everyone, extra=0: 0,
    ):
        assert text_of(wrong) != expected
    with pytest.raises(AssertionError, match="extra must be optional"):
        text_of(lambda tensor, name=None, process_set=everyone, *, extra: 0)


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
    ("front_end", "name"),
    [(front_end, name) for front_end in TABLE for name in TABLE[front_end]["modules"]["elastic"]],
)
def test_elastic_says_what_to_do(front_end, name):
    call = getattr(OURS[front_end].elastic, name)
    arguments = [None] * (name not in {"TensorFlowState", "TorchState"})
    text = rf"elastic\.{name} is not available yet.*--max-restarts"
    with pytest.raises(NotImplementedError, match=text):
        call(*arguments)
