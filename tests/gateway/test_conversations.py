"""What each request of a program means: every rule on a small conversation."""

import json
from dataclasses import replace
from typing import Any

import pytest
from program_requests import OTHER_TOOLS, SYSTEM, TOOLS, Session, as_sent, assistant, result, to_request, user

from envsdk import Message
from envsdk.errors import ConfigError
from envsdk.gateway._conversations import Continues, Opens, Repeats
from envsdk.gateway._lineage import role_rules
from envsdk.gateway._requests import ModelReply


@pytest.fixture
def session() -> Session:
    return Session()


def opened(session: Session, **options: Any) -> tuple[list[dict[str, Any]], Message]:
    """A session with one answered request, whose reply calls two tools; what the client has, and the reply."""
    sent = [user("What is the weather?")]
    reply = session.ask(
        sent, " Let me look. \n", [("look", {"city": "Zürich", "days": 1e2}), ("add", {"a": 1, "b": 2})], **options
    )
    return [*sent, as_sent(reply)], reply


def results(reply: Message) -> list[dict[str, Any]]:
    return [result(call.id or "", f" result of {call.name} ") for call in reply.tool_calls]


def test_the_first_request_opens_the_main_context(session):
    placed = session.place([user("Hi")])
    assert placed == Opens("main", "main", (Message(role="user", content="Hi"),), SYSTEM, tuple(TOOLS))


def test_a_request_that_follows_the_reply_continues_with_what_is_new(session):
    sent, reply = opened(session)
    placed = session.place([*sent, *results(reply), user("And?")])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.changed, placed.was_choice) == ("main", None, "", False)
    assert [(m.role, m.content, m.name) for m in placed.messages] == [
        ("tool", " result of look ", "look"),
        ("tool", " result of add ", "add"),
        ("user", "And?", None),
    ]


def flattened(reply: Message, order: int = 1) -> dict[str, Any]:
    """A reply whose calls are a Python repr in its text, in the order of their results."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in reply.tool_calls[::order]
    ]
    return assistant(f"{reply.content.strip()}\nCalling tools:\n{calls}")


def recalled(change: Any) -> Any:
    """A reply whose calls' fields were changed."""

    def changed(reply: Message) -> dict[str, Any]:
        data = as_sent(reply)
        for call in data["tool_calls"]:
            change(call)
        return data

    return changed


def reordered(call: dict[str, Any]) -> None:
    arguments = json.loads(call["function"]["arguments"])
    call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=1).replace("100.0", "1e2")


def bare(reply: Message) -> dict[str, Any]:
    return {key: value for key, value in as_sent(reply).items() if key != "reasoning_content"}


SENT_BACK = {
    "unchanged": as_sent,
    "without reasoning": bare,
    "with empty reasoning": lambda reply: {**as_sent(reply), "reasoning_content": ""},
    "stripped": lambda reply: {**as_sent(reply), "content": reply.content.strip()},
    "as a block": lambda reply: {**as_sent(reply), "content": [{"type": "text", "text": reply.content}]},
    "other form of arguments": recalled(reordered),
    "other ids": recalled(lambda call: call.update(id="x" + call["id"])),
    "reasoning in the text": lambda reply: {
        **bare(reply),
        "content": f"<think>\n{reply.reasoning}\n</think>\n\n{reply.content}",
    },
    "reasoning in the text, with other tags": lambda reply: {
        **bare(reply),
        "content": f"[THINK]{reply.reasoning}[/THINK]{reply.content}",
    },
    "empty reasoning in the text": lambda reply: {**bare(reply), "content": f"<think>\n\n</think>\n\n{reply.content}"},
    "other white space in the reasoning": lambda reply: {**as_sent(reply), "reasoning_content": " Why? \n Because. "},
    "the end of the reasoning": lambda reply: {**as_sent(reply), "reasoning_content": "Because."},
    "calls in the text": flattened,
    "calls in the text in another order": lambda reply: flattened(reply, -1),
    "calls in the text without ids": lambda reply: assistant(flattened(reply)["content"].replace("call_", "x")),
}


@pytest.mark.parametrize("form", SENT_BACK)
def test_a_reply_is_recognized_in_every_form(session, form):
    sent, reply = opened(session)
    back = SENT_BACK[form](reply)
    answers = [result(call["id"], "1") for call in back.get("tool_calls", ())]
    placed = session.place([*sent[:-1], back, *answers, user("And?")])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep) == ("main", None)
    named = [(m.tool_call_id, m.name) for m in placed.messages if m.role == "tool"]
    assert named == ([(call.id, call.name) for call in reply.tool_calls] if answers else [])


@pytest.mark.parametrize("tags", [("<seed:think>", "</seed:think>"), ("<mm:think>", "</mm:think>"), ("◁a▷", "◁/a▷")])
@pytest.mark.parametrize("is_last", [True, False])
def test_reasoning_in_the_text_is_recognized_in_the_tags_of_any_family(tags, is_last):
    session = Session(reasoning_tags=tags)
    sent, reply = opened(session)
    back = {**bare(reply), "content": f"{tags[0]}\n{reply.reasoning}\n{tags[1]}\n{reply.content}"}
    after = results(reply)
    if not is_last:
        session.ask([*sent, *after], "Done.")
        after += [assistant("Done."), user("And?")]
    placed = session.place([*sent[:-1], back, *after])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep) == ("main", None)


