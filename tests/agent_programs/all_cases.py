"""All cases of all frameworks."""

import shutil

from . import (
    anthropic_clients,
    langchain_agents,
    mini_swe_agents,
    node_agents,
    openai_agents,
    openai_clients,
    pydantic_agents,
    smolagents_agents,
)

HAS_NODE = shutil.which("node") is not None and node_agents.PACKAGES.is_dir()
"""Whether programs in Node can run."""
CASES = [
    *openai_clients.CASES,
    *anthropic_clients.CASES,
    *openai_agents.CASES,
    *pydantic_agents.CASES,
    *langchain_agents.CASES,
    *smolagents_agents.CASES,
    *mini_swe_agents.CASES,
    *(node_agents.CASES if HAS_NODE else ()),
]
