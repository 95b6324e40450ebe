"""The command line: one file a verb, options and exit codes, no logic.

`main` is the entry point. Nothing heavy is imported here: `opsctl --help` must be instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status (contracts 7). Never raises, but `SystemExit` on completion."""
    from ._main import run

    # Pydantic looks through every installed distribution for plugins when it is first imported; there are none for us.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    return run(list(sys.argv[1:] if argv is None else argv))
