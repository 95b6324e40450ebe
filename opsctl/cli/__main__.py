"""``python -m opsctl.cli``."""

import sys

from . import main

sys.exit(main())
