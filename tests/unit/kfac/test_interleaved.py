"""Two queues on one network against every schedule there is."""

import itertools
import random

import numpy as np
import pytest

from aiacc.kfac.interleaved import Bucket, Queue, interleaved
from aiacc.planning.optimal import best_ends
from tests.unit.planning.instances import every_plan


def random_queue(rng, count):
    """Any costs, also such that fall as buckets grow."""
    matrix = np.array([[rng.random() for _ in range(count + 1)] for _ in range(count + 1)])
    ready = np.array(sorted(rng.random() * 2 for _ in range(count)))
    return Queue(ready, lambda j: matrix[:j, j])


def finish_of(queues, buckets):
    free = 0.0
    for queue, start, end in buckets:
        begins = max(free, queues[queue].ready[end - 1])
        free = begins + queues[queue].costs_to(end)[start]
    return free


def every_schedule(n, m):
    """Each way to cut both queues, and each way to merge the cuts."""
    for ends in every_plan(n) if n else [[]]:
        for others in every_plan(m) if m else [[]]:
            pieces = [
                [Bucket(queue, *pair) for pair in itertools.pairwise([0, *cuts])]
                for queue, cuts in enumerate((ends, others))
            ]
            total = len(ends) + len(others)
            for places in itertools.combinations(range(total), len(ends)):
                one, other = iter(pieces[0]), iter(pieces[1])
                yield [next(one) if at in places else next(other) for at in range(total)]


def test_equals_the_best_of_all_schedules():
    rng = random.Random(1)
    for _ in range(60):
        n, m = rng.randint(0, 4), rng.randint(0, 4)
        queues = [random_queue(rng, n), random_queue(rng, m)]
        buckets, finish = interleaved(*queues)
        assert finish == pytest.approx(finish_of(queues, buckets), rel=1e-12)
        best = min(finish_of(queues, schedule) for schedule in every_schedule(n, m))
        assert finish == pytest.approx(best, rel=1e-12)
        for queue, count in enumerate((n, m)):
            pieces = [bucket for bucket in buckets if bucket.queue == queue]
            assert [i for piece in pieces for i in range(piece.start, piece.end)] == [*range(count)]


def test_with_one_queue_it_is_the_exact_plan():
    rng = random.Random(2)
    queue, empty = random_queue(rng, 30), random_queue(rng, 0)
    late = np.concatenate([[0.0], queue.ready])
    ends, finish = best_ends(30, queue.costs_to, late.__getitem__)
    for queues, number in (((queue, empty), 0), ((empty, queue), 1)):
        buckets, found = interleaved(*queues)
        assert found == finish
        assert [(bucket.queue, bucket.end) for bucket in buckets] == [(number, e) for e in ends]