CHANGED = {
    "other text": lambda reply: {**as_sent(reply), "content": "Let me think."},
    "longer text": lambda reply: {**as_sent(reply), "content": f"{reply.content} And then?"},
    "no text": lambda reply: {**as_sent(reply), "content": None},
    "a joiner in the text": lambda reply: {**as_sent(reply), "content": reply.content.replace("me", "m\u200de")},
    "a joiner in the arguments": recalled(
        lambda call: call["function"].update(arguments=call["function"]["arguments"].replace("rich", "r\u200dich"))
    ),
    "a joiner in the reasoning": lambda reply: {
        **as_sent(reply),
        "reasoning_content": f"{reply.reasoning[:-2]}\u200d{reply.reasoning[-2:]}",
    },
    "other arguments": recalled(lambda call: call["function"].update(arguments='{"city": "Bern", "days": 1}')),
    "no arguments": recalled(lambda call: call["function"].update(arguments="{}")),
    "invalid arguments": recalled(lambda call: call["function"].update(arguments='{"INVALID_JSON": "{"}')),
    "other names": recalled(lambda call: call["function"].update(name="find")),
    "a call left out": lambda reply: {**as_sent(reply), "tool_calls": as_sent(reply)["tool_calls"][1:]},
    "a call left out at the end": lambda reply: {**as_sent(reply), "tool_calls": as_sent(reply)["tool_calls"][:-1]},
    "the calls left out": lambda reply: assistant(reply.content),
    "a call added": lambda reply: {**as_sent(reply), "tool_calls": [*as_sent(reply)["tool_calls"], ADDED]},
    "calls in another order": lambda reply: {**as_sent(reply), "tool_calls": as_sent(reply)["tool_calls"][::-1]},
    "other calls in the text": lambda reply: assistant(flattened(reply)["content"].replace("100.0", "99.0")),
    "calls in another text": lambda reply: assistant(flattened(reply)["content"].replace("look.", "see.")),
    "other reasoning in the text": lambda reply: {**bare(reply), "content": f"<think>no</think>{reply.content}"},
    "other reasoning": lambda reply: {**as_sent(reply), "reasoning_content": "No."},
    "longer reasoning": lambda reply: {**as_sent(reply), "reasoning_content": f"{reply.reasoning} Or not?"},
    "the start of the reasoning": lambda reply: {**as_sent(reply), "reasoning_content": "Why?"},
    "other reasoning in the field and the text": lambda reply: {
        **as_sent(reply),
        "content": f"<think>{reply.reasoning}</think>{reply.content}",
        "reasoning_content": "No.",
    },
    "reasoning in another text": lambda reply: {**bare(reply), "content": f"<think>{reply.reasoning}</think>No."},
}
ADDED = {"id": "own", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@pytest.mark.parametrize("change", CHANGED)
@pytest.mark.parametrize("is_last", [True, False])
def test_a_reply_that_says_something_else_is_a_change_in_spite_of_its_ids(session, change, is_last):
    sent, reply = opened(session)
    back, after = CHANGED[change](reply), results(reply)
    if not is_last:
        second = session.ask([*sent, *after], "", [("look", {"city": "Bern"})])
        after += [as_sent(second), *results(second)]
    placed = session.place([*sent[:-1], back, *after])
    assert isinstance(placed, Continues)
    cut = {"the calls left out": "was cut", "a call left out at the end": "was cut"}
    assert (placed.context, placed.keep, placed.changed) == (
        "main",
        2,
        f"message 2 (assistant) {cut.get(change, 'differs')}",
    )
    changed = Message.from_openai({**back, **({"reasoning_content": reply.reasoning} if change in cut else {})})
    fields = [(m.content, m.reasoning, m.tool_calls) for m in (placed.messages[0], changed)]
    assert fields[0] == fields[1]
    if not is_last:
        assert placed.messages[-2] is second
    session.answer(session.reply("All of this is done."))
    again = [*sent[:-1], {**back, "content": f" {back['content'] or ''} "}, *after]
    placed = session.place([*again, assistant("All of this is done."), user("More")])
    assert (placed.context, placed.keep) == ("main", None)


@pytest.mark.matrix
@pytest.mark.parametrize("arguments", ["{", '{"days": 1, "days": 2}', "12", ""])
@pytest.mark.parametrize("lost", ["{}", "", '{"INVALID_JSON": "TEXT"}', '{"days": 2}'])
def test_arguments_that_are_no_object_may_be_lost(session, arguments, lost):
    message = session.reply("Let me look.", [("look", {})])
    call = message.tool_calls[0].model_copy(update={"arguments": arguments})
    session.place([user("Go")])
    session.answer(message.model_copy(update={"tool_calls": (call,)}))
    given = lost.replace("TEXT", arguments.replace('"', '\\"'))
    function = {"name": "look", "arguments": given}
    back = assistant("Let me look.", {"id": call.id, "type": "function", "function": function})
    placed = session.place([user("Go"), back, result(call.id or "", "none")])
    is_other = given == '{"days": 2}' and "days" not in arguments
    assert (placed.context, placed.keep) == ("main", 2 if is_other else None)


def test_a_result_of_a_changed_call_is_named_as_the_program_named_the_call(session):
    sent, reply = opened(session)
    back = recalled(lambda call: call["function"].update(name="find"))(reply)
    placed = session.place([*sent[:-1], back, *results(reply)])
    assert [message.name for message in placed.messages[1:]] == ["find", "find"]


def test_a_reply_that_is_sent_twice_is_a_change(session):
    sent, reply = opened(session)
    placed = session.place([*sent, as_sent(reply), *results(reply)])
    assert isinstance(placed, Continues)
    assert [message.role for message in placed.messages] == ["assistant", "tool", "tool"]


@pytest.mark.parametrize("form", SENT_BACK)
def test_history_in_another_form_is_not_a_change(session, form):
    sent, reply = opened(session)
    session.ask([*sent, *results(reply), user("And?")], "It is sunny.")
    back = SENT_BACK[form](reply)
    answers = [result(call["id"], f" result of {call['function']['name']}") for call in back.get("tool_calls", ())]
    messages = [
        user(" What is the weather?\n"),
        back,
        *(answers or results(reply)),
        user([{"type": "text", "text": "And?"}]),
    ]
    placed = session.place([*messages, assistant("It is sunny."), user("Thanks")])
    assert placed == Continues("main", (Message(role="user", content="Thanks"),))


def test_results_come_in_any_order(session):
    sent, reply = opened(session)
    first, second = results(reply)
    placed = session.place([*sent, second, first])
    assert [message.name for message in placed.messages] == ["look", "add"]
    session.answer(session.reply("Done."))
    assert session.place([*sent, first, second, assistant("Done."), user("More")]) == Continues(
        "main", (Message(role="user", content="More"),)
    )


def test_a_reply_in_several_messages_is_one_reply(session):
    sent, reply = opened(session)
    first, second = results(reply)
    parts = [assistant(reply.content), assistant("", as_sent(reply)["tool_calls"][0]), first]
    placed = session.place([*sent[:-1], *parts, assistant("", as_sent(reply)["tool_calls"][1]), second])
    assert isinstance(placed, Continues)
    assert placed.keep is None
    assert [message.name for message in placed.messages] == ["look", "add"]


@pytest.mark.parametrize("is_merged_first", [True, False])
def test_messages_of_one_role_may_be_merged_or_split(session, is_merged_first):
    split, merged = [user("One"), user("Two")], [user("One\n\nTwo")]
    before, after = (merged, split) if is_merged_first else (split, merged)
    session.ask(before, "Yes.")
    assert session.place([*after, assistant("Yes."), user("Three")]) == Continues(
        "main", (Message(role="user", content="Three"),)
    )


def test_a_link_decides_which_reply_a_message_is(session):
    session.ask([user("Hi")], "OK")
    first = session.last_id
    session.ask([user("Hi")], "OK")
    assert session.placed.context == "main/main-1"
    placed = session.place([user("Hi"), assistant("OK"), user("Go on")], links={1: first})
    assert (placed.context, placed.was_choice) == ("main", False)


def test_a_previous_reply_decides_the_context(session):
    session.ask([user("Hi")], "OK")
    first = session.last_id
    session.ask([user("Hi")], "OK")
    placed = session.place([user("Hi"), assistant("OK"), user("Go on")], previous=first)
    assert (placed.context, placed.was_choice) == ("main", False)


def test_of_two_contexts_that_fit_the_one_answered_last_continues(session):
    session.ask([user("Hi")], "OK")
    session.ask([user("Hi")], "OK")
    placed = session.place([user("Hi"), assistant("OK"), user("Go on")])
    assert (placed.context, placed.was_choice) == ("main/main-1", True)


def test_a_context_by_its_name_decides(session):
    session.ask([user("Hi")], "OK")
    placed = session.place([user("Other")], context="critic", role="judge", system="Judge.", tools=())
    assert placed == Opens("critic", "judge", (Message(role="user", content="Other"),), "Judge.", ())
    session.answer(session.reply("Bad."))
    placed = session.place([user("Once more")], context="critic", role="judge", system="Judge.", tools=())
    assert (placed.context, placed.keep, placed.changed) == ("critic", 1, "message 1 (user) differs")


def test_another_role_is_another_context(session):
    session.ask([user("Hi")], "OK")
    placed = session.place([user("Hi"), assistant("OK"), user("Judge")], role="judge")
    assert (placed.context, placed.role, placed.base, placed.keep) == ("main/judge-1", "judge", "main", 3)


def test_a_function_gives_the_role():
    session = Session(role_of=lambda request: "judge" if request.system == "Judge." else None)
    session.ask([user("Hi")], "OK")
    assert session.placed.role == "main"
    assert session.place([user("This")], system="Judge.").context == "main/judge-1"


def test_a_program_that_leaves_out_the_reply_edits(session):
    sent, _ = opened(session)
    placed = session.place([*sent[:-1], user("Call exactly one tool.")])
    assert placed == Continues(
        "main", (Message(role="user", content="Call exactly one tool."),), keep=2, changed="the reply 2 was left out"
    )


def test_a_message_instead_of_the_reply_may_be_merged_with_the_one_before_it(session):
    session.ask([user("Do it.")], "I do not know how.")
    placed = session.place([user("Do it.\nError: call a tool.")])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.changed) == ("main", 1, "the reply 2 was left out")


