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
from .cases import Case

CASES = [
    *openai_clients.CASES,
    *anthropic_clients.CASES,
    *openai_agents.CASES,
    *pydantic_agents.CASES,
    *langchain_agents.CASES,
    *smolagents_agents.CASES,
    *mini_swe_agents.CASES,
    *node_agents.CASES,
]


def missing(case: Case) -> str:
    """Return what a case needs and this machine does not have; an empty text if it can run."""
    if case in node_agents.CASES and not (shutil.which("node") and node_agents.PACKAGES.is_dir()):
        return "programs in Node need node, and npm when the environment is made"
    return ""


RUNNABLE = [case for case in CASES if not missing(case)]
"""The cases that can run here."""
