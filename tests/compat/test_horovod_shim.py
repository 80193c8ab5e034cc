"""`import horovod.torch` and its like find aiacc: in own processes, because imports stay."""

import importlib
import os
import pickle
import sys
from pathlib import Path

import pytest
import tensorflow as tf  # noqa: F401  so ranks are forked from what has imported it

from aiacc.compat.horovod import install, interpreter
from aiacc.run.command import SITE, as_horovod
from tests.support.jobs import on_ranks
from tests.support.programs import ROOT, run_program
from tests.support.ranks import launch_command, rank_environment

CHECKS = """
import importlib, importlib.util, pickle, sys
import pytest
import horovod, horovod.torch as hvd, horovod.torch.mpi_ops
import aiacc, aiacc.torch, aiacc.capabilities, aiacc.exceptions
from horovod.torch.compression import Compression
from horovod.torch import elastic, optimizer
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.util import check_extension, gloo_built
from horovod.torch.elastic.state import TorchState

assert horovod.__version__ == "0.28.1"
from horovod import run
for call in (run, horovod.run):
    with pytest.raises(NotImplementedError, match="aiaccrun --as-horovod -np N"):
        call(print, np=2)
stands_in = "aiacc stands in for horovod"
for package, name in [(horovod, "init"), (horovod, "mxnet"), (horovod.common, "nothing")]:
    with pytest.raises(AttributeError, match=f"{stands_in} here.*import horovod.torch as hvd"):
        getattr(package, name)
assert hvd is aiacc.torch is sys.modules["horovod.torch"] is horovod.torch
for ours in [name for name in sys.modules if name.startswith("aiacc.torch.")]:
    theirs = ours.replace("aiacc", "horovod")
    assert importlib.import_module(theirs) is sys.modules[ours], theirs
    assert sys.modules[ours].__spec__.name == sys.modules[ours].__name__ == ours
assert Compression is aiacc.torch.Compression
assert HorovodInternalError is aiacc.exceptions.CollectiveError
assert importlib.util.find_spec("horovod.torch") is not None
assert pickle.loads(pickle.dumps(Compression.fp16)) is Compression.fp16
importlib.reload(aiacc.torch.compression.compressors)
for missing in ("horovod.mxnet", "horovod.spark", "horovod.runner", "horovod.torch.nothing"):
    with pytest.raises(ModuleNotFoundError, match=stands_in) as raised:
        importlib.import_module(missing)
    assert raised.value.name == missing
print("good")
"""


def run(program, **environment):
    command = [sys.executable, "-W", "error", "-c", program]
    done = run_program(command, env={**rank_environment({}), **environment}, check=True)
    return done.stdout.split()


def test_installed_by_the_environment():
    environment = as_horovod({"PYTHONPATH": str(ROOT)})
    # A child of the job finds it, and a process that needs no horovod loads nothing.
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHECKS!r}], check=True)"
    )
    assert run(child, **environment) == ["good"]
    assert run("import sys; print('aiacc' in sys.modules)", **environment) == ["False"]


