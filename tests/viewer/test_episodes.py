"""The JSON of an episode: contexts, steps, links, samples, the tree, and the columns of tokens."""

import json
import sys

import numpy as np
import orjson
import pytest
from documents import CHECKOUT

import envsdk
from envsdk.errors import InvalidRecord
from envsdk.tree import tree_batch
from envsdk.viewer._episodes import episode
from envsdk.viewer._ranges import prompt_of, sample_segments, segment_ranges, tree_nodes
from envsdk.viewer._tokens import context_tokens


def rolled_out(env, policy="reference", *, seed=0, **options):
    return envsdk.rollout(envsdk.make(env, **options), policy, seed=seed)


def every_id():
    """An episode whose replies have each id of the vocabulary: control tokens, and parts of characters."""
    env = envsdk.make("envsdk/Calculator-v1")
    env.reset(seed=0)
    ids = np.arange(TOKENIZER.vocab_size, dtype=np.int32)
    while env.trajectory is None:
        env.step(ids)
    return env.trajectory


DELEGATE = rolled_out("envsdk/Delegate-v1")
NOTES = rolled_out("envsdk/LongNotes-v1", history={"name": "summarize", "threshold": 2500})
STRIP = rolled_out("envsdk/MathChat-v0", history="strip")
TOKENIZER = envsdk.load_tokenizer("embedded")
EVERY_ID = every_id()
ALL = {"delegate": DELEGATE, "notes": NOTES, "strip": STRIP, "every_id": EVERY_ID}

every_episode = pytest.mark.parametrize("trajectory", ALL.values(), ids=[*ALL])


def tokens_of(trajectory, own):
    return trajectory.contexts[own.context].tokens[own.start : own.stop]


def expanded(runs, length):
    """The value of each token, of the runs of a column."""
    ends = [start for start, _ in runs[1:]] + [length]
    return [value for (start, value), end in zip(runs, ends, strict=True) for _ in range(start, end)]


@every_episode
def test_everything_can_be_written_as_json(trajectory):
    assert json.loads(orjson.dumps(episode(trajectory)))["id"] == trajectory.id
    for name in trajectory.contexts:
        orjson.dumps(context_tokens(trajectory, name, TOKENIZER))


def test_the_types_and_colors_of_the_page_are_those_of_python():
    sys.path.insert(0, str(CHECKOUT / "scripts"))
    try:
        import viewer_types
    finally:
        sys.path.remove(str(CHECKOUT / "scripts"))
    for name, text in viewer_types.files().items():
        assert (viewer_types.FOLDER / name).read_text(encoding="utf-8") == text, f"{name} is old: run `make page`"


@every_episode
def test_the_ranges_of_a_prompt_are_what_the_policy_saw(trajectory):
    for index, prompt in enumerate(trajectory.prompts()):
        ranges = prompt_of(trajectory, index)
        found = np.concatenate([tokens_of(trajectory, own) for own in ranges])
        assert np.array_equal(found, prompt.prompt)
        assert episode(trajectory)["steps"][index]["prompt_tokens"] == len(prompt.prompt) if index < 3 else True


@every_episode
def test_the_ranges_of_a_sample_are_its_tokens(trajectory):
    segments = sample_segments(trajectory)
    for (number, segment), sample in zip(segments, trajectory.samples(), strict=True):
        found = np.concatenate([tokens_of(trajectory, own) for own in segment_ranges(segment)])
        assert np.array_equal(found, sample.tokens)
        assert number == sample.segment_index


@every_episode
def test_each_token_is_in_one_node_and_the_branch_of_a_prompt_is_a_path_of_the_tree(trajectory):
    nodes = tree_nodes(trajectory)
    assert sum(node["stop"] - node["start"] for node in nodes) == sum(
        len(log.tokens) for log in trajectory.contexts.values()
    )
    last = trajectory.steps[-1]
    at = next(node for node in nodes if node["context"] == last.context and node["stop"] >= last.stop > node["start"])
    branch = [at]
    while branch[-1]["parent"] >= 0:
        branch.append(nodes[branch[-1]["parent"]])
    tokens = [trajectory.contexts[node["context"]].tokens[node["start"] : node["stop"]] for node in reversed(branch)]
    *_, prompt = trajectory.prompts()
    assert np.array_equal(np.concatenate(tokens), np.append(prompt.prompt, prompt.action))


def test_the_tree_has_the_tokens_of_the_tree_batch():
    assert len(tree_batch(STRIP)) == STRIP.tree_size() == sum(n["stop"] - n["start"] for n in tree_nodes(STRIP))


@every_episode
def test_the_trained_tokens_are_those_of_the_samples(trajectory):
    samples = trajectory.samples()
    for name, log in trajectory.contexts.items():
        trained = expanded(context_tokens(trajectory, name, None)["trained"], len(log.tokens))
        for index, sample in enumerate(samples):
            if sample.context == name:
                assert trained.count(index) == np.count_nonzero(sample.mask)