def test_a_hint_in_the_first_message_after_a_cut_reply_is_an_edit(session):
    note = {"role": "system", "content": "It is Monday."}
    session.ask([user("Do it."), note], "I do no")
    placed = session.place([user("Do it.\nYour reply was cut. Go on."), note])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.changed) == ("main", 1, "the reply 3 was left out")


@pytest.mark.parametrize("text", ["I will call a tool", "I will call a tool: look() and more", "call"])
def test_a_program_that_changes_the_reply_edits(session, text):
    session.ask([user("Go")], "I will call a tool: look()")
    placed = session.place([user("Go"), assistant(text), user("Result: 3")])
    assert isinstance(placed, Continues)
    how = "was cut" if text == "I will call a tool" else "differs"
    assert (placed.context, placed.keep, placed.changed) == ("main", 2, f"message 2 (assistant) {how}")
    assert [message.content for message in placed.messages] == [text, "Result: 3"]


def test_invisible_characters_in_a_control_token_are_no_change(session):
    session.ask([user("Go")], " The token <|im_start|> begins a message. ", [("look", {"token": "<|im_end|>"})])
    sent = assistant(
        "The token <\u200d|im_start|> begins a message.",
        {"id": "1", "function": {"name": "look", "arguments": '{"token": "<\u200d|im_end|>"}'}},
    )
    placed = session.place([user("Go"), sent, result("1", "seen")])
    assert [message.role for message in placed.messages] == ["tool"]
    assert placed.keep is None


