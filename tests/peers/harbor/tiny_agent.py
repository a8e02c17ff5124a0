"""An agent of a few lines, which Harbor installs and runs."""

import shlex
from typing import Any

from harbor.agents.installed.base import BaseInstalledAgent
from peers.containers.conftest import AGENT


class TinyAgent(BaseInstalledAgent):
    @staticmethod
    def name() -> str:
        return "tiny"

    async def install(self, environment: Any) -> None:
        await self.exec_as_root(environment, command="python3 --version")

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        words = ("python3", "-c", AGENT, instruction)
        await self.exec_as_agent(environment, command=shlex.join(words))

    def populate_context_post_run(self, context: Any) -> None:
        pass
