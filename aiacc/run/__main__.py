"""``python -m aiacc.run`` is `aiaccrun`."""

import sys

from aiacc.run.main import main

sys.exit(main())
