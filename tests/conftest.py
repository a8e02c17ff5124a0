"""Hypothesis draws the same examples in every run; `--hypothesis-profile=explore` looks for new ones."""

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("repeatable")
