"""Runs, episodes and tokens in a terminal: `envsdk view --terminal`. It needs textual (`envsdk[terminal]`)."""
