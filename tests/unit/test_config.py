from pathlib import Path

import pytest

from aiacc import _core
from aiacc.config import (
    UNKNOWN,
    MpiEnvironment,
    TorchrunEnvironment,
    cache_folder,
    child_environment,
    chosen_compiler,
    launcher_environment,
)
from aiacc.run.help_env import as_markdown, as_text

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
    "TORCHELASTIC_RUN_ID": "job-7",
}


def test_torchrun():
    found = launcher_environment({"PATH": "/bin", "RANK": "0"})
    assert (found.torchrun, found.mpi) == (None, None)
    expected = TorchrunEnvironment(
        rank=3,
        size=4,
        local_rank=1,
        local_size=2,
        master_addr="node0",
        master_port=29500,
        agent_store=True,
        restart_count=2,
        run_id="job-7",
    )
    assert launcher_environment(TORCHRUN).torchrun == expected


def test_torchs_convention_without_the_agent():
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    found = launcher_environment({name: TORCHRUN[name] for name in names}).torchrun
    assert found is not None
    assert (found.agent_store, found.local_rank, found.restart_count) == (False, UNKNOWN, 0)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            "PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
            MpiEnvironment("mpich", 1, 2, 0, 1, pmi_fd=9, pmix_namespace=""),
        ),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
            "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job",
            MpiEnvironment("openmpi", 1, 2, 1, 2, UNKNOWN, "job"),
        ),
    ],
)
def test_mpirun(variables, expected):
    found = launcher_environment(dict(one.split("=") for one in variables.split()))
    assert found.mpi == expected


@pytest.mark.parametrize("said", ["RANK='one'", "MASTER_PORT='http'", "RANK=4 ", "WORLD_SIZE=0 "])
def test_bad_number_is_named(said):
    name, value = said.split("=")
    with pytest.raises(ValueError, match=said):
        launcher_environment({**TORCHRUN, name: value.strip("' ")})


def test_child_environment_adds_without_changing():
    base = {"A": "1", "B": "2"}
    assert child_environment({"B": "3"}, base) == {"A": "1", "B": "3"}
    assert base == {"A": "1", "B": "2"}


def test_the_cache_is_where_the_user_has_caches():
    assert cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/aiacc")
    for unset in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert cache_folder(unset) == Path.home() / ".cache" / "aiacc"


def test_a_compiler_may_have_arguments():
    assert chosen_compiler({"CXX": "ccache '/my tools/g++'"}) == ["ccache", "/my tools/g++"]
    assert chosen_compiler({}) == []


def test_the_table_of_variables_shows_each_with_alias_values_and_default():
    rows = _core.env_table()
    assert len(rows) > 20
    text = as_text(rows)
    assert [cell for row in rows for cell in row[:4] if cell not in text] == []
    page = as_markdown([("N", "", "a|b", "", "meaning"), ("M", "H", "text", "1", "other")])
    assert page.splitlines()[-2:] == [
        "| `N` |  | a\\|b | empty | meaning |",
        "| `M` | `H` | text | `1` | other |",
    ]
