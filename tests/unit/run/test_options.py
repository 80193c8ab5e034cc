"""The command line of `aiaccrun`: what horovodrun accepts is accepted."""

import os
import resource
import sys
from unittest.mock import Mock

import pytest

from aiacc.run.command import SITE
from aiacc.run.hosts import word_on
from aiacc.run.ignored import IGNORED
from aiacc.run.main import main
from aiacc.run.options import parser, settings_of

#: Every option of horovodrun (but -v, --check-build and --help) with a value where it takes one.
HOROVODRUN = """
    -np=2 --num-proc=2 --disable-cache --start-timeout=9 --network-interface=eth0
    --network-interfaces=eth0,eth1 --output-filename=out --verbose --config-file=c.yaml
    -p=22 --ssh-port=22 -i=key --ssh-identity-file=key
    --fusion-threshold-mb=64 --cycle-time-ms=3.5 --cache-capacity=9 --hierarchical-allreduce
    --no-hierarchical-allreduce --hierarchical-allgather --no-hierarchical-allgather
    --torus-allreduce --no-torus-allreduce --autotune --no-autotune --autotune-log-file=f
    --autotune-warmup-samples=3 --autotune-steps-per-sample=10
    --autotune-bayes-opt-max-samples=20 --autotune-gaussian-process-noise=0.8
    --min-np=1 --min-num-proc=1 --max-np=4 --max-num-proc=4 --slots-per-host=2
    --elastic-timeout=600 --reset-limit=3 --blacklist-cooldown-range=1=2
    --host-discovery-script=s.sh --timeline-filename=t.json --timeline-mark-cycles
    --no-timeline-mark-cycles --no-stall-check --stall-check
    --stall-check-warning-time-seconds=60 --stall-check-shutdown-time-seconds=90
    --mpi-threads-disable --no-mpi-threads-disable --mpi-args=--x --tcp --binding-args=b
    --num-nccl-streams=2 --thread-affinity=0 --gloo-timeout-seconds=30 --log-level=INFO
    --log-with-timestamp --log-without-timestamp -prefix-timestamp --jsrun
    --log-hide-timestamp --no-log-hide-timestamp
    --prefix-output-with-timestamp -H=localhost:2 --hosts=localhost:2 -hostfile=f --hostfile=f
    --gloo --mpi
"""


@pytest.mark.parametrize("option", HOROVODRUN.split())
def test_option_of_horovodrun_is_accepted(option):
    words = [option] if option.startswith("--mpi-args") else option.split("=")
    parsed = parser().parse_args([*words, "python", "train.py", "--lr", "0.1"])
    assert parsed.command == ["python", "train.py", "--lr", "0.1"]


def test_options_become_settings():
    given = (
        "--network-interfaces eth0,eth1 --no-stall-check --timeline-mark-cycles --autotune "
        "--cache-capacity 9 --start-timeout 7 --timeline-filename t.json x"
    )
    assert settings_of(parser().parse_args(given.split())) == {
        "AIACC_AUTOTUNE": "1",
        "AIACC_IFACE": "eth0,eth1",
        "AIACC_STALL_WARN_S": "0",
        "AIACC_TIMELINE_MARK_CYCLES": "1",
        "AIACC_CACHE_CAPACITY": "9",
        "AIACC_CONNECT_TIMEOUT_S": "7",
        "AIACC_TIMELINE": "t.json",
    }


def test_ignored_options_are_named_once(launch):
    given = ["--tcp", "--cycle-time-ms", "3", "-prefix-timestamp", "--no-autotune"]
    status, _, said = launch("-np", 1, "--dry-run", *given, "true")
    start = "aiaccrun: ignored: --tcp (use --engine tcp); --cycle-time-ms (there is no cycle); "
    assert (status, said.startswith(f"{start}-prefix-timestamp (")) == (0, True)
    assert "; --no-autotune (" in said
    assert all(reason for _, _, reason in IGNORED)
    assert launch("-np", 1, "--dry-run", "true")[::2] == (0, "")