CODE = "I look.\n<code>\nx = look('Zürich')\nprint(x)\n"


def with_code_as_a_call(code: Any) -> dict[str, Any]:
    """The assistant's message as smolagents' CodeAgent keeps it: with the stop string, and the code once more."""
    function = {"name": "python_interpreter", "arguments": code}
    calls = [{"id": "call_1", "type": "function", "function": function}]
    return assistant(f"{CODE}</code>\nCalling tools:\n{calls}")


def test_code_that_a_program_repeats_as_a_call_is_no_change(session):
    session.ask([user("Go")], CODE, stop=["</code>"])
    code = "x = look('Zürich')\nprint(x)"
    placed = session.place([user("Go"), with_code_as_a_call(code), user("3")], stop=["</code>"])
    assert placed == Continues("main", (Message(role="user", content="3"),))


@pytest.mark.parametrize("code", ["another = program()", {"code": "print(x)"}])
def test_a_call_that_a_program_adds_to_a_reply_is_a_change(session, code):
    session.ask([user("Go")], CODE, stop=["</code>"])
    placed = session.place([user("Go"), with_code_as_a_call(code), user("3")], stop=["</code>"])
    assert (placed.context, placed.keep, placed.changed) == ("main", 2, "message 2 (assistant) differs")


def test_a_stop_string_that_a_program_puts_back_is_no_change(session):
    session.ask([user("Go")], "<code>\nlook()", stop=["</code>"])
    placed = session.place([user("Go"), assistant("<code>\nlook()\n</code>"), user("3")], stop=["</code>"])
    assert placed == Continues("main", (Message(role="user", content="3"),))


def long_conversation(
    session: Session, steps: int = 4, *, tools: bool = True
) -> tuple[list[dict[str, Any]], list[Message]]:
    sent: list[dict[str, Any]] = [user("Do it.")]
    replies = []
    for step in range(steps):
        calls = [("look", {"step": step})] if tools else []
        reply = session.ask(sent, f"This is what I think of step {step}.", calls)
        replies.append(reply)
        sent += [
            as_sent(reply),
            result(reply.tool_calls[0].id or "", f"result {step}") if tools else user(f"answer {step}"),
        ]
    return sent, replies


@pytest.mark.parametrize("tools", [True, False])
def test_a_program_that_drops_messages_in_the_middle_edits(session, tools):
    sent, replies = long_conversation(session, tools=tools)
    placed = session.place([sent[0], *sent[5:]])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.changed) == ("main", 2, "messages 2 to 5 were left out")
    assert placed.messages[0] is replies[2]
    assert placed.messages[2] is replies[3]
    assert len(placed.messages) == 4


