"""What this installation can do, in Horovod's words: scripts ask before they choose a way."""

from __future__ import annotations

import re

from aiacc import _core, arguments, mpi_library


def mpi_enabled() -> bool:
    """Whether the running job moves its tensors by MPI. False before `init`."""
    return _core.is_initialized() and _core.engine() == "mpi"


def mpi_built() -> bool:
    """Whether a plug-in for MPI was built; it says nothing about an MPI library to run it."""
    return bool(mpi_library.built())


def mpi_threads_supported() -> bool:
    """Whether MPI may be called by several threads, as other libraries in the process want to know.

    Raises:
        ValueError: MPI is not enabled.
    """
    if not mpi_enabled():
        raise ValueError(
            "mpi_threads_supported() without MPI (expected mpi_enabled()); ask mpi_enabled() first"
        )
    return True  # else the engine had refused to start


def gloo_enabled() -> bool:
    """Whether the running job does without MPI, which is what Gloo stands for in Horovod.

    It is not Gloo: the engine is aiacc's own. False before `init`.
    """
    return _core.is_initialized() and not mpi_enabled()


def gloo_built() -> bool:
    """True: jobs without MPI are always possible, by aiacc's own engines."""
    return True


def nccl_built() -> int:
    """Version of NCCL as a number like 22104, or 0: NCCL cannot run in this process."""
    (detail,) = [text for name, viable, text in _core.engines() if name == "nccl" and viable] or [
        ""
    ]
    version = re.search(r"(\d+)\.(\d+)\.(\d+)", detail)
    if version is None:
        return 0
    major, minor, patch = map(int, version.groups())
    return 10000 * major + 100 * minor + patch


def ddl_built() -> bool:
    """False: IBM's DDL is not supported."""
    return False


def ccl_built() -> bool:
    """False: Intel's oneCCL is not supported."""
    return False


def cuda_built() -> bool:
    """Whether the build has the CUDA kernels; tensors on GPUs are staged without them."""
    return bool(_core.build_info()["cuda_architectures"])


def rocm_built() -> bool:
    """False: ROCm is not supported."""
    return False


def num_rank_is_power_2(num_rank: int) -> bool:
    """Whether Adasum is possible among so many ranks: a power of two."""
    arguments.check(locals(), num_rank=arguments.Rule("a whole number", arguments.is_whole))
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """Does nothing. In Horovod it looks for the compiled part of a front-end; here all share one.

    Args:
        ext_name: Module that the extension belongs to.
        ext_env_var: Variable that makes Horovod's build insist on it.
        pkg_path: File of the package.
        *args: Path of the extension relative to that.
    """
    del ext_name, ext_env_var, pkg_path, args
