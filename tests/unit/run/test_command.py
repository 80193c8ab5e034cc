"""The commands that a job becomes, hosts, and what this installation has."""

import socket

import pytest

from aiacc import _core
from aiacc.run import check_build
from aiacc.run.command import (
    Launch,
    MpiLauncher,
    default_threads,
    local_environment,
    mpi_interface,
    mpirun_command,
    torchrun_command,
)
from aiacc.run.hosts import Host, parse_hostfile, parse_hosts, take
from aiacc.run.programs import choose_mpi_launcher, mpi_launchers

SCRIPT = ("/usr/bin/python3", "train.py", "--lr", "0.1")
HYDRA = MpiLauncher("/opt/mpich/bin/mpirun", "mpich", "5.0.2")
OPEN_MPI_4 = MpiLauncher("/usr/bin/mpirun", "openmpi", "4.1.4")
OPEN_MPI_5 = MpiLauncher("/usr/bin/mpirun", "openmpi", "5.0.11")
TWO_HOSTS = (Host("h1", 2), Host("h2", 2))


def test_this_machine_by_its_names_and_addresses(monkeypatch):
    address = _core.interface_addresses()[-1][1]
    monkeypatch.setattr(socket, "getfqdn", lambda: "node1.big.org")
    for host in ("node1", "node1.big.org"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        for name in ("node1", "Node1.big.org", "127.0.1.1", "LOCALHOST", address):
            assert Host(name, 1).is_local(), (host, name)
        for name in ("node2", "node1.other.org", "node", "203.0.113.9", "2001:db8::1"):
            assert not Host(name, 1).is_local(), (host, name)


def test_mpich_here_and_on_hosts():
    command = mpirun_command(Launch(2, SCRIPT), HYDRA, {})
    assert command == ["/opt/mpich/bin/mpirun", "-np", "2", "-bind-to", "none", *SCRIPT]
    launch = Launch(
        4,
        SCRIPT,
        hosts=TWO_HOSTS,
        interface="eth1",
        tag_output=True,
        settings={"AIACC_LANES": "4"},
        extra_arguments=("-launcher", "ssh"),
    )
    assert mpirun_command(launch, HYDRA, {"PATH": "/bin"}) == [
        *("/opt/mpich/bin/mpirun", "-np", "4", "-hosts", "h1:2,h2:2", "-bind-to", "none"),
        *("-prepend-rank", "-iface", "eth1", "-genv", "AIACC_LANES", "4", "-launcher", "ssh"),
        *SCRIPT,
    ]


def test_open_mpi_here_names_its_slots():
    launch = Launch(4, SCRIPT, tag_output=True)
    assert mpirun_command(launch, OPEN_MPI_4, {"PATH": "/bin"}, as_root=True) == [
        *("/usr/bin/mpirun", "--allow-run-as-root", "--tag-output", "-np", "4"),
        *("-H", "localhost:4"),
        *("--bind-to", "none", "--map-by", "slot", "--mca", "pml", "ob1"),
        *("--mca", "btl", "^openib"),
        *SCRIPT,
    ]
    assert "--tag-output" not in mpirun_command(launch, OPEN_MPI_5, {})


def test_open_mpi_on_hosts_forwards_what_matters_but_no_rank():
    known = {"PATH": "/bin", "HOME": "/root", "NCCL_DEBUG": "INFO"}
    environment = {**known, "AIACC_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"}
    launch = Launch(4, SCRIPT, hosts=TWO_HOSTS, interface="eth1", settings={"AIACC_ENGINE": "mpi"})
    command = mpirun_command(launch, OPEN_MPI_5, environment)
    assert command[:5] == ["/usr/bin/mpirun", "-np", "4", "-H", "h1:2,h2:2"]
    forwarded = [command[i + 1] for i, word in enumerate(command) if word == "-x"]
    assert forwarded == ["AIACC_ENGINE=mpi", "NCCL_DEBUG", "PATH"]
    assert "^openib" not in command
    assert command[command.index("--prtemca") + 1 :][:2] == ["prte_if_include", "eth1"]


def test_torchrun():
    assert torchrun_command(Launch(2, SCRIPT), "/usr/bin/python3") == [
        *("/usr/bin/python3", "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", "--no-python"),
        *SCRIPT,
    ]
    with pytest.raises(ValueError, match="this machine only"):
        torchrun_command(Launch(4, SCRIPT, hosts=TWO_HOSTS), "/usr/bin/python3")


def test_local_environment():
    launch = Launch(2, SCRIPT, settings={"AIACC_LANES": "4"})
    found = local_environment(1, launch, "127.0.0.1:5", "secret")
    assert " ".join(sorted(f"{name}={value}" for name, value in found.items())) == (
        "AIACC_ADDR=127.0.0.1:5 AIACC_CROSS_RANK=0 AIACC_CROSS_SIZE=1 AIACC_LANES=4 "
        "AIACC_LOCAL_RANK=1 AIACC_LOCAL_SIZE=2 AIACC_RANK=1 AIACC_RENDEZVOUS_FILE= AIACC_SIZE=2 "
        "AIACC_TOKEN=secret"
    )


def test_what_ranks_are_told_of_cores_and_mpirun_of_interfaces():
    assert default_threads({}, ranks=2, cores=8) == {"OMP_NUM_THREADS": "4"}
    assert default_threads({}, ranks=4, cores=2) == {"OMP_NUM_THREADS": "1"}
    assert default_threads({"OMP_NUM_THREADS": "3"}, ranks=2, cores=8) == {}
    given = ("eth1", "eth1,eth2", "^docker0,lo", "")
    assert [mpi_interface(wanted) for wanted in given] == ["eth1", "eth1", "", ""]


@pytest.mark.parametrize("launcher", [HYDRA, OPEN_MPI_4])
def test_mpirun_takes_no_ipv6_addresses(launcher):
    launch = Launch(2, SCRIPT, hosts=(Host("h1", 1), Host("2001:db8::2", 1)))
    with pytest.raises(ValueError, match=r"host 2001:db8::2: mpirun takes no IPv6 .* torchrun"):
        mpirun_command(launch, launcher, {})
    here = Launch(2, SCRIPT, hosts=(Host("::1", 2),))
    assert "localhost:2" in mpirun_command(here, launcher, {})


@pytest.mark.parametrize(
    ("served", "expected"),
    [(["mpich", "openmpi"], OPEN_MPI_4), (["mpich"], HYDRA), ([], OPEN_MPI_4)],
)
def test_the_first_mpirun_that_a_plugin_serves_is_taken(served, expected):
    assert choose_mpi_launcher([OPEN_MPI_4, HYDRA], served) is expected
    with pytest.raises(ValueError, match="pip install mpich"):
        choose_mpi_launcher([], served)


def test_mpirun_on_path_comes_before_that_beside_python_and_each_is_named_once(
    tmp_path, monkeypatch
):
    for name, said in (
        ("beside", "mpirun (Open MPI) 4.1.4\n\nReport bugs"),
        ("first", "HYDRA build details:\n    Version:                                 5.0.2"),
        ("last", "Intel(R) MPI Library"),
    ):
        (tmp_path / name).mkdir()
        for program in (tmp_path / name / "mpirun", tmp_path / name / "mpiexec"):
            program.write_text(f"#!/bin/sh\necho '{said}'\n")
            program.chmod(0o755)
    folders = [str(tmp_path / name) for name in ("beside", "empty", "first", "last", "beside")]
    monkeypatch.setattr("aiacc.run.programs.search_directories", lambda: folders)
    assert list(mpi_launchers()) == [
        MpiLauncher(str(tmp_path / "first/mpirun"), "mpich", "5.0.2"),
        MpiLauncher(str(tmp_path / "beside/mpirun"), "openmpi", "4.1.4"),
    ]


def test_hosts_and_their_slots_which_are_filled_in_order():
    assert parse_hosts("h1:2,h2:4, h3") == [Host("h1", 2), Host("h2", 4), Host("h3", 1)]
    text = "# cluster\nh1 slots=2\n\nh2 slots = 4 max_slots=8  # big\nh3:3\nh4\n"
    assert parse_hostfile(text) == [Host("h1", 2), Host("h2", 4), Host("h3", 3), Host("h4", 1)]
    hosts = "[2001:db8::1]:2,2001:db8::2,[fd00::3],[fe80::1%eth0]:4,::1"
    names = ("2001:db8::1", "2001:db8::2", "fd00::3", "fe80::1%eth0", "::1")
    assert parse_hosts(hosts) == list(map(Host, names, (2, 1, 1, 4, 1)))
    assert parse_hostfile("[fd00::1] slots=2\nfd00::2 slots=3\n[fd00::3]:4\nfd00::4\n") == [
        Host(f"fd00::{n}", slots) for n, slots in ((1, 2), (2, 3), (3, 4), (4, 1))
    ]
    assert Host("::1", 1).is_local()
    hosts = [Host("h1", 2), Host("h2", 2), Host("h3", 2)]
    assert take(hosts, 3) == [Host("h1", 2), Host("h2", 1)]
    assert take(hosts, 6) == hosts
    with pytest.raises(ValueError, match=r"7 ranks .* 6 slots"):
        take(hosts, 7)


_NEITHER = r"expected name or .* as \[2001:db8::1\]:2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((text, "expected") for text in ("", "h1:0", "h1:x", "h1:2,,h2", "h 1:2", "h1;rm", ":2")),
        *((text, _NEITHER) for text in ("[fd00::1:2", "[h1]:2", "fd00:1:2", "h1:2:3", "[]:1")),
        ("h1:2,h1:2", "'h1' is named twice"),
    ],
)
def test_bad_hosts_are_named(text, said):
    with pytest.raises(ValueError, match=said):
        parse_hosts(text)
    with pytest.raises(ValueError, match="no host is named"):
        parse_hostfile("# nothing\n")


@pytest.mark.parametrize(
    ("brought_by", "version", "line"),
    [
        ("tensorflow-cpu", "2.21.0", "[X] aiacc.tensorflow tensorflow 2.21.0"),
        ("tensorflow", "2.18.0", "[X] aiacc.tensorflow tensorflow 2.18.0"),
        ("tensorflow", "2.15.1", "[ ] aiacc.tensorflow tensorflow 2.15.1 is too old (needs 2.16);"),
        (None, "", "[ ] aiacc.tensorflow tensorflow is not installed; pip install 'tensorflow>=2"),
    ],
)
def test_versions_of_tensorflow_and_none(monkeypatch, brought_by, version, line):
    monkeypatch.setattr(check_build, "find_spec", lambda name: brought_by)
    distributions = {"tensorflow": [brought_by]}
    monkeypatch.setattr(check_build.metadata, "packages_distributions", lambda: distributions)
    monkeypatch.setattr(check_build.metadata, "version", {brought_by: version}.__getitem__)
    assert check_build._frontend("aiacc.tensorflow").strip().startswith(line)
