"""Variables: of launchers, of this process, and those without effect."""

import logging
import re
import warnings
from pathlib import Path

import pytest

import aiacc
from aiacc import _core, config, horovod_variables, log, unknown_variables
from aiacc.exceptions import BootstrapError
from aiacc.run.help_env import as_markdown, as_text
from tests.support.ranks import run_ranks


def given(text):
    """Variables, of "RANK=0 SIZE=2"."""
    return dict(variable.split("=") for variable in text.split())


TORCHRUN = given(
    "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500 "
    "TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_RUN_ID=job-7"
)


def test_torchrun():
    found = config.launcher_environment({"PATH": "/bin", "RANK": "0"})
    assert (found.torchrun, found.mpi) == (None, None)
    expected = config.TorchrunEnvironment(3, 4, 1, 2, "node0", 29500, True, 2, "job-7")
    assert (expected.local_rank, expected.restart_count) == (1, 2)
    assert config.launcher_environment(TORCHRUN).torchrun == expected
    # Torch's convention without the agent.
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    found = config.launcher_environment({name: TORCHRUN[name] for name in names}).torchrun
    assert (found.agent_store, found.local_rank, found.restart_count) == (False, config.UNKNOWN, 0)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            "PMI_RANK=1 PMI_SIZE=2 PMI_FD=9 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1",
            config.MpiEnvironment("mpich", 1, 2, 0, 1, pmi_fd=9, pmix_namespace=""),
        ),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
            "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=job",
            config.MpiEnvironment("openmpi", 1, 2, 1, 2, config.UNKNOWN, "job"),
        ),
    ],
)
def test_mpirun(variables, expected):
    assert config.launcher_environment(given(variables)).mpi == expected


BAD = ["RANK='one'", "MASTER_PORT='http'", "MASTER_PORT=70000", "MASTER_PORT=0", "RANK=4"]


@pytest.mark.parametrize("said", [*BAD, "WORLD_SIZE=0"])
def test_bad_number_is_named(said):
    name, value = said.split("=")
    with pytest.raises(ValueError, match=f"{said} "):
        config.launcher_environment({**TORCHRUN, name: value.strip("' ")})


def test_child_environment_cache_and_compiler():
    base = {"A": "1", "B": "2"}
    assert config.child_environment({"B": "3"}, base) == {"A": "1", "B": "3"}
    assert base == {"A": "1", "B": "2"}
    assert config.cache_folder({"XDG_CACHE_HOME": "/caches"}) == Path("/caches/aiacc")
    for unset in ({}, {"XDG_CACHE_HOME": ""}, {"XDG_CACHE_HOME": "relative"}):
        assert config.cache_folder(unset) == Path.home() / ".cache" / "aiacc"
    assert config.chosen_compiler({"CXX": "ccache '/my tools/g++'"}) == ["ccache", "/my tools/g++"]
    assert config.chosen_compiler({}) == []


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


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ("", ""),
        ("AIACC_LANES=4 PATH=/bin LANE=1 HOROVOD_LANE=4", ""),
        ("AIACC_LANE=", ""),
        ("AIACC_MPICC=mpicc.openmpi", ""),
        ("AIACC_LANE=4", r"AIACC_LANE \(did you mean AIACC_LANES\?\) is no variable of aiacc"),
        ("AIACC_ADDRESS=4", r"AIACC_ADDRESS \(did you mean AIACC_ADDR\?\) is no"),
        ("AIACC_TIMEOUT_S=4", r"AIACC_TIMEOUT_S \(did you mean AIACC_PEER_TIMEOUT_S\?\) is"),
        ("AIACC_LANE=2 AIACC_COLOUR=1", r"AIACC_COLOUR, AIACC_LANE \(did.*\?\) are no variables"),
    ],
)
def test_a_typo_is_named_with_what_was_meant(variables, said):
    known = [name for name, *_ in _core.env_table()]
    text = unknown_variables.warning_about(given(variables), known)
    assert re.match(rf"\[config\] {said}" if said else "$", text), text


