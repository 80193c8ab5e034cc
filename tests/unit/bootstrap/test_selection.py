"""Which provider a process gets from what it was told, and what a task of Slurm's makes of it."""

import itertools

import pytest

from aiacc.bootstrap import select_provider
from aiacc.bootstrap.provider import AloneProvider, Backoff, Deadline, Generations, rank_list
from aiacc.bootstrap.providers import slurm
from aiacc.bootstrap.selection import launcher_of, launchers, warning_about_leftovers
from aiacc.config import UNKNOWN, SlurmEnvironment, launcher_environment
from aiacc.exceptions import BootstrapError
from tests.unit.test_config import given


def choose(variables, lineage=(), **changes):
    """The provider of a process with these variables of launchers, and settings; closed."""
    numbers = dict.fromkeys(("rank", "size", "local_rank", "local_size"), -1)
    unset = numbers | dict.fromkeys(("addr", "token", "rendezvous_file"), "")
    provider = select_provider(launcher_environment(variables, lineage), unset | changes)
    provider.close()
    return provider


SLURM = given(
    "SLURM_JOB_ID=812 SLURM_STEP_ID=3 SLURM_PROCID=1 SLURM_NTASKS=9 SLURM_STEP_NUM_TASKS=4 "
    "SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NODELIST=node[01-03,07],gpu5 "
    "SLURM_STEP_TASKS_PER_NODE=1(x4) SLURM_CLUSTER_NAME=big SLURM_JOB_USER=ada"
)
HYDRA = given("PMI_RANK=1 PMI_SIZE=2 PMI_FD=9")
TORCHRUN = given("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1")
ALONE_HYDRA = HYDRA | {"PMI_RANK": "0", "PMI_SIZE": "1"}
ALONE_TORCHRUN = TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1"}
#: What srun sets for an MPI library that speaks PMI-2 by other means than a descriptor.
PMI_WITHOUT_A_WAY = {"PMI_RANK": "1", "PMI_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, None),
        (SLURM, "slurm"),
        (SLURM | HYDRA, "mpi"),
        (SLURM | HYDRA | TORCHRUN, "torchrun"),
        (HYDRA | ALONE_TORCHRUN, "mpi"),
        (SLURM | PMI_WITHOUT_A_WAY, "slurm"),
        (PMI_WITHOUT_A_WAY, "mpi"),
        # Nothing tells which is nearer, and two jobs of one rank would be noticed by nobody.
        (SLURM | ALONE_TORCHRUN, "slurm"),
        (SLURM | ALONE_HYDRA, "slurm"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, "slurm"),
    ],
)
def test_whose_word_counts(variables, name):
    environment = launcher_environment(variables)
    expected = None if name is None else getattr(environment, name)
    assert launcher_of(environment) is expected
    assert name is None or expected is not None


ALONE_OPEN_MPI = given("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_NAMESPACE=x")
AGENT = TORCHRUN | {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "x"}
FAR = "RANK=0, WORLD_SIZE=1 (torchrun) do not"


