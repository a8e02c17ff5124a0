"""The settings that make a model's log-probabilities differ between training and sampling. Needs torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from .._packages import load
from .._visible import type_of
from ..errors import ConfigError

Effect: TypeAlias = Literal[
    "dropout", "random_activation", "router_noise", "expert_capacity", "batch_statistics", "auxiliary_loss"
]

_BATCH_NORMS = {"_BatchNorm", "_InstanceNorm"}
"""The base classes of torch's layers that use the statistics of the batch in training, and stored ones otherwise."""
_EFFECTS: Mapping[str, Effect] = {
    "drop": "dropout",
    "jitter": "router_noise",
    "noise": "router_noise",
    "capacity": "expert_capacity",
}
"""By a part of the name of an attribute. Attention layers of transformers have a number named `attention_dropout`."""
_ALWAYS: frozenset[Effect] = frozenset({"expert_capacity", "auxiliary_loss"})
"""The effects that do not depend on whether a module is in training mode."""


@dataclass(frozen=True, slots=True)
class TrainingDifference:
    """A module whose output may differ between training and sampling.

    Attributes:
        module: The name of the module in the model, empty for the model itself.
        effect: `dropout`, `random_activation` and `router_noise` are random. With `expert_capacity`, an expert drops
            tokens that depend on the rest of the batch. `batch_statistics` are those of a batch norm. An
            `auxiliary_loss` changes the loss, and not the log-probabilities.
        setting: The setting with its value, such as `p=0.1`.
        is_active: Whether it has an effect now. Dropout has none in evaluation mode.
    """

    module: str
    effect: Effect
    setting: str
    is_active: bool


@dataclass(frozen=True, slots=True)
class TrainMode:
    """The settings that make a model's log-probabilities differ between training and sampling.

    Attributes:
        modules: The number of modules.
        training: The number of modules in training mode.
        dtypes: The numeric formats of the parameters.
        attention: The attention kernel (`config._attn_implementation`), if the model has one. A kernel that
            differs from the sampler's rounds differently.
        differences: The modules that differ, active or not.
        differs: Whether an active difference changes log-probabilities.
    """

    modules: int
    training: int
    dtypes: tuple[str, ...]
    attention: str | None
    differences: tuple[TrainingDifference, ...]

    @property
    def differs(self) -> bool:
        """True if an active difference changes log-probabilities."""
        return any(each.is_active and each.effect != "auxiliary_loss" for each in self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and `differs` as plain values for JSON."""
        return {"differs": self.differs, **asdict(self)}

    def __str__(self) -> str:
        kernel = f", attention kernel {self.attention}" if self.attention else ""
        lines = [f"{self.training} of {self.modules} modules in training mode, {' and '.join(self.dtypes)}{kernel}"]
        if not self.differs:
            lines.append("no module makes the forward pass differ from that of a sampler")
        groups: dict[tuple[bool, str, str], list[str]] = {}
        for each in self.differences:
            groups.setdefault((not each.is_active, each.effect, each.setting), []).append(each.module or "the model")
        for (is_off, effect, setting), names in sorted(groups.items()):
            state = "off now" if is_off else "active"
            lines.append(f"{state}: {effect}, {setting} in {len(names)} modules, such as {names[0]}")
        return "\n".join(lines)


def train_mode(model: Any) -> TrainMode:
    """Report which modules make a trainer's forward pass differ from a sampler's.

    It reads the modules' settings and runs nothing. Randomness that a module hides in its code is not found: compare
    two forward passes, or call `kl`. Gradient checkpointing changes nothing.

    Args:
        model: A torch module, in the mode in which the trainer computes log-probabilities.

    Raises:
        ConfigError: If it is not a torch module.
        MissingPackage: If torch is not installed.
    """
    torch = load("torch", "train_mode needs", "pip install torch")
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"model is {type_of(model)}; expected a torch.nn.Module")
    given: Any = model
    modules: list[tuple[str, Any]] = list(given.named_modules())
    config: Any = getattr(given, "config", None)
    found: list[TrainingDifference] = []
    for name, module in modules:
        is_active, bases = bool(module.training), {base.__name__ for base in type(module).__mro__}
        if bases & _BATCH_NORMS and module.track_running_stats:
            found.append(TrainingDifference(name, "batch_statistics", type(module).__name__, is_active))
        if "_DropoutNd" in bases and module.p > 0:
            found.append(TrainingDifference(name, "dropout", f"p={module.p:g}", is_active))
        if "RReLU" in bases and module.lower != module.upper:
            slopes = f"a slope from {module.lower:g} to {module.upper:g}"
            found.append(TrainingDifference(name, "random_activation", slopes, is_active))
        attributes: dict[str, Any] = module.__dict__
        for attribute, value in attributes.items():
            effect: Effect | None = next((one for part, one in _EFFECTS.items() if part in attribute.lower()), None)
            if effect is not None and type(value) in (int, float) and value > 0:
                is_on = effect in _ALWAYS or is_active
                found.append(TrainingDifference(name, effect, f"{attribute}={value:g}", is_on))
    weight: Any = getattr(config, "router_aux_loss_coef", None)
    if weight and getattr(config, "output_router_logits", False):
        found.append(TrainingDifference("", "auxiliary_loss", f"router_aux_loss_coef={weight:g}", True))
    return TrainMode(
        modules=len(modules),
        training=sum(bool(module.training) for _, module in modules),
        dtypes=tuple(sorted({str(each.dtype).removeprefix("torch.") for each in given.parameters()})),
        attention=getattr(config, "_attn_implementation", None),
        differences=tuple(found),
    )
