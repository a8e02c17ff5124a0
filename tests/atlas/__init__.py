"""The atlas of agent programs: real programs, driven through the same scenarios; writes docs/agents.md."""
