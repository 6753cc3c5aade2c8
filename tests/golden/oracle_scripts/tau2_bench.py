"""Oracle of the tau2-bench file, written by hand.

Run: `python tests/golden/oracle_scripts/tau2_bench.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracle import REAL_LOGS, write_oracle

if __name__ == "__main__":
    file = "tau2-bench/results.json"
    header = json.loads((REAL_LOGS / file).read_text())
    assert list(header) == ["timestamp", "info", "tasks"]
    assert header["tasks"] == []
    write_oracle(
        file,
        {
            "made_by": "by hand",
            "records": {"set_apart": 1},
            "no_trajectory": "the header of a run (settings, an empty list of tasks); its simulations are not here",
            "trajectories": [],
        },
    )
