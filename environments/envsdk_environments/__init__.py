"""The environments that come with envsdk. Importing this registers them; their modules load when they are used."""

from envsdk import register_env

register_env("envsdk/Calculator-v0", "envsdk_environments.calculator:Calculator")
register_env("envsdk/Delegate-v0", "envsdk_environments.delegate:Delegate")
register_env("envsdk/GuessNumber-v0", "envsdk_environments.guess_number:GuessNumber")
register_env("envsdk/KuhnPoker-v0", "envsdk_environments.kuhn_poker:KuhnPoker")
register_env("envsdk/MathChat-v0", "envsdk_environments.math_chat:MathChat")
register_env("envsdk/SearchInline-v0", "envsdk_environments.search_inline:SearchInline")
