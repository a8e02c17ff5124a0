"""A service desk: a policy, tools, and a customer."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn
from envsdk.authoring._tools import Tool
from envsdk.authoring.tasks import Split

from ._generator import Difficulty, draw_task
from ._scripts import END, GREETING, ScriptedCustomer, briefing, is_end, reference_reply
from ._shop import Desk, RetailDeskTask, tools_of

__all__ = ["RetailDesk", "RetailDeskConfig", "RetailDeskTask"]

_AGENT, _USER = "main", "user"


class RetailDeskConfig(ToolEnvConfig):
    """The tasks that are drawn, and the player of the customer."""

    split: Split = "train"
    """No customer of one split writes in the other."""
    difficulty: Difficulty = "medium"
    """Easy: one wish, which is granted. Medium: one wish, which may be refused, and a customer may change their mind.
    Hard: two or three wishes."""
    user: Literal["scripted", "policy"] = "scripted"
    """The player of the customer: a script, or the policy of the role `user`, in a separate context."""


class RetailDesk(ToolEnv):
    """Serve the customer of a made-up shop by its policy: look things up, ask, refuse, and change the database.

    Exercises: following a policy against a customer's wishes, asking for what is missing, using tools that change
    something, and waiting for a yes. Customers answer what they are asked for, change their mind, insist on what is
    forbidden, and write about orders of other people.

    A reply without a tool call is sent to the customer, who sees nothing else. The episode ends when the customer
    leaves: when the agent has nothing more to ask about the last wish, or after 12 messages for each wish.

    Reward: `success`, 1 if the final database is the one that the right calls make and the customer had confirmed each
    change of an order before it was made; else 0. Each wish has one right call: a change, or a recorded refusal with
    the rule that forbids the wish. So an agent that does nothing, or only talks, earns 0. A conversation that is cut
    off earns 0.

    With `user="policy"`, as in `envsdk/RetailDeskLLMUser-v1`, a policy plays the customer as the role `user`, in a
    separate context: `rollout(env, {"main": policy, "user": other})`. The reward belongs to the context `main`; the
    user's is 0, so that no policy learns to be an easy customer. The words of such a customer are not judged: only the
    final database counts. The policy `reference` plays the customer as the script does.

    A task, if given, holds the database, the policy, what identifies the customer, and their wishes with the rule that
    forbids each, if one does.
    """

    Config: ClassVar[type[EnvConfig]] = RetailDeskConfig
    Task: ClassVar[type[BaseModel] | None] = RetailDeskTask
    default_limits: ClassVar[Limits] = Limits(max_steps=100)
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    tools: Sequence[Tool] = tools_of(Desk)

    def start(self) -> Turn:
        """Let the customer write first."""
        config: RetailDeskConfig = self.config
        self.job: RetailDeskTask = self.task or draw_task(self.np_random, config.split, config.difficulty)
        self.desk = Desk(self.job.database, self.job.policy)
        self.tools = tools_of(self.desk)
        self.customer = ScriptedCustomer(self.job)
        self.has_met = False  # whether a policy that plays the customer has written to the agent
        self.has_waited = True  # for the yes of a scripted customer, before each change
        self.seen_changes = 0
        if config.user == "policy":
            return Turn(GREETING, system=briefing(self.job), tools=(), context=_USER)
        return Turn(self.customer.opening(), system=self.job.policy.document())

    def finish(self, reply: Message) -> Turn:
        """Send a message to the other side."""
        if self.context == _USER:
            if is_end(reply.content):
                scores = self._score()
                earned = {_AGENT: scores["reward"]["success"]} if self.has_met else {}
                return Turn(terminated=True, context_rewards={_USER: 0.0, **earned}, **scores)
            has_met, self.has_met = self.has_met, True
            return Turn(reply.content, system=None if has_met else self.job.policy.document(), context=_AGENT)
        if self.config.user == "policy":
            return Turn(reply.content, context=_USER)
        if self.desk.changes > self.seen_changes and not self.customer.has_agreed:
            self.has_waited = False
        self.seen_changes = self.desk.changes
        answer = self.customer.answer(reply.content)
        return Turn(answer, terminated=True, **self._score()) if self.customer.has_left else Turn(answer)

    def reference_reply(self) -> Message | str:
        """As the agent, follow the policy; as the customer, follow the script."""
        messages = self.messages()
        if self.context != _USER:
            return reference_reply(self.job, messages)
        customer = ScriptedCustomer(self.job)
        said = customer.opening()
        for heard in [message.content for message in messages if message.role == "user"][1:]:
            said = customer.answer(heard)
        return f"{said}\n{END}" if customer.has_left else said

    def null_reply(self) -> str:
        """Decline; as the customer, leave."""
        return END if self.context == _USER else "I am sorry, I cannot help you with that."

    def _score(self) -> dict[str, Any]:
        is_right = self.desk.database() == self.job.gold()
        return {
            "reward": {"success": float(is_right and self.has_waited)},
            "metrics": {"right_database": float(is_right), "waited_for_yes": float(self.has_waited)},
        }
