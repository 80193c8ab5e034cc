"""What `aiacc.capabilities` answers before, in and after a job of one rank."""

import pytest

import aiacc
from aiacc import _core, capabilities


def test_answers_follow_the_engine():
    assert not capabilities.mpi_enabled()
    assert not capabilities.gloo_enabled()
    aiacc.init()
    assert not capabilities.mpi_enabled()
    assert capabilities.gloo_enabled()
    assert aiacc.is_homogeneous()
    with pytest.raises(ValueError, match=r"without MPI \(expected mpi_enabled\(\)\)"):
        capabilities.mpi_threads_supported()
    aiacc.shutdown()
    assert not capabilities.gloo_enabled()
    with pytest.raises(ValueError, match=r"use hvd\.init\(\)"):
        aiacc.is_homogeneous()


def test_what_is_built_and_numbers_of_ranks_for_adasum():
    info = _core.build_info()
    assert capabilities.mpi_built() == any(info[f"mpi_{one}"] for one in ("mpich", "openmpi"))
    assert capabilities.gloo_built()
    assert capabilities.nccl_built() == 0
    assert capabilities.cuda_built() == bool(info["cuda_architectures"])
    for absent in ("ddl", "ccl", "rocm"):
        assert getattr(capabilities, f"{absent}_built")() is False
    capabilities.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    powers = [count for count in range(-2, 10) if capabilities.num_rank_is_power_2(count)]
    assert powers == [1, 2, 4, 8]
