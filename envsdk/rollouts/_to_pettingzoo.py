"""Environments of envsdk as environments of PettingZoo."""

from collections.abc import Sequence
from typing import Any, ClassVar

from gymnasium.spaces import Text

from .._packages import load
from .._visible import brief
from ..authoring._env import Env
from ..authoring.adapters._pettingzoo import ADVICE
from ..errors import ConfigError
from ..policies import ReplyPolicy


class _AnyText(Text):
    """A space of strings of all characters; `sample` uses letters and digits."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class _Observed(str):
    """What an agent observed since its last turn. PettingZoo's `api_test` reads its `dtype`."""

    dtype = str


def to_pettingzoo(env: Env, agents: Sequence[str], *, max_length: int = 4096) -> Any:
    """Return an environment of envsdk as an `AECEnv` of PettingZoo, whose actions and observations are strings.

    Args:
        env: The environment. It is closed with the `AECEnv`.
        agents: The names of its contexts, such as `("player0", "player1")`. An environment with one agent has `main`.
        max_length: The maximum number of characters in an action.

    Returns:
        An environment whose agents are the contexts. An observation is what an agent observed since its last turn. The
        rewards are given at the end of the episode: of a context with a reward, its own, else the episode's.

    Raises:
        MissingPackage: If `pettingzoo` is not installed.
        ConfigError: If there is no agent. `reset` and `step` raise it for a context that is not among `agents`.
    """
    base: Any = load("pettingzoo", "an AECEnv needs", ADVICE).AECEnv
    if isinstance(agents, str) or not agents:
        raise ConfigError(f"agents is {agents!r}; expected the names of the contexts of {env!r}")

    class Contexts(base):  # a class of a package that may be missing
        metadata: ClassVar[dict[str, Any]] = {
            "name": env.name,
            "render_modes": ["ansi"],
            "is_parallelizable": False,
        }
        render_mode = "ansi"

        def __init__(self) -> None:
            self.possible_agents = list(agents)
            self.observation_spaces = {agent: _AnyText(10**9) for agent in agents}
            self.action_spaces = {agent: _AnyText(max_length, min_length=0) for agent in agents}

        def observation_space(self, agent: str) -> Text:
            return self.observation_spaces[agent]

        def action_space(self, agent: str) -> Text:
            return self.action_spaces[agent]

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            self._next = env.reset(seed=seed)
            self.agents = list(agents)
            self.rewards, self._cumulative_rewards = dict.fromkeys(agents, 0.0), dict.fromkeys(agents, 0.0)
            self.terminations, self.truncations = dict.fromkeys(agents, False), dict.fromkeys(agents, False)
            self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
            self._texts = dict.fromkeys(agents, _Observed(""))
            self._read: dict[str, int] = {}  # the number of messages that each agent has read
            self._skip_agent_selection = None
            self._read_messages()

        def _read_messages(self) -> None:
            agent = self._next[-1]["context"]
            if agent not in agents:
                raise ConfigError(f"{env!r} addresses the context {agent!r}; expected one of {', '.join(agents)}")
            messages = env.messages()
            new = messages[self._read.get(agent, 0) :]
            self._texts[agent] = _Observed("\n\n".join(message.content for message in new if message.content))
            self._read[agent] = len(messages) + 1  # and its reply
            self.agent_selection = agent

        def observe(self, agent: str) -> str:
            return self._texts[agent]

        def step(self, action: str | None) -> None:
            agent = self.agent_selection
            if self.terminations[agent] or self.truncations[agent]:
                self._was_dead_step(action)
                return
            if not self.action_spaces[agent].contains(action):
                raise ConfigError(
                    f"the action is {brief(action)}; expected a string of at most {max_length} characters"
                )
            self._cumulative_rewards[agent] = 0.0
            self._clear_rewards()
            info = self._next[-1]
            policy = ReplyPolicy(env, lambda _: str(action))
            sampled = policy(env.prompt(), context=agent, max_tokens=info["max_tokens"], stop=info["stop"])
            self._texts[agent] = _Observed("")
            self._next = env.step(sampled)
            _, _, terminated, truncated, _ = self._next
            self._read_messages()
            if (terminated or truncated) and env.trajectory is not None:
                found = env.trajectory
                self.rewards = {name: found.reward_of(name) if name in found.contexts else 0.0 for name in agents}
                self.terminations = dict.fromkeys(self.agents, terminated)
                self.truncations = dict.fromkeys(self.agents, truncated and not terminated)
            self._accumulate_rewards()
            self._deads_step_first()

        def render(self) -> str | None:
            return env.render()

        def close(self) -> None:
            env.close()

    return Contexts()
