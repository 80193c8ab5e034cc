"""What a result file says about the GPU and its libraries."""

import shutil
import subprocess
from typing import Any

import torch

from aiacc import _core


def missing() -> str:
    """Why nothing can be measured here; "" if there is a GPU that torch can use."""
    if not torch.backends.cuda.is_built():
        return f"torch {torch.__version__} is built without CUDA (expected a build with it)"
    if not torch.cuda.is_available():
        return "torch sees no GPU (expected one; check nvidia-smi and CUDA_VISIBLE_DEVICES)"
    return ""


def describe() -> dict[str, Any]:
    """The GPU, its driver, and the versions of CUDA and NCCL that take part."""
    properties = torch.cuda.get_device_properties(0)
    engines = {name: detail for name, _, detail in _core.engines()}
    return {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(),
        "cuda_of_torch": torch.version.cuda,
        "nccl_of_torch": ".".join(map(str, torch.cuda.nccl.version())),
        "nccl_of_aiacc": engines["nccl"],
        "kernels": _core.build_info()["cuda"],
    }


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown: no nvidia-smi"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.strip() or f"unknown: nvidia-smi ended with {done.returncode}"