@pytest.mark.parametrize(
    ("nearer", "further", "told", "said"),
    [
        # What is left of another job, before a launcher.
        (SLURM, ALONE_TORCHRUN, "SLURM_PROCID=1, SLURM_STEP_NUM_TASKS=4", FAR),
        (SLURM, ALONE_HYDRA, "SLURM_PROCID=1", "PMI_RANK=0, PMI_SIZE=1 (mpirun) do not"),
        (SLURM, HYDRA, "SLURM_PROCID=1", "PMI_RANK=1, PMI_SIZE=2 (mpirun) do not"),
        (SLURM, TORCHRUN, "SLURM_PROCID=1", "RANK=1, WORLD_SIZE=2 (torchrun) do not"),
        (HYDRA, ALONE_OPEN_MPI, "PMI_RANK=1, PMI_SIZE=2", "OMPI_COMM_WORLD_SIZE=1 (mpirun) do not"),
        (HYDRA, ALONE_TORCHRUN, "PMI_RANK=1", FAR),
        (ALONE_OPEN_MPI, HYDRA, "OMPI_COMM_WORLD_RANK=0", "PMI_RANK=1, PMI_SIZE=2 (mpirun) do not"),
        (AGENT, ALONE_OPEN_MPI | ALONE_HYDRA, "RANK=1, WORLD_SIZE=2", ""),
        # A launcher inside a step divides it, but into jobs of one rank by mistake, perhaps.
        (TORCHRUN, SLURM, "RANK=1, WORLD_SIZE=2", ""),
        (HYDRA, SLURM, "PMI_RANK=1", ""),
        (ALONE_TORCHRUN, SLURM, "RANK=0, WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=4 (srun) do not"),
        # The same is no contradiction.
        (SLURM, TORCHRUN | {"WORLD_SIZE": "4"}, "SLURM_PROCID=1", ""),
    ],
)
def test_the_nearest_launcher_counts_and_the_others_are_named(nearer, further, told, said):
    shells = [{**further, "PATH": "/bin"}, further, {}]
    for lineage in ([nearer | further, *shells], shells):  # by a launcher, or in Python
        environment = launcher_environment(further | nearer, lineage)
        assert launcher_of(environment).told.startswith(told)
        text = warning_about_leftovers(environment)
        assert said in text
        assert bool(text) == bool(said)
    # Where no ancestor can be looked at, none is nearer.
    distances = [one.distance for one in launchers(launcher_environment(further | nearer))]
    assert set(distances) == {0}


