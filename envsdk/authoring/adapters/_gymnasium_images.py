"""An environment that plays any Gymnasium environment with discrete actions by its rendered frames."""

from typing import Any, ClassVar

from ...errors import ConfigError, EnvsdkError
from ...messages import ImagePart, Message
from .._env import EnvConfig
from ._gymnasium_text import GymnasiumConfig, GymnasiumText, created


class GymnasiumImages(GymnasiumText):
    """Play a Gymnasium environment: see its frames (`render_mode="rgb_array"`), and answer with an action.

    Exercises: the skills that the Gymnasium environment needs, in pictures. Reward: `game`, the environment's own
    reward. A reply ends with its action. A reply that does not end with an action changes nothing, and the model is
    asked again.

    Raises:
        ConfigError: If the environment cannot be created or does not render frames.
    """

    Config: ClassVar[type[EnvConfig]] = GymnasiumConfig
    shows_images: ClassVar[bool] = True

    def _made(self) -> tuple[Any, bool]:
        config: GymnasiumConfig = self.config
        game = created(config)
        modes = game.metadata.get("render_modes", ())
        game.close()
        if "rgb_array" not in modes:
            raise ConfigError(
                f"{config.game} does not render frames: its render modes are {', '.join(modes) or 'none'}; expected "
                "rgb_array. GymnasiumText shows it as text"
            )
        return created(config, render_mode="rgb_array"), True

    def _seen(self, observation: Any) -> Message:
        """Return the message that shows the frame."""
        config: GymnasiumConfig = self.config
        try:
            frame: Any = self._game.render()
        except Exception as error:  # such as the package that draws
            raise ConfigError(
                f"{config.game} cannot render a frame: {error}. Games that gymnasium draws with pygame need "
                "pip install pygame"
            ) from error
        try:
            return Message.from_openai({"role": "user", "content": [ImagePart(frame)]})
        except EnvsdkError as error:
            error.add_note(f"It is the frame of {config.game}.")
            raise
