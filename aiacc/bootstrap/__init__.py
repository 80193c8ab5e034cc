"""How the ranks find each other and agree on what they will run, before the core connects.

A provider exchanges one small payload per rank; `negotiate` decides from the payloads.
"""

from aiacc.bootstrap.job_plan import Contribution, JobPlan, RankTopology, agree, host_id, new_token
from aiacc.bootstrap.provider import Provider
from aiacc.bootstrap.selection import select_provider

__all__ = [
    "Contribution",
    "JobPlan",
    "Provider",
    "RankTopology",
    "agree",
    "host_id",
    "new_token",
    "select_provider",
]
