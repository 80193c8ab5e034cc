"""Bootstrap over a store of torch's; the ranks are threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from aiacc.bootstrap.providers.store import StoreProvider
from aiacc.exceptions import BootstrapError


def test_everybody_gets_everything_again_and_again():
    store = dist.HashStore()
    providers = [StoreProvider(store, rank, 3) for rank in range(3)]
    for provider in providers:  # which would be in processes of their own
        provider.generation = 0
    with ThreadPoolExecutor(3) as pool:
        for payloads in ([b"a", b"", b"\0c"], [b"x" * 10_000, b"y", b"z"]):
            waiting = [
                pool.submit(provider.all_gather, payload, timeout_s=20)
                for provider, payload in zip(providers, payloads, strict=True)
            ]
            assert [each.result() for each in waiting] == [payloads] * 3
    for provider in providers:
        provider.close()


def test_missing_ranks_are_named():
    provider = StoreProvider(dist.HashStore(), 1, 4)
    with pytest.raises(BootstrapError, match=r"ranks 0, 2 and 3 of 4 did not come within 0\.1 s"):
        provider.all_gather(b"x", timeout_s=0.1)


def test_a_lost_store_is_an_error():
    class Broken:
        def set(self, key, value):
            raise RuntimeError("Connection reset by peer\nstack")

    with pytest.raises(BootstrapError, match=r"lost the store.*Connection reset by peer;"):
        StoreProvider(Broken(), 0, 2).all_gather(b"x", timeout_s=20)
