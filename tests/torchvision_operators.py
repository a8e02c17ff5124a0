"""Declares the operators that `import torchvision` expects, whose compiled code does not load next to torch for CPUs.

Reading and resizing an image needs none of them. Import this before torchvision, or put it next to it: see
`tests/peers/vllm/after_install.py`.
"""

import torch

OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    OPERATORS.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
