"""A service desk: policy, tools, and a customer who writes."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field

from envsdk import EnvConfig, Limits, Message, ToolEnv, ToolEnvConfig, Turn
from envsdk.authoring.tasks import Split
from envsdk.authoring.tools import Tool

from .briefing import EMPTY, END, GREETING, briefing, is_end
from .customer import ScriptedCustomer
from .desk import Desk, tools_of
from .generator import Difficulty, draw_task
from .hearing import Ears
from .reference import ReferenceAgent
from .tasks import RetailDeskTask

TOLD, DATABASE = 0.4, 0.6
"""What it is worth that the customers are told all that they have to know, and that the database is right, too."""
AGENT, USER = "main", "user"


class RetailDeskConfig(ToolEnvConfig):
    """Which tasks there are, and who plays the customer."""

    split: Split = "train"
    """No customer of one split writes in the other."""
    difficulty: Difficulty = "medium"
    """Easy: one wish, which is granted, and all is said at once. Medium: one wish, which may be refused, and what is
    needed has to be asked for. Hard: two or three wishes."""
    user: Literal["scripted", "policy"] = "scripted"
    """Who plays the customer: a script, or the policy of the role `user`, in a context of its own."""
    max_user_messages: int = Field(default=30, ge=1)
    """So many messages a customer writes at most who is played by a policy."""


class RetailDesk(ToolEnv):
    """Serve a customer of a made-up shop: look things up, ask, refuse, change the database, and say what came of it.

    Exercises: following a policy against a customer's wishes, asking for what is missing, using tools that change
    something, and waiting for a yes. Customers tell facts when they are asked for them, change their minds, want what
    is forbidden, and may not be who they say they are.

    What the agent writes without a call of a tool is sent to the customer, who sees nothing else of it. The episode
    ends when the customer leaves: satisfied, or because nothing comes of it.

    Reward: `told`, 0.4 times the share of wishes of which the customer was told all facts that belong to them (amounts,
    days, numbers and statuses, as the policy has them written), and no secrets; and `database`, 0.6 times that share,
    if the database is what the right actions would have made of it, and no order was changed before the customer had
    said yes to it. So who does nothing earns nothing, even where nothing may be changed. A conversation that is cut off
    earns nothing.

    With `user="policy"`, as in `envsdk/RetailDeskLLMUser-v0`, the customer is the role `user`, in a context of its own
    which has what a customer knows, and what the agent wrote to them: `rollout(env, {"main": policy, "user": other})`.
    The reward is that of the context `main`; that of the user is 0, so nobody learns to be an easy customer. What the
    user sampled is in samples of the role `user`. The policy `reference` plays the customer as the script does. What is
    a yes in the words of such a customer is not judged: there, changes without one cost nothing.

    A task, if there is one, holds the whole database, the policy, who writes, and for each wish what the customer says
    and knows, what is right to do, and what to tell.
    """

    Config: ClassVar[type[EnvConfig]] = RetailDeskConfig
    Task: ClassVar[type[BaseModel] | None] = RetailDeskTask
    default_limits: ClassVar[Limits] = Limits(max_steps=150)
    reward_range: ClassVar[tuple[float, float]] = (0.0, TOLD + DATABASE)
    tools: Sequence[Tool] = tools_of(Desk)

    def start(self) -> Turn:
        """Open the desk, and let the customer write first."""
        config: RetailDeskConfig = self.config
        self.job: RetailDeskTask = self.task or draw_task(self.np_random, config.split, config.difficulty)
        self.desk = Desk(self.job.database, self.job.policy)
        self.tools = tools_of(self.desk)
        self.user_messages = 0
        self.has_waited = True  # for the yes of a scripted customer, before each change
        self.seen_changes = 0
        self.has_met = False  # whether a policy that plays the customer has written to the agent
        if config.user == "policy":
            self.ears = Ears(self.job.wishes)
            return Turn(GREETING, system=briefing(self.job), tools=(), context=USER)
        self.customer = ScriptedCustomer(self.job)
        self.ears = self.customer.ears
        return Turn(self.customer.opening(), system=self.job.policy.document())

    def finish(self, reply: Message) -> Turn:
        """Send what was written to the other side."""
        if self.context == USER:
            return self._from_user(reply.content)
        if self.config.user == "policy":
            self.ears.listen(reply.content)
            return Turn(reply.content, context=USER)
        self._look_for_changes()
        answer = self.customer.answer(reply.content)
        return Turn(answer, terminated=True, **self._score()) if self.customer.has_left else Turn(answer)

    def reference_reply(self) -> Message | str:
        """As the agent, follow the policy; as the customer, the script."""
        messages = self.messages()
        if self.context != USER:
            return ReferenceAgent(self.job, messages).reply()
        customer = ScriptedCustomer(self.job)
        said = customer.opening()
        for heard in [message.content for message in messages if message.role == "user"][1:]:
            said = customer.answer(heard)
        return f"{said}\n{END}" if customer.has_left else said

    def null_reply(self) -> str:
        """Decline; as the customer, leave."""
        return END if self.context == USER else "I am sorry, I cannot help you with that."

    def _from_user(self, text: str) -> Turn:
        """Hand on what a policy wrote as the customer."""
        self.user_messages += 1
        if is_end(text) or self.user_messages >= self.config.max_user_messages:
            scores = self._score()
            earned = {AGENT: sum(scores["reward"].values())} if self.has_met else {}
            return Turn(terminated=True, context_rewards={USER: 0.0, **earned}, **scores)
        if not text.strip():
            return Turn(EMPTY)
        has_met, self.has_met = self.has_met, True
        return Turn(text, system=None if has_met else self.job.policy.document(), context=AGENT)

    def _look_for_changes(self) -> None:
        """Note whether orders were changed since the customer's last message without a yes."""
        if self.desk.changes > self.seen_changes and not self.customer.has_agreed:
            self.has_waited = False
        self.seen_changes = self.desk.changes

    def _score(self) -> dict[str, Any]:
        """What a conversation that is over earned."""
        share = self.ears.share()
        is_right = self.desk.database().digest() == self.job.gold().digest()
        return {
            "reward": {"told": TOLD * share, "database": DATABASE * share * (is_right and self.has_waited)},
            "metrics": {
                "told_wishes": share,
                "right_database": float(is_right),
                "waited_for_yes": float(self.has_waited),
            },
        }
