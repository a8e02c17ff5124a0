"""verl loads processors of vision models with torchvision."""

import torchvision_operators  # noqa: F401
