"""Put on PYTHONPATH by ``--as-horovod`` and its like: every interpreter of the job runs this.

It costs nothing until horovod is imported. A sitecustomize that this one hides runs as well.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _InstallOnDemand(importlib.abc.MetaPathFinder):
    """Leaves its place to the finder of `aiacc.compat.horovod` when horovod is imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """What that finder says; None for names other than horovod."""
        if fullname != "horovod":
            return None
        from aiacc.compat.horovod import install

        sys.meta_path.remove(self)
        install()
        return sys.meta_path[0].find_spec(fullname, path, target)


def _run_hidden() -> None:
    """Import the sitecustomize that would have been found without this directory."""
    here = __file__.rpartition("/")[0]
    sys.path[:] = [folder for folder in sys.path if folder != here]
    this = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = this


sys.meta_path.insert(0, _InstallOnDemand())
_run_hidden()
