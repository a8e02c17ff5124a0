"""ms-swift's own warnings, and those of what it imports, are not ours to mend.

Its templates of Qwen's vision models import torchvision, whose compiled operators do not load next to torch for CPUs.
Reading and resizing an image needs none of them, but the import needs them to be declared.
"""

import warnings

import torch

_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

with warnings.catch_warnings(action="ignore"):
    import swift.model
    import swift.rlhf_trainers.utils
    import swift.rollout.multi_turn
    import swift.template  # noqa: F401