@pytest.mark.parametrize("tools", [True, False])
def test_a_program_that_drops_its_first_messages_edits(session, tools):
    sent, replies = long_conversation(session, tools=tools)
    placed = session.place(sent[3:])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.changed) == ("main", 1, "messages 1 to 3 were left out")
    assert [message for message in placed.messages if message.role == "assistant"] == replies[1:]


def test_a_program_that_cuts_a_result_edits(session):
    sent, replies = long_conversation(session)
    cut = [*sent[:2], {**sent[2], "content": "res..."}, *sent[3:]]
    placed = session.place(cut)
    assert isinstance(placed, Continues)
    assert (placed.keep, placed.changed) == (3, "message 3 (tool) differs")
    assert placed.messages[1] is replies[1]
    session.answer(session.reply("Done with all of it."))
    assert session.place([*cut, assistant("Done with all of it."), user("More")]).keep is None


def test_a_program_that_inserts_a_message_edits(session):
    sent, _ = long_conversation(session)
    placed = session.place([sent[0], user("It is Monday."), *sent[1:]])
    assert (placed.context, placed.keep, placed.changed) == ("main", 2, "message 2 (user) was inserted")


def test_another_system_message_is_a_change(session):
    sent, reply = opened(session)
    placed = session.place([*sent, *results(reply)], system="Today is Monday.")
    assert (placed.context, placed.keep, placed.system, placed.tools) == ("main", None, "Today is Monday.", None)
    session.answer(session.reply("Done with all of it."))
    placed = session.place([*sent, *results(reply), assistant("Done with all of it."), user("More")], system=None)
    assert (placed.context, placed.system) == ("main", "")


def test_other_tools_are_a_change(session):
    sent, reply = opened(session)
    placed = session.place([*sent, *results(reply)], tools=OTHER_TOOLS)
    assert (placed.context, placed.keep, placed.system, placed.tools) == ("main", None, None, tuple(OTHER_TOOLS))


def test_tools_in_another_order_are_no_change(session):
    sent, reply = opened(session)
    assert session.place([*sent, *results(reply)], tools=TOOLS[::-1]).tools is None


def test_another_system_message_and_other_tools_are_another_conversation(session):
    sent, reply = opened(session)
    placed = session.place([*sent, *results(reply)], system="Math only.", tools=OTHER_TOOLS)
    assert (placed.context, placed.role, placed.base, placed.keep) == ("main/agent-1", "agent", "main", 3)
    assert (placed.system, [message.name for message in placed.messages]) == ("Math only.", ["look", "add"])


def test_an_agent_that_gets_the_conversation_back_continues_its_context(session):
    sent, reply = opened(session)
    handed = [*sent, *results(reply)]
    by_other = session.ask(handed, "The sum is three, says the expert.", system="Math only.", tools=OTHER_TOOLS)
    placed = session.place([*handed, as_sent(by_other), user("Thanks")])
    assert (placed.context, placed.keep) == ("main", None)
    assert placed.messages[2].content == by_other.content


@pytest.mark.parametrize(("system", "tools"), [(SYSTEM, ()), ("Give a title.", ()), (SYSTEM, OTHER_TOOLS)])
def test_a_side_request_never_moves_the_head(session, system, tools):
    sent, reply = opened(session)
    known = [*sent, *results(reply)]
    placed = session.place([*known, user("Give a title.")], system=system, tools=tools)
    assert (placed.context, placed.role, placed.base, placed.keep) == ("main/side-1", "side", "main", 3)
    session.answer(session.reply("A title"))
    assert session.place([*known, user("And?")]).context == "main"


def test_the_same_question_in_another_conversation_is_another_conversation(session):
    session.ask([user("Hi")], "OK")
    placed = session.place([user("Hi")], system="Another agent.", tools=OTHER_TOOLS)
    assert (placed.context, placed.role, placed.base, placed.keep) == ("main/agent-1", "agent", None, 0)


def test_short_texts_alone_are_no_evidence(session):
    session.ask([user("First task.")], "OK")
    placed = session.place([user("Second task."), assistant("OK"), user("Go on")])
    assert (placed.context, placed.base) == ("main/agent-1", None)


def test_a_program_that_goes_back_opens_a_branch(session):
    sent, replies = long_conversation(session)
    placed = session.place([*sent[:3], user("Try again.")])
    assert (placed.context, placed.role, placed.base, placed.keep) == ("main/main-1", "main", "main", 4)
    assert [message.content for message in placed.messages] == ["Try again."]
    session.answer(session.reply("Once more."))
    assert session.place([*sent[:3], user("Try again."), assistant("Once more."), user("x")]).context == "main/main-1"
    assert session.place(sent).context == "main"
    assert len(replies) == 4


def test_an_identical_request_is_a_branch(session):
    sent, _ = opened(session)
    placed = session.place(sent[:-1])
    assert (placed.context, placed.role, placed.base, placed.keep, placed.messages) == (
        "main/main-1",
        "main",
        "main",
        2,
        (),
    )