def test_a_token_has_the_step_that_dropped_it():
    columns = context_tokens(STRIP, "main", TOKENIZER)
    dropped = expanded(columns["dropped"], len(columns["ids"]))
    for index, step in enumerate(STRIP.steps):
        if step.break_ is not None:
            assert dropped.count(index) == step.break_.dropped


def test_a_pair_of_handoff_and_return_is_linked_in_the_order_of_the_steps():
    links = episode(DELEGATE)["links"]
    assert [link["step"] for link in links] == sorted(link["step"] for link in links)
    names = [name for name in DELEGATE.contexts if name != "main"]
    assert [link["to"] for link in links if link["kind"] == "handoff"] == names
    assert [link["from"] for link in links if link["kind"] == "return"] == names


def test_a_summary_context_inherits_the_messages_and_the_tokens_of_its_base():
    main, summary = episode(NOTES)["contexts"][:2]
    first = next(step for step in NOTES.steps if step.context == summary["name"])
    assert (summary["base"], summary["inherited_tokens"]) == ("main", first.keep)
    inherited = [message["is_inherited"] for message in summary["messages"]]
    assert inherited == sorted(inherited, reverse=True)
    assert 2 < inherited.count(True) == first.reply - 1 < len(inherited)
    assert not any(message["is_inherited"] for message in main["messages"])


def test_calls_and_results_are_paired_both_ways():
    found = 0
    for context in episode(DELEGATE)["contexts"]:
        for index, message in enumerate(context["messages"]):
            for number, call in enumerate(message["calls"]):
                assert context["messages"][call["result"]]["answers"] == (index, number)
                found += 1
    assert found == sum(len(m.tool_calls) for log in DELEGATE.contexts.values() for m in log.messages) > 5


def test_each_reply_names_its_step():
    view = episode(NOTES)
    for index, step in enumerate(NOTES.steps):
        context = next(context for context in view["contexts"] if context["name"] == step.context)
        assert index in context["messages"][step.reply]["steps"]


def test_a_break_has_its_cost_and_limits_count_down():
    steps = episode(NOTES)["steps"]
    summary = next(step for step in steps if step["break"] and step["break"]["reason"] == "summary")
    assert 0 < summary["break"]["observed_again"] <= summary["observed"]
    assert sum(stop - start for _, start, stop in summary["dropped"]) == summary["break"]["dropped"]
    own = [step["left"]["max_steps"] for step in steps if step["context"] == "main"]
    assert own == list(range(199, 199 - len(own), -1))  # what wrote the summaries does not count


def test_control_characters_and_parts_of_characters_stay_visible_as_bytes():
    columns = context_tokens(EVERY_ID, "main", TOKENIZER)
    pieces = [
        bytes.fromhex(columns["bytes"][str(token)])
        if str(token) in columns["bytes"]
        else columns["texts"][str(token)].encode()
        for token in columns["ids"]
    ]
    assert pieces == TOKENIZER.token_bytes(EVERY_ID.contexts["main"].tokens)
    assert columns["bytes"]
    assert set(columns["controls"]) <= set(TOKENIZER.control_tokens.values())


def test_without_a_tokenizer_there_are_ids_and_no_texts():
    columns = context_tokens(EVERY_ID, "main", None)
    assert (columns["has_texts"], columns["texts"], len(columns["ids"])) == (
        False,
        {},
        len(EVERY_ID.contexts["main"].tokens),
    )


def test_stored_samples_add_advantages_and_log_probabilities_of_a_reference():
    samples = STRIP.samples()
    for number, sample in enumerate(samples):
        sample.advantage = float(number)
        sample.reference_logprobs = np.where(sample.mask, np.float32(-0.5), np.float32(0.0)).astype(np.float32)
    columns = context_tokens(STRIP, "main", TOKENIZER, samples)
    trained = expanded(columns["trained"], len(columns["ids"]))
    assert columns["advantages"] == [None if index is None else float(index) for index in trained]
    assert columns["reference_logprobs"] == [None if index is None else -0.5 for index in trained]
    assert columns["teacher"] is None
    samples[0].metadata["teacher"] = "keep"
    assert context_tokens(STRIP, "main", TOKENIZER, samples)["teacher"] == "keep"


def test_stored_samples_of_another_episode_are_refused():
    with pytest.raises(InvalidRecord, match="does not have the tokens of this episode"):
        context_tokens(STRIP, "main", TOKENIZER, NOTES.samples())


def test_recorded_roles_are_runs_of_labels():
    env = envsdk.make("envsdk/MathChat-v0", history="strip")
    env.records_roles = True
    trajectory = envsdk.rollout(env, "reference", seed=0)
    log = trajectory.contexts["main"]
    columns = context_tokens(trajectory, "main", TOKENIZER)
    assert expanded(columns["roles"], len(log.tokens)) == log.roles.labels()


def test_an_unknown_context_is_refused():
    with pytest.raises(InvalidRecord, match="has no context 'mian'; it has main"):
        context_tokens(STRIP, "mian", TOKENIZER)
