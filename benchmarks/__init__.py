"""Measures envsdk side by side with other projects, in one run: `python -m benchmarks`.

A *row* is a workload (`rows.py`). A *contender* is a function that runs the workload with one project
(`contenders/<environment>/*.py`). Each environment of packages has one worker process; contenders alternate between
repetitions, so that a change in the machine's load affects all of them.
"""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
_FOLDERS = [CHECKOUT, CHECKOUT / "tests", CHECKOUT / "scripts"]  # last: folders of the checkout have names of peers
sys.path.extend(str(folder) for folder in _FOLDERS if str(folder) not in sys.path)