def test_rank_0_says_whose_variables_do_not_count(caplog):
    choose(SLURM | ALONE_TORCHRUN)
    assert not caplog.text
    choose(SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"} | ALONE_TORCHRUN)
    assert "unset what is left of another job" in caplog.text


@pytest.mark.parametrize(
    ("variables", "settings", "name", "place"),
    [
        ({}, {}, "alone", (0, 1)),
        ({}, {"rank": 0, "size": 1}, "alone", (0, 1)),
        ({}, {"rank": 1, "size": 4, "addr": "127.0.0.1:1"}, "rendezvous", (1, 4)),
        ({}, {"rank": 1, "size": 4, "rendezvous_file": "/x"}, "file", (1, 4)),
        (SLURM, {}, "slurm", (1, 4)),
        (SLURM, {"addr": "127.0.0.1:1"}, "slurm", (1, 4)),
        # Settings that are complete replace what a launcher says.
        (SLURM, {"rank": 0, "size": 2, "addr": "127.0.0.1:1"}, "rendezvous", (0, 2)),
        (SLURM, {"rank": 0, "size": 1}, "alone", (0, 1)),
        # Those that say the same need not be complete.
        (HYDRA, {"size": 2}, "pmi", (1, 2)),
        (HYDRA, {"rank": 1}, "pmi", (1, 2)),
        (HYDRA, {"rank": 1, "size": 2}, "pmi", (1, 2)),
        # What no launcher of torch has set.
        (HYDRA | {"RANK": "0", "WORLD_SIZE": "2"}, {}, "pmi", (1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2"}, {"rank": 0, "size": 1}, "alone", (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1"}, {}, "alone", (0, 1)),
        ({"WORLD_SIZE": "2"}, {}, "alone", (0, 1)),
    ],
)
def test_which_provider_a_process_gets(variables, settings, name, place):
    provider = choose(variables, **settings)
    assert (provider.name, (provider.rank, provider.size)) == (name, place)


def test_what_providers_have_been_told():
    alone = choose({})
    assert isinstance(alone, AloneProvider)
    assert alone.all_gather(b"mine", timeout_s=0) == [b"mine"]
    explicit = choose({}, rank=1, size=4, addr="127.0.0.1:1", local_rank=1, local_size=2)
    assert (explicit.local_rank, explicit.local_size) == (1, 2)
    assert alone.generation + 1 == explicit.generation


@pytest.mark.parametrize(
    ("variables", "settings", "text"),
    [
        ({}, {"rank": 0}, "AIACC_RANK is set without AIACC_SIZE"),
        ({}, {"size": 2}, "AIACC_SIZE is set without AIACC_RANK"),
        ({}, {"rank": 2, "size": 2, "addr": "a:1"}, "AIACC_RANK=2 and AIACC_SIZE=2"),
        ({}, {"rank": 0, "size": 0, "addr": "a:1"}, "AIACC_SIZE=0"),
        ({}, {"rank": -2, "size": 2, "addr": "a:1"}, "AIACC_RANK=-2"),
        ({}, {"rank": 0, "size": 2}, "without AIACC_ADDR or AIACC_RENDEZVOUS_FILE"),
        ({}, {"rank": 0, "size": 2, "addr": "nonsense"}, "AIACC_ADDR='nonsense'"),
        ({}, {"addr": "a:1"}, "AIACC_ADDR is set without AIACC_RANK"),
        ({}, {"rendezvous_file": "/x"}, "AIACC_RENDEZVOUS_FILE is set without AIACC_RANK"),
        (HYDRA, {"size": 5}, "AIACC_SIZE=5, but mpirun says 2 processes"),
        (HYDRA, {"rank": 0}, "AIACC_RANK=0, but mpirun says that this is rank 1"),
        (ALONE_HYDRA, {"size": 5}, "AIACC_SIZE=5, but mpirun says 1 processes"),
        (TORCHRUN, {"size": 5}, r"AIACC_SIZE=5, but torchrun \(WORLD_SIZE, RANK\) says 2"),
        (SLURM, {"size": 5}, "AIACC_SIZE=5, but srun says 4 processes"),
        (HYDRA, {"size": 2, "addr": "a:1"}, "AIACC_SIZE is set without AIACC_RANK"),
        (given("RANK=0 WORLD_SIZE=2"), {}, "WORLD_SIZE=2 without MASTER_ADDR, MASTER_PORT"),
        (given("WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1"), {}, "MASTER_PORT=1 without RANK"),
    ],
)
def test_settings_that_cannot_work_or_contradict_the_launcher(variables, settings, text):
    with pytest.raises(BootstrapError, match=text):
        choose(variables, **settings)


@pytest.mark.parametrize(
    ("is_left", "of_mpi", "rank"), [(0, 1, 0), (0, 1, 1), (1, 0, 1), (1, 1, 1)]
)
def test_complete_settings_count_and_one_rank_says_so(is_left, of_mpi, rank, caplog):
    left = given("AIACC_RANK=1 AIACC_SIZE=4") if is_left else {}  # by a rank of aiaccrun
    launcher = HYDRA | left | {"PMI_RANK": str(of_mpi)}
    choose(launcher, [launcher, left] * is_left, rank=rank, size=4, addr="127.0.0.1:1")
    said = "AIACC_SIZE=4, but mpirun says 2 processes; the former counts" in caplog.text
    assert said == bool(caplog.text) == ((of_mpi if is_left else rank) == 0)


@pytest.mark.parametrize("name", ["AIACC", "HOROVOD"])
def test_being_alone_is_said_if_it_was_set_before_the_launcher_came(name, caplog):
    alone, launcher = given(f"{name}_RANK=0 {name}_SIZE=1"), HYDRA | {"PMI_RANK": "0"}
    choose(launcher | alone, [launcher | alone, launcher], rank=0, size=1)
    assert not caplog.text
    choose(launcher | alone, [launcher | alone, alone], rank=0, size=1)
    assert "AIACC_SIZE=1, but mpirun says 2 processes; the former counts" in caplog.text


def test_generations_only_grow_backoff_ends_and_ranks_are_listed():
    generations = Generations()
    assert [generations.next(), generations.next()] == [0, 1]
    generations.catch_up(7)
    generations.catch_up(3)
    assert generations.next() == 8
    over = Deadline(0.0)
    Backoff(first_s=1000.0, limit_s=2000.0).pause(over)  # would hang the test if it slept
    assert over.passed()
    assert [rank_list(ranks) for ranks in ([3], [5, 1, 4])] == ["rank 3", "ranks 1, 4 and 5"]
    assert rank_list(range(20)) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more"


def task(**changes) -> SlurmEnvironment:
    found = launcher_environment(SLURM | changes).slurm
    assert found is not None
    return found


def test_a_task_of_a_step():
    where = ("node[01-03,07],gpu5", "1(x4)", "big", "ada")
    expected = SlurmEnvironment(1, 4, 0, 1, 812, 3, *where)
    assert (expected.rank, expected.local_rank, expected.node) == (1, 0, 1)
    assert task() == expected
    assert task(SLURM_STEP_NUM_TASKS="").size == 9
    assert task(SLURM_LOCALID="", SLURM_NODEID="").node == UNKNOWN


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": ""},
        {"SLURM_STEP_ID": "4294967291"},  # of a batch script
        {"SLURM_STEP_ID": "4294967290"},  # of an interactive shell
        {"SLURM_PROCID": ""},
        {"SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": ""},
        {"SLURM_JOB_ID": ""},
    ],
)
def test_a_shell_of_a_job_is_no_task(changes):
    assert launcher_environment(SLURM | changes).slurm is None


