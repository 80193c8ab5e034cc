import random

import numpy as np

from aiacc.kfac.shares import Shares


def test_shares_are_those_of_the_rank_with_most():
    rng = random.Random(1)
    for _ in range(30):
        count, ranks = rng.randint(1, 12), rng.randint(1, 4)
        owners = [rng.choice([None, *range(ranks)]) for _ in range(count)]
        sizes = [float(rng.randint(1, 9)) for _ in range(count)]
        shares = Shares(owners, sizes)

        def most(start, end, owners=owners, sizes=sizes, ranks=ranks):
            return max(
                sum(sizes[n] for n in range(start, end) if owners[n] == rank)
                for rank in range(ranks)
            )

        for end in [*range(1, count + 1), *rng.choices(range(1, count + 1), k=4)]:
            expected = [most(start, end) for start in range(end)]
            np.testing.assert_array_equal(shares.most(end), expected)
