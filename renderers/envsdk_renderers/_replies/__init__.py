"""Readers of replies: the formats in which models write reasoning and tool calls."""
