"""`import horovod.torch` finds aiacc: in a process of its own, because imports stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiacc.compat.horovod import counterpart
from aiacc.run.command import SITE, as_horovod
from tests.support.ranks import ROOT, launch_command, rank_environment

CHECKS = """
import importlib, importlib.util, pickle, sys
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
    try:
        call(print, np=2)
    except NotImplementedError as error:
        assert "aiaccrun --as-horovod -np N" in str(error)
    else:
        raise AssertionError(call)
for package, name in [(horovod, "init"), (horovod, "keras"), (horovod.common, "nothing")]:
    assert not hasattr(package, name)
    try:
        getattr(package, name)
    except AttributeError as error:
        assert "aiacc stands in for horovod here" in str(error)
        assert "import horovod.torch as hvd" in str(error)
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
for missing in ("horovod.tensorflow", "horovod.keras", "horovod.runner", "horovod.torch.nothing"):
    try:
        importlib.import_module(missing)
    except ModuleNotFoundError as error:
        assert error.name == missing
        assert "aiacc stands in for horovod" in str(error)
    else:
        raise AssertionError(missing)
print("good")
"""


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**rank_environment({}), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_installed_by_a_call():
    install = "from aiacc.compat.horovod import install; install(); install()"
    assert run(f"{install}\n{CHECKS}") == ["good"]


def test_installed_by_the_environment():
    environment = as_horovod({"PYTHONPATH": str(ROOT)})
    assert run(CHECKS, **environment) == ["good"]
    # A child of the job does the same, and one that needs no horovod loads nothing.
    child = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHECKS!r}], check=True)"
    )
    assert run(child, **environment) == ["good"]
    assert run("import sys; print('aiacc' in sys.modules)", **environment) == ["False"]


def test_a_hidden_sitecustomize_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    paths = as_horovod({"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    program = (
        "import sys, sitecustomize, horovod.torch\n"
        f"print(sitecustomize.__file__, {str(SITE)!r} in sys.path)"
    )
    assert run(program, **paths) == ["theirs", str(tmp_path / "sitecustomize.py"), "False"]


def test_an_error_of_a_hidden_sitecustomize_is_its_own(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import a_module_that_is_not_there")
    paths = as_horovod({"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"})
    done = subprocess.run(
        [sys.executable, "-c", "import horovod.torch; print('good')"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**rank_environment({}), **paths},
        check=True,
    )
    assert done.stdout.split() == ["good"]
    assert "a_module_that_is_not_there" in done.stderr


def test_the_real_horovod_comes_first(tmp_path):
    (tmp_path / "horovod.py").write_text("real = True")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import horovod
from aiacc.compat.horovod import install
try:
    install()
except ImportError as error:
    assert "imported already, from {tmp_path}" in str(error), error
    assert "--as-horovod" in str(error)
assert horovod.real and sys.modules["horovod"] is horovod
del sys.modules["horovod"]
install()
import horovod.torch
assert not hasattr(horovod, "real")
print("good")
"""
    assert run(program) == ["good"]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("horovod.torch", "aiacc.torch"),
        ("horovod.torch.mpi_ops", "aiacc.torch.mpi_ops"),
        ("horovod.torch.elastic.state", "aiacc.torch.elastic.state"),
        ("horovod.common.util", "aiacc.capabilities"),
        ("horovod.torches", None),
        ("horovod.tensorflow", None),
        ("horovod", None),
    ],
)
def test_counterparts(theirs, ours):
    assert counterpart(theirs) == ours


def test_paths_are_not_repeated():
    once = as_horovod({"PYTHONPATH": f"/a{os.pathsep}{os.pathsep}/b"})
    assert once == {"PYTHONPATH": os.pathsep.join([str(SITE), "/a", "/b"])}
    assert as_horovod(once) == once
    assert [path.name for path in Path(SITE).glob("*.py")] == ["sitecustomize.py"]


def test_aiaccrun_runs_an_unchanged_script(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch\n"
        "import horovod.torch as hvd\n"
        "hvd.init()\n"
        "assert int(os.environ['HOROVOD_RANK']) == hvd.rank()\n"
        "assert int(os.environ['HOROVOD_LOCAL_SIZE']) == hvd.local_size() == 2\n"
        "assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]\n"
        f"open({str(tmp_path)!r} + f'/{{hvd.rank()}}', 'w').close()\n"
    )
    launcher = launch_command("aiaccrun", 2, [])[:-1]
    subprocess.run(
        [*launcher, "--as-horovod", sys.executable, str(script)],
        env=rank_environment({}),
        timeout=60,
        check=True,
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "train.py"]