def test_a_request_while_another_is_pending_opens_a_branch(session):
    session.place([user("Hi")])
    first = session.request
    placed = session.place([user("Hi")])
    second = session.request
    assert (placed.context, placed.base, placed.keep, placed.messages) == ("main/main-1", "main", 2, ())
    session.answer(session.reply("One, which is long enough."), request=first)
    session.answer(session.reply("Two, which is long enough."), request=second)
    for text, context in (("One", "main"), ("Two", "main/main-1")):
        placed = session.place([user("Hi"), assistant(f"{text}, which is long enough."), user("x")])
        assert (placed.context, placed.was_choice) == (context, False)


def test_a_failed_request_leaves_no_trace(session):
    sent, reply = opened(session)
    more = [*sent, *results(reply)]
    placed = session.place(more)
    session.conversations.fail(session.request)
    assert session.place(more) == placed
    session.conversations.fail(session.request)
    assert session.place([*sent, *results(reply), user("!")]).context == "main"


def test_a_context_whose_request_failed_gets_its_name_again(session):
    opened(session)
    placed = session.place([user("Sub task.")], system="Sub agent.", tools=OTHER_TOOLS)
    session.conversations.fail(session.request)
    assert session.place([user("Sub task 2.")], system="Sub agent.", tools=OTHER_TOOLS).context == "main/agent-2"
    assert session.place([user("Sub task.")], system="Sub agent.", tools=OTHER_TOOLS) == placed


def test_a_branch_outlives_the_request_that_it_branched_from(session):
    session.place([user("Hi")])
    first = session.request
    session.ask([user("Hi"), user("Summarize.")], "The user said hi, and nothing else.", tools=())
    assert (session.placed.context, session.placed.base) == ("main/side-1", "main")
    session.conversations.fail(first)
    placed = session.place([user("So far: The user said hi, and nothing else.")])
    assert (type(placed), placed.context) == (Opens, "main/agent-1")
    placed = session.place([user("Hi")])
    assert (placed.context, placed.base) == ("main", None)


def test_a_reply_that_did_not_arrive_is_repeated(session):
    sent, _ = opened(session)
    first = session.request
    session.conversations.fail(first)
    for _ in range(2):
        assert session.place(sent[:-1]) == Repeats(first)
        session.conversations.fail(session.request)
    assert session.place([*sent, user("It did arrive.")]).context == "main"


def test_further_replies_open_branches(session):
    session.place([user("Hi")])
    branches = [session.conversations.branch(session.request) for _ in range(2)]
    assert [(b.context, b.role, b.base, b.keep, b.messages) for b in branches] == [
        ("main/main-1", "main", "main", 2, ()),
        ("main/main-2", "main", "main", 2, ()),
    ]
    session.answer(*(session.reply(text) for text in ("Zero", "One", "Two")))
    placed = session.place([user("Hi"), assistant("One"), user("Go on")])
    assert (placed.context, placed.was_choice) == ("main/main-1", False)


def test_another_number_of_replies_is_refused(session):
    session.place([user("Hi")])
    with pytest.raises(ValueError, match="replies"):
        session.answer(session.reply("a"), session.reply("b"))


def test_a_summary_of_a_side_request_continues_the_main_context(session):
    sent, _ = long_conversation(session)
    summary = "<summary>\nThe user wants four steps, and all are done.\n</summary>"
    session.ask([*sent, user("Summarize.")], summary, tools=())
    assert session.placed.role == "side"
    text = "The conversation so far:\nThe user wants four steps, and all are done.\nContinue."
    placed = session.place([user(text)])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep) == ("main", 1)
    assert placed.changed.startswith("compacted")
    assert (
        session.conversations.answer(session.request, [ModelReply("r", session.reply("Fine."), "stop", 0, ())]) is None
    )
    assert session.place([user(text), assistant("Fine."), user("x")]).context == "main"


def test_the_result_of_one_agent_in_the_question_to_another_is_no_summary(session):
    session.ask([user("Collect the facts.")], "There are many facts about many things.")
    session.ask([user("Sub task.")], "There are many facts about other things.", system="Sub.", tools=OTHER_TOOLS)
    placed = session.place([user("Check: There are many facts about many things.")])
    assert isinstance(placed, Opens)
    placed = session.place([user("Check: There are many facts about other things.")])
    assert isinstance(placed, Opens)


def test_reasoning_that_the_program_changed_stays_changed_when_it_is_dropped(session):
    sent, reply = opened(session)
    after = results(reply)
    session.ask([*sent[:-1], {**as_sent(reply), "reasoning_content": "No."}, *after], "All of this is done.")
    placed = session.place([*sent[:-1], bare(reply), *after, assistant("All of this is done."), user("More")])
    assert (placed.context, placed.keep) == ("main", None)


SEARCH = ("task", {"prompt": "Find all books about bees.", "kind": "search"})


