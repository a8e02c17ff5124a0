"""The rows about programs: requests to a gateway, imports, and installations."""

from .row import OURS, Bound, Entry, Row, ahead, at_most

GATEWAY = Row(
    id="gateway",
    title="Gateway: a request of 200 new words",
    measures="The CPU time of the server for one chat request whose conversation has N messages: a user's 200 new "
    "words after what was said before. Whatever answers takes no time and is in the server's process.",
    contenders=(
        Entry(OURS, OURS),
        Entry("LiteLLM proxy", "litellm"),
        Entry("OpenEnv", "openenv"),
        Entry("tinker-cookbook", "tinker"),
        Entry("verifiers", "verifiers"),
    ),
    sizes=(10, 200, 1000),
    size_name="N",
    quick_sizes=(10,),
    targets=(ahead(1, "LiteLLM proxy", "OpenEnv", "tinker-cookbook", "verifiers"),),
)
IMPORT = Row(
    id="import-time",
    title="Import",
    measures="The CPU time of a new Python that imports what a user imports.",
    contenders=(
        Entry(OURS, OURS),
        Entry("gymnasium and pydantic", OURS),
        Entry("gymnasium and a model's base", OURS),
        Entry("tinker-cookbook", "tinker"),
        Entry("TRL", "trl"),
        Entry("verifiers", "verifiers"),
        Entry("python", OURS),
    ),
    sizes=("import",),
    size_name="what",
    quick_sizes=("import",),
    limit="python",
)
INSTALLED = tuple(Entry(name, OURS) for name in (OURS, "gymnasium and pydantic", "verifiers", "tinker-cookbook"))
INSTALL_TIME = Row(
    id="install-time",
    title="A fresh installation",
    measures="The CPU time of pip for one installation into a fresh environment. Downloads are not in it.",
    contenders=INSTALLED,
    sizes=("install",),
    size_name="what",
    quick_sizes=("install",),
    targets=(at_most(0.5, "verifiers"),),
    repetitions=1,
)
INSTALL_SIZE = Row(
    id="install-size",
    title="The size of an installation",
    measures="The bytes that this installation adds to an empty environment.",
    contenders=INSTALLED,
    sizes=("install",),
    size_name="what",
    quick_sizes=("install",),
    targets=(Bound(330e6),),
    unit="bytes",
    repetitions=1,
)
PROGRAM_ROWS = (GATEWAY, IMPORT, INSTALL_TIME, INSTALL_SIZE)