@pytest.mark.parametrize("theirs", ["print('theirs')", "import a_module_that_is_not_there"])
def test_a_hidden_sitecustomize_runs_too_and_its_error_is_its_own(tmp_path, theirs):
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(theirs)
    paths = as_horovod({"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    program = (
        "import sys, horovod.common.util; found = sys.modules.get('sitecustomize')\n"
        f"print(getattr(found, '__file__', ''), {str(SITE)!r} in sys.path)"
    )
    command = [sys.executable, "-c", program]
    done = run_program(command, env={**rank_environment({}), **paths}, check=True)
    if "print" in theirs:
        assert done.stdout.split() == ["theirs", str(hidden), "False"]
    else:
        assert "a_module_that_is_not_there" in done.stderr


def test_a_call_installs_it_unless_the_real_horovod_came_first(tmp_path):
    (tmp_path / "horovod.py").write_text("real = True")
    program = f"""
import sys
import pytest
sys.path.insert(0, {str(tmp_path)!r})
import horovod
from aiacc.compat.horovod import install
with pytest.raises(ImportError, match="imported already, from {tmp_path}.*--as-horovod"):
    install()
assert horovod.real and sys.modules["horovod"] is horovod
del sys.modules["horovod"]
install()
install()
import horovod.common.util
assert horovod.common.util is sys.modules["aiacc.capabilities"]
assert not hasattr(horovod, "real")
print("good")
"""
    assert run(program) == ["good"]


def test_paths_are_not_repeated():
    once = as_horovod({"PYTHONPATH": f"/a{os.pathsep}{os.pathsep}/b"})
    assert once == {"PYTHONPATH": os.pathsep.join([str(SITE), "/a", "/b"])}
    assert as_horovod(once) == once
    assert [path.name for path in Path(SITE).glob("*.py")] == ["sitecustomize.py"]


@pytest.mark.parametrize(
    ("before", "options"),
    [
        ("-m M", []),
        ("-u -W error -m M", ["-u", "-W", "error"]),
        ("-um M", ["-u"]),
        ("-mM", []),
        ("-X dev -OmM", ["-X", "dev", "-O"]),
    ],
)
@pytest.mark.parametrize("arguments", [["a.py", "-m", "M"], ["-m", "M"]])
def test_options_of_the_interpreter_are_kept(before, options, arguments):
    assert interpreter(["python", *before.split(), *arguments], arguments, "M") == options


@pytest.mark.parametrize(
    ("options", "text"), [(["-m"], ": no script (expected"), (["-E", "-m"], "python -E or -I")]
)
def test_the_wrapper_needs_a_script_and_the_environment(options, text):
    arguments = ["train.py"] if "-E" in options else []
    done = run_program([sys.executable, *options, "aiacc.compat.horovod", *arguments])
    assert done.returncode == 2
    assert text in done.stderr


#: Needs no torch, which takes long to import; docs/migrating-from-horovod.md has one that does.
SCRIPT = """
import os, subprocess, sys
import horovod.common.util, numpy
import aiacc.array as hvd
hvd.init()
assert horovod.common.util is sys.modules["aiacc.capabilities"]
assert hvd.allreduce(numpy.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
if "HOROVOD_RANK" in os.environ:
    assert int(os.environ["HOROVOD_RANK"]) == hvd.rank()
    assert int(os.environ["HOROVOD_LOCAL_SIZE"]) == hvd.local_size() == 2
assert sys.argv[1:] == ["--lr", "0.1"] and sys.warnoptions == ["default"]
open(f"{sys.argv[0]}.{hvd.rank()}", "w").close()
hvd.shutdown()
subprocess.run([sys.executable, "-c", "import horovod.common.util"], check=True)
"""


@pytest.mark.parametrize(
    "launcher",
    [
        "aiaccrun",
        "srun",
        # The commands of the page for those who come from Horovod start these.
        pytest.param("torchrun", marks=pytest.mark.nightly),
        pytest.param("mpirun", marks=[pytest.mark.mpi, pytest.mark.nightly]),
    ],
)
def test_any_launcher_runs_an_unchanged_script(launcher, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    told = ["-W", "default", str(script), "--lr", "0.1"]
    if launcher == "aiaccrun":
        command = [*launch_command(launcher, 2, [])[:-1], "--as-horovod", sys.executable, *told]
    else:
        command = launch_command(launcher, 2, ["-m", "aiacc.compat.horovod", *told])
    run_program(command, env=rank_environment({}), check=True)
    assert sorted(path.name for path in tmp_path.glob("train.py?*")) == ["train.py.0", "train.py.1"]


@on_ranks(1, starts=False)
def test_tensorflow_and_keras():
    install()
    import horovod.keras as of_keras
    import horovod.keras.callbacks
    import horovod.tensorflow as hvd
    import horovod.tensorflow.keras as of_tf_keras
    from horovod.keras.elastic import KerasState
    from horovod.tensorflow.compression import Compression
    from horovod.tensorflow.keras.callbacks import MetricAverageCallback
    from horovod.tensorflow.mpi_ops import rank_op

    assert hvd is sys.modules["aiacc.tensorflow"] is sys.modules["horovod.tensorflow"]
    assert (Compression, rank_op) == (hvd.Compression, hvd.rank_op)
    assert of_tf_keras is sys.modules["aiacc.tensorflow.keras"]
    assert of_keras is sys.modules["aiacc.keras"]
    assert horovod.keras.callbacks is of_tf_keras.callbacks is of_keras.callbacks
    assert MetricAverageCallback is of_keras.callbacks.MetricAverageCallback
    assert KerasState is of_tf_keras.elastic.KerasState
    ours = [name for name in sys.modules if name.startswith(("aiacc.tensorflow.", "aiacc.keras."))]
    for name in ours:
        theirs = name.replace("aiacc", "horovod")
        assert importlib.import_module(theirs) is sys.modules[name], theirs
        assert sys.modules[name].__spec__.name == sys.modules[name].__name__ == name
    assert pickle.loads(pickle.dumps(Compression.fp16)) is Compression.fp16
