"""What holds for every trajectory, whatever was sampled, rewritten, handed over and forked: a replay of its own."""

from collections.abc import Iterable

from envsdk import Trajectory

Place = tuple[str, int]  # a context, and an index in its log


def check(*trajectories: Trajectory) -> None:
    """Check each trajectory, and that nothing that was sampled is trained in two of them, or in none."""
    trained: dict[tuple[str, str, int], int] = {}
    sampled: set[tuple[str, str, int]] = set()
    for trajectory in trajectories:
        places = _replay(trajectory)
        _check_samples(trajectory)
        for step in trajectory.steps:
            for index in range(step.action_start, step.stop):
                owner = _owner(trajectory, step.context, index)
                sampled.add((owner, step.context, index))
                if owner == trajectory.id:
                    trained[owner, step.context, index] = trained.get((owner, step.context, index), 0) + 1
        assert trajectory.tree_size(include_failed=True) == len(places)
        again = Trajectory.from_json(trajectory.to_json())
        assert again.to_json() == trajectory.to_json() and again.origins == trajectory.origins
    assert set(trained.values()) <= {1}
    own = {place for place in sampled if place[0] in {trajectory.id for trajectory in trajectories}}
    assert trained.keys() == own


def _replay(trajectory: Trajectory) -> set[Place]:
    """Replay the deltas. Returns the places of all tokens that a token trained here stands at or behind."""
    contexts: dict[str, list[Place]] = {}
    needed: set[Place] = set()
    for step, prompt, _ in trajectory.prompts():
        before = contexts.get(step.base, [])
        is_new = step.context not in contexts
        drops = step.base == step.context and step.keep < len(before)
        # Declared: `extends` is False exactly where a context is new and where there is a break.
        assert step.extends == (not is_new and step.break_ is None)
        assert drops == (step.break_ is not None and step.break_.kind == "rewrite")
        if step.break_ is not None:
            assert step.break_.kept == step.keep and step.break_.context == step.context
            assert step.break_.dropped == (len(before) - step.keep if drops else 0)
            assert step.break_.base == step.base
        shown = [*before[: step.keep], *_places(step.context, step.start, step.action_start)]
        assert [int(trajectory.contexts[name].tokens[index]) for name, index in shown] == prompt.tolist()
        contexts[step.context] = [*shown, *_places(step.context, step.action_start, step.stop)]
        kept = [i for i in range(step.action_start, step.stop) if not any(a <= i < b for a, b in step.masked)]
        if kept and not trajectory.is_copied(step):
            needed.update(contexts[step.context][: len(shown) + kept[-1] + 1 - step.action_start])
    return needed


def _places(context: str, start: int, stop: int) -> Iterable[Place]:
    return ((context, index) for index in range(start, stop))


def _check_samples(trajectory: Trajectory) -> None:
    samples = trajectory.samples(include_failed=True)
    own = [step for step in trajectory.steps if not trajectory.is_copied(step)]
    masked = sum(stop - start for step in own for start, stop in step.masked)
    sampled = sum(step.stop - step.action_start for step in own)
    assert sum(int(sample.mask.sum()) for sample in samples) == sampled - masked
    for sample in samples:
        sample.validate()
    failed = {name for name, log in trajectory.contexts.items() if log.error}
    kept = [sample.context for sample in samples if sample.context not in failed]
    if trajectory.status != "error":
        assert [sample.context for sample in trajectory.samples()] == kept
    segments = {(sample.context, sample.segment_index) for sample in samples}
    assert len(segments) == len(samples)
    rewrites = sum(step.break_ is not None and step.break_.kind == "rewrite" for step in own)
    assert len(samples) <= len({step.context for step in own}) + rewrites


def _owner(trajectory: Trajectory, context: str, index: int) -> str:
    """The trajectory in which a token was sampled."""
    for origin in trajectory.origins:
        if index < origin.tokens.get(context, 0):
            return origin.trajectory_id
    return trajectory.id
