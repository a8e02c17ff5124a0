"""ChainArithmetic's answers in LaTeX, which need math-verify: here its tests run in full."""

from environments.test_chain_arithmetic import *  # noqa: F403
