"""ms-swift's own warnings, and those of what it imports, are not ours to mend.

Its templates of Qwen's vision models import torchvision.
"""

import warnings

import torchvision_operators  # noqa: F401

with warnings.catch_warnings(action="ignore"):
    import swift.model
    import swift.rlhf_trainers.utils
    import swift.rollout.multi_turn
    import swift.template  # noqa: F401
