"""Lars and Lamb of timm, without torchvision, which `import timm` wants."""

import importlib
import importlib.util
import sys
import types
from pathlib import Path


def _modules():
    spec = importlib.util.find_spec("timm")
    assert spec is not None, "timm is missing: run make build"
    (folder,) = spec.submodule_search_locations
    packages = {"timm": Path(folder), "timm.optim": Path(folder) / "optim"}
    for name, path in packages.items():
        package = types.ModuleType(name)  # stands for the one whose __init__ imports all of timm
        package.__path__ = [str(path)]
        sys.modules[name] = package
    try:
        return [importlib.import_module(f"timm.optim.{name}") for name in ("lars", "lamb")]
    finally:
        for name in packages:
            del sys.modules[name]


_lars, _lamb = _modules()
Lars, Lamb = _lars.Lars, _lamb.Lamb