def test_dry_run_shows_ranks_and_variables(launch, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    status, out, _ = launch("--np", 2, "--lanes", 3, "--dry-run", "true", "a b")
    zero, one = out.splitlines()
    assert (status, zero.partition(":")[0], one.partition(":")[0]) == (0, "rank 0", "rank 1")
    assert "AIACC_RANK=1 AIACC_SIZE=2" in one
    assert "AIACC_LANES=3" in one
    assert one.endswith("true 'a b'")
    status, out, _ = launch("-np", 2, "--lanes", 3, "--torchrun", "--dry-run", "true")
    assert (status, out.startswith("AIACC_LANES=3 ")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-np 1 --gloo --mpi true", "exclude each other"),
        ("-np 1 --mpi --output-filename out true", "--mpi-args"),
        ("-np 2", "no command"),
        ("python x.py", "how many ranks"),
        ("-np 0 python", "how many ranks"),
        ("-np 99999 true", "-np 99999 is more than a job can have: "),
        ("-np 2 no-such-program", "'no-such-program' was not found"),
        ("-np 2 -H far:2 true", "use --mpi"),
        ("-np 3 -H localhost:2 true", "2 slots"),
        ("-np 2 --torchrun -H far:2 true", "this machine only"),
        ("-np 1 --profile /tmp true", "profile /tmp: a folder (expected a file); name one in it, "),
        ("--netcheck h1,h1", "named twice"),
        ("--netcheck h1,h2 python x.py", "with a command"),
        ("--netcheck h1,h2 -H h1:1", "with a command, --hosts"),
        ("--merge-timelines all.json", "no timelines to merge"),
        ("--merge-timelines all.json t.json", "only t.json to merge into all.json; expected"),
        # Values out of range, by the name of the option.
        ("--lanes 99", "--num-nccl-streams/--lanes: '99' (expected whole number, 0 .. 64)"),
        ("--lanes two", "--num-nccl-streams/--lanes: 'two' (expected whole number, 0 .. 64)"),
        ("--start-timeout 0", "'0' (expected number, 0.1 .. 86400)"),
        ("--cache-capacity -1", "'-1' (expected whole number, 0 .. 1048576)"),
        ("--stall-check-warning-time-seconds nan", "'nan' (expected number, 0 .. 1000000)"),
        ("--engine tpc", "--engine: 'tpc' (expected one of auto, "),
        ("--log-level loud", "--log-level: 'loud' (expected one of trace, "),
        ("--grace-s nan", "--grace-s: 'nan' (expected a number, 0 .. 86400)"),
        ("--grace-s -1", "--grace-s: '-1' (expected a number, 0 .. 86400)"),
        # What is meant, perhaps.
        ("--engne tcp", "unrecognized arguments: --engne (did you mean --engine?)"),
        ("-np 2 --lane=3 true", "--lane=3 (did you mean --lanes?)"),
        ("--chek-build", "--chek-build (did you mean --check-build?)"),
        ("--colour true", "unrecognized arguments: --colour\n"),
        ("--as-horovod python x.py", "start `python -m aiacc.compat.horovod script.py`"),
    ],
)
def test_wrong_use_is_explained(arguments, text, capfd):
    with pytest.raises(SystemExit, match="2"):
        sys.exit(main(arguments.split()))
    said = capfd.readouterr().err
    assert text in said
    assert said.startswith("usage: ") or said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("-hostfile {bad} -np 1 true", "hostfile {bad}: 'utf-8' codec can't decode byte 0xff"),
        ("-hostfile {bad}s -np 1 true", "hostfile {bad}s: No such file or directory (expected"),
        ("--mpi --mpi-args a'b -np 1 true", """--mpi-args "a'b": No closing quotation (expected"""),
        ("--output-filename {bad}/a/b -np 1 true", "output folder {bad}/a/b: {bad} is no folder"),
        ("--profile x.json -np 1 true", "the current folder was removed"),
    ],
)
def test_files_folders_and_quotes_are_named(arguments, text, tmp_path, launch, monkeypatch):
    (tmp_path / "bad").write_bytes(b"h\xff slots=1\n")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    given, text = (one.format(bad=tmp_path / "bad") for one in (arguments, text))
    status, _, said = launch(*given.split())
    assert (status, text in said, said.count("\n")) == (2, True, 1), said
    (tmp_path / "bad").write_bytes(b"\xef\xbb\xbflocalhost slots=1\n")  # as Windows writes it
    assert launch("-hostfile", tmp_path / "bad", "true") == (0, "", "")


