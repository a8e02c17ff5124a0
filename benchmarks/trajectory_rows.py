"""The rows about trajectories: rollouts, what they keep in memory, and what trainers get of them."""

from .logs import SIZES as LOGS
from .row import OURS, Entry, Row, ahead, at_most
from .talks import SIZES as ROLLOUTS
from .talks import STOP_S

TINKER = Entry("tinker-cookbook", "tinker")
VERIFIERS = Entry("verifiers", "verifiers")
MERGED = ("tinker-cookbook", "verifiers")

ROLLOUT = Row(
    id="rollouts",
    title="Rollouts",
    measures="The time of one step of a rollout of 200 steps, in one process: with a scripted policy that takes no "
    "time, CPU time; with a policy that takes 20 ms, wall-clock time, which is 20 ms at best for one episode and "
    "0.08 ms for 256 at the same time. A user answers each reply; a step has about 200 tokens, and nothing is "
    "dropped. The 256 episodes begin in the middle, with 100 steps said before, and a rollout is "
    f"stopped after {STOP_S:.0f} s, finished or not: all of their steps would take some contenders half an hour, and "
    "the first steps cost them the least. The time until there are as many replies as episodes does not count.",
    contenders=(Entry(OURS, OURS), TINKER, VERIFIERS),
    sizes=ROLLOUTS,
    size_name="policy",
    quick_sizes=ROLLOUTS[:1],
    targets=(
        ahead(50, *MERGED, at=tuple(size for size in ROLLOUTS if size.startswith("scripted"))),
        ahead(5, *MERGED, at=("20 ms policy, 256 episodes",)),
    ),
    repetitions=2,
)
MEMORY = Row(
    id="trajectory-memory",
    title="Memory of a trajectory",
    measures="The bytes of a finished episode of T steps of about 200 tokens, and of all that it refers to.",
    contenders=(Entry(OURS, OURS), TINKER, VERIFIERS),
    sizes=(200,),
    size_name="T",
    quick_sizes=(200,),
    targets=(ahead(100, "tinker-cookbook"),),
    unit="bytes",
    repetitions=1,
)
SAMPLES = Row(
    id="samples",
    title="Trajectory to samples",
    measures="The CPU time for all training samples of an episode of 512 steps, each with 200 observed and 200 sampled "
    "tokens: by one agent; by 8 agents that take turns; and where every step breaks, because only the last 8 steps are "
    "visible.",
    contenders=(
        Entry(OURS, OURS),
        Entry("envsdk, from full prompts", OURS),
        TINKER,
        VERIFIERS,
        Entry("verifiers, as arrays", "verifiers"),
        Entry("prime-rl's rule", OURS),
        Entry("slime's rule", OURS),
    ),
    sizes=tuple(LOGS),
    size_name="episode",
    quick_sizes=("8 agents",),
    targets=(ahead(50, "tinker-cookbook"),),
)
BATCHES = Row(
    id="batches",
    title="Samples to a batch",
    measures="The CPU time for one batch of 512 samples: 64 groups of 8 that share a prompt of 200 tokens, with "
    "replies of 100 to 300 tokens.",
    contenders=(
        Entry(OURS, "trl"),
        Entry("TRL, supervised", "trl"),
        Entry("TRL, GRPO", "trl"),
        Entry("TRL, asynchronous GRPO", "trl"),
        TINKER,
    ),
    sizes=("padded", "packed", "tree"),
    size_name="batch",
    quick_sizes=("padded",),
    targets=(ahead(3, "TRL, supervised", "TRL, GRPO", "TRL, asynchronous GRPO", "tinker-cookbook"),),
)
TOKENS = Row(
    id="training-tokens",
    title="Tokens to train",
    measures="The tokens that a training step computes over for one episode of T steps, with about 20 tokens of "
    "question, 120 of thinking and 20 of answer in each, and thinking stripped.",
    contenders=(
        Entry(OURS, "trl"),
        Entry("TRL, asynchronous GRPO", "trl"),
        Entry("separate samples", "trl"),
        Entry("thinking kept", "trl"),
    ),
    sizes=(16, 32, 64, 128),
    size_name="T",
    quick_sizes=(16,),
    targets=(at_most(2.1, "thinking kept"),),
    unit="tokens",
    repetitions=1,
)
STEP = Row(
    id="training-step",
    title="Time of a training step",
    measures="The CPU time on one thread of forward, loss and backward over one episode of T steps, thinking "
    "stripped, as above: a Qwen3 of 4 layers and hidden size 256 with random weights. All compute the same loss. A "
    "repetition may take 5 minutes; what takes more than one minute is run once. The tree has 2.3, 6.4 and 11.5 times "
    "fewer operations: see [Tree batches](explanation/trees.md#what-bounds-the-speed).",
    contenders=(
        Entry(OURS, "trl"),
        Entry("envsdk, dense mask", "trl"),
        Entry("packed samples", "trl"),
        Entry("separate samples", "trl"),
    ),
    sizes=(16, 64, 128),
    size_name="T",
    quick_sizes=(16,),
    targets=(
        ahead(2.5, "separate samples", at=(16,)),
        ahead(5, "separate samples", at=(64,)),
        ahead(7, "separate samples", at=(128,)),
    ),
    repetitions=2,
    cap_s=300.0,
)
UPDATE = Row(
    id="grpo-update",
    title="An update of GRPOTrainer",
    measures="The wall-clock time on two threads of an update of TRL's GRPOTrainer over the same episode and model: "
    "its loss, the backward pass, and a step of the optimizer.",
    contenders=(Entry(OURS, "trl"), Entry("a row per segment", "trl")),
    sizes=(16, 64, 128),
    size_name="T",
    quick_sizes=(16,),
    targets=(
        ahead(2, "a row per segment", at=(16,)),
        ahead(4.5, "a row per segment", at=(64,)),
        ahead(7, "a row per segment", at=(128,)),
    ),
    repetitions=2,
    cap_s=300.0,
)
PEAK = Row(
    id="grpo-memory",
    title="Memory of an update of GRPOTrainer",
    measures="The peak of the memory that the same update adds to its process, with activation checkpointing, which is "
    "the default of GRPOTrainer. The memory allocator returns freed memory at once.",
    contenders=(
        Entry(OURS, "trl"),
        Entry("a row per segment", "trl"),
        Entry("a row per segment, one at a time", "trl"),
    ),
    sizes=(16, 32),
    size_name="T",
    quick_sizes=(16,),
    targets=(ahead(1, "a row per segment"),),
    unit="bytes",
    repetitions=1,
    cap_s=300.0,
)
TRAJECTORY_ROWS = (SAMPLES, BATCHES, TOKENS, STEP, UPDATE, PEAK, MEMORY, ROLLOUT)
