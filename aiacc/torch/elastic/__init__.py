"""Elastic jobs, under Horovod's names. Not available yet: every call says what to do instead."""

from __future__ import annotations

from aiacc.collectives.elastic import run
from aiacc.torch.elastic.sampler import ElasticSampler
from aiacc.torch.elastic.state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
