"""Names, arguments, their order and their defaults are Horovod's in TensorFlow and Keras, too.

The table `horovod_tensorflow_signatures.json` is Horovod's side. Ours may have more names, and more
arguments where those are keyword-only. Where ours differ in another way, it stands here.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from aiacc.process_sets import ProcessSet
from tests.support.signatures import look_up, text_of

TABLE = json.loads(
    Path(__file__).with_name("horovod_tensorflow_signatures.json").read_text(encoding="utf-8")
)
FRONT_ENDS = [name for name in TABLE if name != "source"]

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
OURS = {name: importlib.import_module(name.replace("horovod", "aiacc")) for name in FRONT_ENDS}


def cases(part):
    return [(front_end, name) for front_end in FRONT_ENDS for name in TABLE[front_end][part]]


def expected(front_end, part, name):
    text = TABLE[front_end][part][name]
    theirs, instead = DIFFERENT.get(f"{front_end}.{name}", ("", ""))
    assert theirs in text
    return text.replace(theirs, instead) if theirs else text


@pytest.mark.parametrize(("front_end", "name"), cases("signatures"))
def test_signature_is_horovods(front_end, name):
    module = OURS[front_end]
    assert name in module.__all__
    assert text_of(getattr(module, name)) == expected(front_end, "signatures", name)


@pytest.mark.parametrize(("front_end", "path"), cases("members"))
def test_member_is_horovods(front_end, path):
    assert text_of(look_up(OURS[front_end], path)) == expected(front_end, "members", path)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
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
    assert [name for name in names if not hasattr(found, name)] == []
    for name in set(names) & set(dir(module)):
        assert getattr(found, name) is getattr(module, name), name


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_everything_public_exists(front_end):
    module = OURS[front_end]
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert [name for name in TABLE[front_end]["left out"] if hasattr(module, name)] == []


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_elastic_says_what_to_do(front_end):
    elastic = OURS[front_end].elastic
    for name in TABLE[front_end]["modules"]["elastic"]:
        arguments = [None] * (name != "TensorFlowState")
        with pytest.raises(NotImplementedError, match=rf"elastic\.{name} .*--max-restarts"):
            getattr(elastic, name)(*arguments)