def test_more_ranks_than_the_machine_can_have_are_refused(monkeypatch, capsys):
    assert word_on(128, 2, 0) == ""
    assert word_on(129, 2, 0) == "-np 129 on 2 cores: 64 ranks share each of them"
    assert word_on(200, 100, 632) == ""
    monkeypatch.setattr(resource, "getrlimit", lambda name: (632, 632))
    assert main(["-np", "201", "true"]) == 2
    assert "-np 201 on this machine (expected at most 200, by 632 open" in capsys.readouterr().err
    with pytest.raises(ValueError, match="at most 0, by 20 open"):
        word_on(1, 2, 20)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("AIACC_SIZE", "5", "2"),
        ("HOROVOD_SIZE", "5", "2"),
        ("AIACC_RANK", "1", "0..1, one for each"),
        ("AIACC_LOCAL_SIZE", "1", "2"),
        ("AIACC_LOCAL_RANK", "0", "0..1, one for each"),
        ("AIACC_CROSS_SIZE", "2", "1"),
        ("AIACC_CROSS_RANK", "1", "0"),
    ],
)
def test_variables_that_contradict_the_launch(launch, monkeypatch, variable, value, expected):
    monkeypatch.setenv(variable, value)
    status, _, said = launch("-np", 2, "true")
    name = variable.replace("HOROVOD", "AIACC")
    assert said.startswith(f"aiaccrun: {name}={value}, but -np 2 makes it {expected} (expected ")
    assert f"unset {name}" in said
    assert (status, said.count("\n")) == (2, 1)


def test_variables_that_agree_with_the_launch_are_fine_and_others_replaced(launch, monkeypatch):
    monkeypatch.setenv("AIACC_SIZE", "1")
    monkeypatch.setenv("AIACC_RANK", "0")
    assert launch("-np", 1, "true") == (0, "", "")
    for name in ("AIACC_ADDR", "AIACC_TOKEN", "AIACC_RENDEZVOUS_FILE"):
        monkeypatch.setenv(name, "x")
    said = "aiaccrun: ignored: AIACC_ADDR, AIACC_TOKEN, AIACC_RENDEZVOUS_FILE of the environment "
    assert launch("-np", 1, "true") == (0, "", said + "(aiaccrun sets its own)\n")


@pytest.mark.parametrize("given", ["option", "AIACC_TIMELINE", "HOROVOD_TIMELINE"])
@pytest.mark.parametrize("launcher", [[], ["--torchrun"], ["--dry-run"]])
def test_a_timeline_needs_a_folder(given, launcher, tmp_path, launch, monkeypatch):
    file = str(tmp_path / "none" / "t.json")
    options = ["--timeline-filename", file] if given == "option" else []
    if not options:
        monkeypatch.setenv(given, file)
    status, _, said = launch("-np", 2, *launcher, *options, "true")
    assert said.startswith(f"aiaccrun: timeline {file}: ")
    assert (status, said.count("\n")) == (2, 1)
    (tmp_path / "none").mkdir()
    assert launch("-np", 2, "--dry-run", *options, "true")[0] == 0
    for wrong in (str(tmp_path), "/dev/null"):
        options = ["--timeline-filename", wrong] if given == "option" else []
        monkeypatch.setenv(given, wrong)
        status, _, said = launch("-np", 2, *launcher, *options, "true")
        assert (status, f"timeline {wrong}: a folder or device" in said) == (2, True)


def test_a_profile_is_where_the_launcher_was_started(tmp_path, launch, monkeypatch):
    monkeypatch.chdir(tmp_path)
    find = "import os; os.chdir('/'); print(os.environ['AIACC_PROFILE'])"
    status, out, _ = launch("-np", 1, "--profile", "model.json", sys.executable, "-c", find)
    assert (status, out) == (0, f"{tmp_path / 'model.json'}\n")


def test_an_interrupt_before_the_start_is_no_traceback(launch, monkeypatch):
    interrupt = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("aiacc.run.main.resolve_command", interrupt)
    assert launch("-np", 2, "true") == (130, "", "")


def test_output_goes_to_files(tmp_path, launch):
    program = (
        "import os, sys; print(os.environ['AIACC_RANK'], len(os.environ['AIACC_TOKEN'])); "
        "print('bad', file=sys.stderr)"
    )
    given = ["-np", 2, "--tag-output", "--output-filename", tmp_path]
    assert launch(*given, sys.executable, "-c", program)[:2] == (0, "")
    for rank in range(2):
        assert (tmp_path / f"rank.{rank}" / "stdout").read_text() == f"{rank} 32\n"
        assert (tmp_path / f"rank.{rank}" / "stderr").read_text() == "bad\n"


def test_as_horovod_tells_places_and_paths(launch, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/theirs")
    program = "import os; print(os.environ['PYTHONPATH'], os.environ.get('HOROVOD_SIZE'))"
    command = ("-np", 1, sys.executable, "-c", program)
    assert launch("--as-horovod", *command)[:2] == (0, f"{SITE}{os.pathsep}/theirs 1\n")
    assert launch(*command)[:2] == (0, "/theirs None\n")
