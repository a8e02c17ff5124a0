"""Lets the tests, and the processes that they start, import the environments of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
