"""Compares the costs that `make bench` measures with those of the last release: `python -m regressions`."""
