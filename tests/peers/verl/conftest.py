"""verl takes this machine for its platform, and loads processors of vision models with torchvision."""

import verl_engines  # noqa: F401
