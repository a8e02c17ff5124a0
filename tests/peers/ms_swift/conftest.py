"""ms-swift's own warnings, and those of what it imports, are not ours to mend."""

import warnings

with warnings.catch_warnings(action="ignore"):
    import swift.model
    import swift.rlhf_trainers.utils
    import swift.rollout.multi_turn
    import swift.template  # noqa: F401
