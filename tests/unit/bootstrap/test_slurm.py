"""What a task of Slurm's derives from its variables."""

from __future__ import annotations

import itertools

import pytest

from aiacc.bootstrap.providers.slurm import (
    node_names,
    step_address,
    step_port,
    step_token,
    tasks_of_node,
)
from aiacc.config import UNKNOWN, SlurmEnvironment, launcher_environment
from aiacc.exceptions import BootstrapError

TASK = {
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "1",
    "SLURM_NTASKS": "9",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "node[01-03,07],gpu5",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
    "SLURM_CLUSTER_NAME": "big",
    "SLURM_JOB_USER": "ada",
}


def task(**changes) -> SlurmEnvironment:
    found = launcher_environment(TASK | changes).slurm
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
    assert launcher_environment(TASK | changes).slurm is None


@pytest.mark.parametrize(
    ("name", "value"), [("SLURM_PROCID", "4"), ("SLURM_NTASKS", "x"), ("SLURM_JOB_ID", "x")]
)
def test_variables_that_cannot_be(name, value):
    with pytest.raises(ValueError, match=rf"{name}='?{value}"):
        launcher_environment(TASK | {"SLURM_STEP_NUM_TASKS": "", "SLURM_NTASKS": "4", name: value})


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
    assert list(node_names(nodes)) == names


def test_the_first_names_of_a_huge_list_cost_nothing():
    assert list(itertools.islice(node_names("n[1-999999999]m[0-999999999]"), 2)) == ["n1m0", "n1m1"]


@pytest.mark.parametrize("nodes", ["", ",", "a,", ",a", "n[", "n]", "n[1", "n[]", "n[2-1]", "n[a]"])
def test_lists_that_cannot_be_read(nodes):
    with pytest.raises(BootstrapError, match=r"SLURM_STEP_NODELIST=.*set AIACC_ADDR"):
        list(node_names(nodes))


@pytest.mark.parametrize(
    ("tasks_per_node", "counts"),
    [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,3(x2)", [1, 3, 3]), ("", []), ("2(y3)", [])],
)
def test_tasks_of_a_node(tasks_per_node, counts):
    expected = [*counts, UNKNOWN]
    assert [tasks_of_node(tasks_per_node, n) for n in range(len(counts) + 1)] == expected
    assert tasks_of_node(tasks_per_node, UNKNOWN) == UNKNOWN


def test_steps_have_ports_and_tokens_of_their_own():
    steps = list(itertools.product(range(5000, 5020), range(200)))
    ports = {step_port(job, step) for job, step in steps}
    assert len(ports) == len(steps)
    assert all(10000 <= step_port(2**31 + job, step) < 30000 for job, step in steps)
    others = [task(SLURM_JOB_ID="813"), task(SLURM_STEP_ID="4"), task(SLURM_CLUSTER_NAME="b")]
    assert step_token(task()) not in map(step_token, others)
    assert step_token(task()) == step_token(task(SLURM_PROCID="2", SLURM_NODEID="3"))


def test_addresses():
    assert step_address(task()) == f"node01:{step_port(812, 3)}"
    assert step_address(task(SLURM_STEP_NODELIST="node7")) == f"127.0.0.1:{step_port(812, 3)}"
    assert step_address(task(SLURM_PROCID="0", SLURM_NODEID="0")).startswith("node01:")
    with pytest.raises(BootstrapError, match=r"task 0 is on node 1 of node\[01-03.*AIACC_ADDR"):
        step_address(task(SLURM_PROCID="0"))