@pytest.mark.parametrize(
    ("name", "value"), [("SLURM_PROCID", "4"), ("SLURM_NTASKS", "x"), ("SLURM_JOB_ID", "x")]
)
def test_variables_that_cannot_be(name, value):
    with pytest.raises(ValueError, match=rf"{name}='?{value}"):
        launcher_environment(SLURM | {"SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": "4", name: value})


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("localhost", ["localhost"]),
        ("node[01-03,07],gpu5", ["node01", "node02", "node03", "node07", "gpu5"]),
        ("n[8-11]", ["n8", "n9", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("rack[1-2]n[1,3]-ib,x", ["rack1n1-ib", "rack1n3-ib", "rack2n1-ib", "rack2n3-ib", "x"]),
        ("[1-2]", ["1", "2"]),
        ("a.b-c,d", ["a.b-c", "d"]),
    ],
)
def test_names_of_nodes(nodes, names):
    assert list(slurm.node_names(nodes)) == names


def test_the_first_names_of_a_huge_list_cost_nothing():
    assert list(itertools.islice(slurm.node_names("n[1-999999999]m[0-999999999]"), 2)) == [
        "n1m0",
        "n1m1",
    ]


@pytest.mark.parametrize("nodes", ["", ",", "a,", ",a", "n[", "n]", "n[1", "n[]", "n[2-1]", "n[a]"])
def test_lists_that_cannot_be_read(nodes):
    with pytest.raises(BootstrapError, match=r"SLURM_STEP_NODELIST=.*set AIACC_ADDR"):
        list(slurm.node_names(nodes))


@pytest.mark.parametrize(
    ("tasks_per_node", "counts"),
    [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,3(x2)", [1, 3, 3]), ("", []), ("2(y3)", [])],
)
def test_tasks_of_a_node(tasks_per_node, counts):
    expected = [*counts, UNKNOWN]
    assert [slurm.tasks_of_node(tasks_per_node, n) for n in range(len(counts) + 1)] == expected
    assert slurm.tasks_of_node(tasks_per_node, UNKNOWN) == UNKNOWN


def test_steps_have_ports_and_tokens_of_their_own():
    steps = list(itertools.product(range(5000, 5020), range(200)))
    ports = {slurm.step_port(job, step) for job, step in steps}
    assert len(ports) == len(steps)
    assert all(10000 <= slurm.step_port(2**31 + job, step) < 30000 for job, step in steps)
    others = [task(SLURM_JOB_ID="813"), task(SLURM_STEP_ID="4"), task(SLURM_CLUSTER_NAME="b")]
    assert slurm.step_token(task()) not in map(slurm.step_token, others)
    assert slurm.step_token(task()) == slurm.step_token(task(SLURM_PROCID="2", SLURM_NODEID="3"))


def test_addresses():
    assert slurm.step_address(task()) == f"node01:{slurm.step_port(812, 3)}"
    assert (
        slurm.step_address(task(SLURM_STEP_NODELIST="node7"))
        == f"127.0.0.1:{slurm.step_port(812, 3)}"
    )
    assert slurm.step_address(task(SLURM_PROCID="0", SLURM_NODEID="0")).startswith("node01:")
    with pytest.raises(BootstrapError, match=r"task 0 is on node 1 of node\[01-03.*AIACC_ADDR"):
        slurm.step_address(task(SLURM_PROCID="0"))