@pytest.mark.parametrize(
    ("headers", "asked", "why"),
    [
        ({}, "Find all books about bees.", "the arguments of its call of 'task' are in it"),
        ({}, "<task>Find all books about bees.</task>", "the arguments of its call of 'task' are in it"),
        ({}, "Bees", "its call of 'task' is in flight"),
        ({"x-parent-session-id": "s1"}, "Bees", "a header names its session"),
        ({"x-session-id": "s1", "x-claude-code-agent-id": "a"}, "Bees", "its session, with x-claude-code-agent-id"),
    ],
)
def test_a_sub_agent_has_the_parent_that_something_names_and_the_break_says_what(session, headers, asked, why):
    session.ask([user("Who am I?")], "You are you.", system="Another agent.", tools=OTHER_TOOLS)
    session.ask([user("Go")], "", [SEARCH], headers={"x-session-id": "s1"})
    placed = session.place([user(asked)], system="You search.", tools=OTHER_TOOLS, headers=headers)
    assert isinstance(placed, Opens)
    assert (placed.base, placed.parent, placed.why) == (None, "main/agent-1", why)
    assert placed.detail == f"agent: a separate conversation below main/agent-1: {why}"


def test_a_sub_agent_in_the_background_has_the_parent_whose_call_was_answered_already(session):
    sent = [user("Go")]
    reply = session.ask(sent, "", [SEARCH])
    session.ask([*sent, as_sent(reply), result(reply.tool_calls[0].id or "", "It was started.")], "I wait.")
    placed = session.place([user("Find all books about bees.")], system="You search.", tools=OTHER_TOOLS)
    assert isinstance(placed, Opens)
    assert (placed.parent, placed.why) == ("main", "the arguments of its call of 'task' are in it")


def test_of_two_calls_in_flight_none_is_the_parent_unless_something_names_it(session):
    session.ask([user("Go")], "", [SEARCH])
    session.ask([user("Go on")], "", [SEARCH], system="Another agent.", tools=OTHER_TOOLS)
    placed = session.place([user("Bees")], system="You search.", tools=OTHER_TOOLS)
    assert isinstance(placed, Opens)
    assert placed.parent is None


def test_main_is_the_conversation_with_tools_and_the_most_replies(session):
    session.ask([user("Write a title for: count the bees in the garden")], "Bees", system="Titles.", tools=[])
    assert session.placed.role == "main"
    session.ask([user("Warm up")], "OK", system="You work.")
    sent = [user("Count the bees")]
    for number in range(2):
        sent += [as_sent(session.ask(sent, f"So far, {number} bees", system="You count.")), user("And?")]
    session.ask(sent[:1], "I start anew, with other bees", system="You count.")
    aside = [*sent, user("Say it in a word")]
    session.ask(aside, "Two", system="You count.", tools=[])
    assert session.conversations.roles() == {
        "main": "side",
        "main/agent-1": "agent",
        "main/agent-2": "main",
        "main/agent-3": "main",
        "main/side-1": "side",
    }


def test_without_tools_anywhere_the_longest_conversation_is_main(session):
    session.ask([user("Hi")], "Hello", tools=[])
    assert session.conversations.roles() == {"main": "main"}
    sent = [user("Work")]
    for number in range(2):
        sent += [as_sent(session.ask(sent, f"Step {number}", system="W.", tools=[])), user("On")]
    assert session.conversations.roles() == {"main": "agent", "main/agent-1": "main"}


def test_a_compaction_in_other_words_continues_the_conversation_of_its_session(session):
    headers = {"x-claude-code-session-id": "s"}
    sent, reply = opened(session, headers=headers)
    sent += results(reply)
    summary = (
        "<summary>The user plans a trip to Zurich of two days, and the weather there is fine until Monday.</summary>"
    )
    session.ask([*sent, user("Summarize all of it.")], summary, tools=[], headers=headers)
    again = "Earlier: the user plans a trip to Zurich of two days,\nand the weather there is fine until Monday. Go on!"
    placed = session.place([user(again)], headers=headers)
    assert isinstance(placed, Continues)
    assert placed.context == "main" and placed.changed.startswith("compacted: ")


def test_what_a_session_quotes_after_it_was_compacted_by_itself_continues_it_only_in_the_same_session(session):
    headers = {"x-session-id": "s"}
    session.ask([user("Go")], "The trip to Zurich takes two days, and the weather there is fine.", headers=headers)
    quoted = [user("It said: The trip to Zurich takes two days, and the weather there is fine. Go on.")]
    assert isinstance(session.place(quoted), Opens)
    session.conversations.fail(session.request)
    assert isinstance(session.place(quoted, headers={"x-session-id": "other"}), Opens)
    session.conversations.fail(session.request)
    placed = session.place(quoted, headers=headers)
    assert isinstance(placed, Continues) and placed.context == "main"


def test_a_session_decides_between_conversations_that_fit_equally_well(session):
    for name in ("one", "two"):
        session.ask([user("Hi")], "Hello", headers={"x-session-id": name})
    sent = [user("Hi"), assistant("Hello"), user("Go")]
    assert session.place(sent, headers={"x-session-id": "one"}).context == "main"
    session.conversations.fail(session.request)
    assert session.place(sent, headers={"x-session-id": "two"}).context == "main/main-1"


