"""Which provider a process gets, from what it was told."""

import pytest

from aiacc.bootstrap import select_provider
from aiacc.bootstrap.provider import AloneProvider, Backoff, Deadline, Generations, rank_list
from aiacc.bootstrap.rendezvous import RendezvousProvider
from aiacc.config import LauncherEnvironment
from aiacc.exceptions import BootstrapError

NO_LAUNCHER = LauncherEnvironment(torchrun=None, mpi=None)


def config(**changes):
    unset = {
        "rank": -1,
        "size": -1,
        "local_rank": -1,
        "local_size": -1,
        "addr": "",
        "token": "",
        "rendezvous_file": "",
    }
    return unset | changes


def test_without_a_launcher_the_process_is_alone():
    provider = select_provider(NO_LAUNCHER, config())
    assert isinstance(provider, AloneProvider)
    assert (provider.rank, provider.size) == (0, 1)
    assert provider.all_gather(b"mine", timeout_s=0) == [b"mine"]
    provider.close()


def test_size_1_needs_no_address():
    assert isinstance(select_provider(NO_LAUNCHER, config(rank=0, size=1)), AloneProvider)


def test_explicit_address():
    settings = config(rank=1, size=4, addr="127.0.0.1:1", local_rank=1, local_size=2)
    provider = select_provider(NO_LAUNCHER, settings)
    assert isinstance(provider, RendezvousProvider)
    assert (provider.rank, provider.size) == (1, 4)
    assert (provider.local_rank, provider.local_size) == (1, 2)
    provider.close()


def test_every_call_begins_a_generation():
    first = select_provider(NO_LAUNCHER, config())
    assert select_provider(NO_LAUNCHER, config()).generation == first.generation + 1


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"rank": 0}, "AIACC_RANK is set without AIACC_SIZE"),
        ({"size": 2}, "AIACC_SIZE is set without AIACC_RANK"),
        ({"rank": 2, "size": 2, "addr": "a:1"}, "AIACC_RANK=2 and AIACC_SIZE=2"),
        ({"rank": 0, "size": 0, "addr": "a:1"}, "AIACC_SIZE=0"),
        ({"rank": -2, "size": 2, "addr": "a:1"}, "AIACC_RANK=-2"),
        ({"rank": 0, "size": 2}, "without AIACC_ADDR or AIACC_RENDEZVOUS_FILE"),
        ({"rank": 0, "size": 2, "addr": "nonsense"}, "AIACC_ADDR='nonsense'"),
        ({"addr": "a:1"}, "AIACC_ADDR is set without AIACC_RANK"),
        ({"rendezvous_file": "/x"}, "AIACC_RENDEZVOUS_FILE is set without AIACC_RANK"),
    ],
)
def test_settings_that_cannot_work(changes, text):
    with pytest.raises(BootstrapError, match=text):
        select_provider(NO_LAUNCHER, config(**changes))


def test_generations_only_grow():
    generations = Generations()
    assert [generations.next(), generations.next()] == [0, 1]
    generations.catch_up(7)
    generations.catch_up(3)
    assert generations.next() == 8


def test_backoff_never_sleeps_past_the_deadline():
    over = Deadline(0.0)
    backoff = Backoff(first_s=1000.0, limit_s=2000.0)
    backoff.pause(over)  # would hang the test if it slept
    assert over.passed()


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([5, 1, 4], "ranks 1, 4 and 5"),
        (range(20), "ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 10 more"),
    ],
)
def test_ranks_in_a_text(ranks, text):
    assert rank_list(ranks) == text