def test_only_what_asks_horovod_for_something_is_named():
    unchanged = given(
        "PATH=/bin AIACC_LANES=2 HOROVOD_CYCLE_TIME=1 HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=10 "
        "HOROVOD_ELASTIC= HOROVOD_HOSTNAME=here HOROVOD_DYNAMIC_PROCESS_SETS=1 "
        "HOROVOD_WITH_PYTORCH=1 HOROVOD_GPU_OPERATIONS=NCCL HOROVOD_CACHE_CAPACITY=7"
    )
    honoured = ["HOROVOD_CACHE_CAPACITY", "HOROVOD_RANK"]
    assert horovod_variables.warning_about(unchanged, honoured) is None
    changed = given(
        "HOROVOD_FUSION_THRESHOLD=0 HOROVOD_CYCLE_TIME=3.5 HOROVOD_COLOUR=blue HOROVOD_RANK=0"
    )
    text = horovod_variables.warning_about(unchanged | changed, honoured)
    assert "HOROVOD_CYCLE_TIME (there is no cycle)" in text
    assert "HOROVOD_FUSION_THRESHOLD (there is no fusion buffer; AIACC_UNIT_BYTES" in text
    assert "HOROVOD_COLOUR (unknown)" in text
    assert text.count("HOROVOD_") == 3


def _warnings_at_init():
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        aiacc.init()
    aiacc.shutdown()
    return [(str(one.message), one.filename) for one in record]


def test_init_warns_once_for_each_and_where_it_was_called(monkeypatch):
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "error")
    assert _warnings_at_init() == []
    variables = "AIACC_LANE=4 HOROVOD_CYCLE_TIME=5 HOROVOD_STALL_CHECK_DISABLE=1 "
    variables += "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE=5"
    for name, value in given(variables).items():
        monkeypatch.setenv(name, value)
    (unknown, ignored), files = zip(*sorted(_warnings_at_init()), strict=True)
    assert set(files) == {__file__}
    assert "AIACC_LANE " in unknown
    assert "no effect: HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE (what is tuned" in ignored
    assert "; HOROVOD_CYCLE_TIME (" in ignored
    assert "STALL" not in ignored


def test_only_one_rank_warns():
    found = run_ranks(3, _warnings_at_init, env={"AIACC_LANE": "4"})
    assert [len(of_rank) for of_rank in found] == [1, 0, 0]


@pytest.mark.parametrize(
    ("variables", "error", "text"),
    [
        ("AIACC_RANK=0 AIACC_SIZE=2 AIACC_ADR=a", BootstrapError, "AIACC_ADDR.*AIACC_ADR .did you"),
        ("AIACC_RANKS=3 AIACC_LANES=foo", ValueError, "AIACC_LANES.*AIACC_RANKS .did you mean"),
        # As the user has called them.
        ("HOROVOD_RANK=0", BootstrapError, " HOROVOD_RANK is set without AIACC_SIZE"),
        ("HOROVOD_RANK=0 AIACC_SIZE=0", BootstrapError, " HOROVOD_RANK=0 and AIACC_SIZE=0"),
    ],
)
def test_typos_are_part_of_an_error(monkeypatch, variables, error, text):
    for name, value in given(variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(error, match=text):
        aiacc.init()


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", "abcd"), ("info", "abcd"), ("warning", "bd"), ("error", "")]
)
def test_one_level_governs_the_logs_of_python_and_of_the_core(monkeypatch, capfd, level, shown):
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setenv("AIACC_LOG_LEVEL", level)
    log.follow_level(3)
    of_python = logging.getLogger("aiacc.autotune")
    writers = (of_python.info, of_python.warning, _core.log_info, _core.log_warning)
    for write, text in zip(writers, "abcd", strict=True):
        write(text)
    said = capfd.readouterr().err
    assert re.findall(r"^\[aiacc \S+ rank 3 \w+\] (.)$", said, re.M) == list(shown)
    logging.root.handlers.append(logging.NullHandler())
    of_python.error("of an application that has handlers of its own")
    assert capfd.readouterr().err == ""
    monkeypatch.undo()
    log.follow_level()