def test_a_client_that_says_that_it_retries_gets_the_same_answer(session):
    session.ask([user("Hi")], "Hello")
    first = session.request
    assert session.place([user("Hi")], headers={"x-stainless-retry-count": "1"}) == Repeats(first)


def test_what_was_cut_on_its_way_is_asked_for_again_in_its_context(session):
    session.place([user("Count")])
    first = session.request
    session.conversations.answer(first, [ModelReply("r", session.reply("One, two"), "stop", 0, ())], is_cut=True)
    session.conversations.fail(first)
    assert session.conversations.received == {"r": 0}
    placed = session.place([user("Count")])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.messages) == ("main", 2, ())


@pytest.mark.parametrize(("back", "received"), [("One, two", {"id": 8}), ("One, two, three", {})])
def test_a_part_of_a_stream_is_what_was_received(session, back, received):
    session.ask([user("Count")], "One, two, three", is_streamed=True)
    session.place([user("Count"), assistant(back), user("Stop")])
    assert list(session.conversations.received.values()) == list(received.values())


@pytest.mark.parametrize("rule", ["", "system", "system:(", ":x"])
def test_a_rule_for_a_role_that_cannot_be_read_is_refused_with_its_form(rule):
    with pytest.raises(ConfigError, match="expected FIELD:REGEX"):
        role_rules({"title": rule})


def test_rules_give_roles_by_system_message_tools_model_and_headers():
    role_of = role_rules(
        {"title": "system:(?i)title", "plain": "tools:^$", "big": "model:large", "search": "X-Agent:find"}
    )
    request = to_request([user("Hi")], headers={"x-agent": "finder"})
    assert role_of(request) == "search"
    assert role_of(replace(request, body={"model": "a-large-one"})) == "big"
    assert role_of(replace(request, tools=[])) == "plain"
    assert role_of(replace(request, system="Write a TITLE.")) == "title"
    assert role_of(to_request([user("Hi")])) is None


def test_replies_after_a_new_beginning_continue_their_context_by_their_ids(session):
    sent, reply = opened(session)
    sent += results(reply)
    second = session.ask(sent, "", [("look", {"city": "Bern"})])
    session.ask([*sent, user("Summarize. Call no tool.")], "The user asks for the weather.")  # drops the second reply
    again = [user("You were asked for the weather. Go on."), as_sent(second), *results(second)]
    placed = session.place(again, system=f"{SYSTEM} It is Monday.")
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep) == ("main", 1)
    assert placed.changed == "compacted: messages 1 to 6 were replaced by 3"


def test_a_request_that_begins_with_a_summary_as_a_reply_continues_its_context(session):
    sent, reply = opened(session)
    summary = "The user asks for the weather in Zurich, and nothing is known."
    session.ask([*sent, *results(reply), user("Summarize.")], summary)
    placed = session.place([assistant(summary)])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep, placed.changed) == ("main", 1, "messages 1 to 5 were left out")


def test_a_conversation_that_is_repeated_after_its_reply_is_no_edit_of_its_base(session):
    sent, reply = opened(session)
    sent += results(reply)
    session.ask(sent, "It is sunny there.")
    fork = [user("What else is the weather?"), *sent[1:], assistant("It is sunny there."), user("And tomorrow?")]
    session.ask(fork, "It rains.")
    session.ask([*sent, user("And today?")], "Sunny.")
    placed = session.place([*sent, user("And today?")])
    assert isinstance(placed, Opens)


@pytest.mark.parametrize("instead", [[], [assistant("... ^C Interrupted")], [user("Are you there?")]])
def test_after_a_reply_that_did_not_arrive_the_conversation_goes_on_from_the_one_before(session, instead):
    sent, reply = opened(session)
    sent += results(reply)
    session.place(sent)
    session.answer(session.reply("Let me thi"))
    session.conversations.fail(session.request)
    placed = session.place([*sent, *instead, user("Go on, and say when it is done.")])
    assert isinstance(placed, Continues)
    assert (placed.context, placed.keep) == ("main", 5)
    is_replaced = instead[:1] == [assistant("... ^C Interrupted")]
    assert placed.changed == ("message 5 (assistant) differs" if is_replaced else "the reply 5 was left out")


def test_a_call_in_the_text_may_be_spelled_differently_but_not_say_something_else(session):
    said = '<tool_call>\n{"name": "look", "arguments": {"n": 1.0, "city": "Bern"} }\n</tool_call>'
    session.ask([user("Look")], said, tools=[])
    same = '<tool_call>\n{"arguments": {"city": "Bern", "n": 1}, "name": "look"}\n</tool_call>'
    placed = session.place([user("Look"), assistant(same), user("4")], tools=[])
    assert isinstance(placed, Continues) and placed.keep is None
    session.conversations.fail(session.request)
    placed = session.place([user("Look"), assistant(same.replace("Bern", "Basel")), user("4")], tools=[])
    assert not (isinstance(placed, Continues) and placed.keep is None)
