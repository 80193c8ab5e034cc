"""Starts processes as Slurm's srun does: `python -m tests.support.fake_srun -n 2 COMMAND ...`.

The real one does not tell a task that another has ended, and ends with the largest exit code.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys

from aiacc.bootstrap.providers.slurm import step_port
from tests.support.ranks import is_free


def task_variables(tasks: int, nodes: str, job: int, step: int) -> list[dict[str, str]]:
    """Slurm's variables of every task; the first of two nodes has one task more, if they differ."""
    names = nodes.split(",")
    counts = [len(range(number, tasks, len(names))) for number in range(len(names))]
    places = [(node, local) for node, count in enumerate(counts) for local in range(count)]
    return [
        {
            "SLURM_JOB_ID": str(job),
            "SLURM_STEP_ID": str(step),
            "SLURM_STEP_NODELIST": nodes,
            "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
            "SLURM_STEP_NUM_TASKS": str(tasks),
            "SLURM_NTASKS": str(tasks),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_CLUSTER_NAME": "fake",
            "SLURM_JOB_USER": "somebody",
        }
        for rank, (node, local) in enumerate(places)
    ]


def free_job(step: int) -> int:
    """Number of a job whose step has a port that nobody uses now."""
    while not is_free(step_port(job := random.randrange(1, 10**6), step)):
        pass
    return job


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "-np", type=int, default=1, dest="tasks")
    parser.add_argument("--nodelist", default=os.environ.get("SLURM_NODELIST", "one"))
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    job = free_job(0)
    children = [
        subprocess.Popen(options.command, env={**os.environ, **variables})
        for variables in task_variables(options.tasks, options.nodelist, job, 0)
    ]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())
