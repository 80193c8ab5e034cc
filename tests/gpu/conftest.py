"""Tests that need a GPU; `make gpu-check` runs them, elsewhere they are skipped with a reason."""

from __future__ import annotations

import pytest
import torch

_FOLDER = "tests/gpu/"


def _missing() -> str:
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is in this folder on a machine without GPU."""
    reason = _missing()
    for item in items:
        if _FOLDER in item.nodeid:
            item.add_marker(pytest.mark.gpu(1))
            if reason:
                item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {reason}"))
