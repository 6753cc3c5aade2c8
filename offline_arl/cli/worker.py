"""A process that `--processes` starts: `python -m offline_arl.cli.worker FOLDER`, see `workflows.launch`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from offline_arl.cli.entry import set_environment
from offline_arl.cli.launched import launched
from offline_arl.errors import OfflineArlError
from offline_arl.workflows.launch import work


def main() -> int:
    """Do this process's part; the exit status."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    set_environment()
    place = launched()
    if place.process > 0:
        logging.disable(logging.WARNING)  # the first process says it
    try:
        work(Path(sys.argv[1]), place)
    except OfflineArlError as error:
        return error.exit_code
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    status = main()
    # A process that leaves an error must not wait at exit for others that are in the middle of an exchange.
    sys.stderr.flush()
    os._exit(status) if status else sys.exit(0)
