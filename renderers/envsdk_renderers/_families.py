"""The table of the model families that are aliases of `fixed_base`; `docs/families.md` describes each of them."""

from collections.abc import Mapping
from typing import Any

from ._aliases import FLAG, Alias
from ._deepseek_r1 import DeepSeekR1
from ._llama3 import Llama3

_DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
_DEEPSEEK_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁output▁begin｜>")
_DEEPSEEK_TOKENS: Mapping[str, Any] = {"special_tokens": {"bos_token": _DEEPSEEK[0], "eos_token": _DEEPSEEK[1]}}
_KIMI = (
    *("<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_call_begin|>"),
    *(
        "<|tool_calls_section_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
)
_LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_MISTRAL = ("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]")
_GLM = ("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<tool_call>", "<arg_key>")
_CHATML = ("<|im_start|>", "<|im_end|>")
_QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
_QWEN = (*_CHATML, "<|endoftext|>", "<tool_call>", "</tool_call>")

DEEPSEEK_V3 = Alias(
    name="deepseek-v3",
    models="DeepSeek-V3 and V3-0324",
    controls=(*_DEEPSEEK, *_DEEPSEEK_CALLS),
    templates=("3b8267e54b67", "8a66358598ee", "563b1ce7d61d", "eedfb4650069"),
    **_DEEPSEEK_TOKENS,
)
DEEPSEEK_V3_1 = Alias(
    name="deepseek-v3.1",
    models="DeepSeek-V3.1",
    controls=(*_DEEPSEEK, *_DEEPSEEK_CALLS, "<think>", "</think>"),
    templates=("d9f5f351b276", "45690185067e", "f5c1dcdcf043", "a15911cb5598", "b22a3f6dbd50", "497e31426df7"),
    switches={"thinking": FLAG, "enable_thinking": FLAG},
    **_DEEPSEEK_TOKENS,
)
DEEPSEEK_R1 = Alias(
    name="deepseek-r1",
    models="DeepSeek-R1, R1-0528 and the distilled models",
    controls=_DEEPSEEK,
    templates=("197ecb0f6315", "fe055ac311d9"),
    without_tools=DeepSeekR1,
    **_DEEPSEEK_TOKENS,
)
DEEPSEEK_V4 = Alias(
    name="deepseek-v4",
    models="DeepSeek-V3.2, V4 and V4-Flash",
    controls=(*_DEEPSEEK, "｜DSML｜", "<think>", "</think>"),
    templates=("53b9683b3653", "f8b442fab67e", "8b6f730567ea", "72aab1788857"),
    switches={
        "thinking": FLAG,
        "enable_thinking": FLAG,
        "drop_thinking": FLAG,
        "reasoning_effort": ("high", "max"),
    },
    **_DEEPSEEK_TOKENS,
)
KIMI_K2 = Alias(
    name="kimi-k2",
    models="Kimi-K2-Instruct",
    controls=_KIMI,
    templates=("aab20feb9bc6", "02e91795d227", "4027d478e682"),
    special_tokens={"eos_token": "<|im_end|>"},
)
KIMI_K2_5 = Alias(
    name="kimi-k2.5",
    models="Kimi-K2.5, without images",
    controls=(*_KIMI, "<think>", "</think>"),
    templates=("7c91e4b3578b",),
    switches={"thinking": FLAG},
    special_tokens={"eos_token": "<|im_end|>"},
)
MINIMAX_M2 = Alias(
    name="minimax-m2",
    models="MiniMax-M2, M2.1, M2.5 and M2.7",
    controls=("]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
    templates=("a3e05b110e2d", "55beae30a60d", "2acb65a5f306", "e604aa54631c"),
    switches={"model_identity": str},
    special_tokens={"bos_token": "]~!b[", "eos_token": "[e~["},
)
LLAMA_3 = Alias(
    name="llama-3",
    models="Llama 3, 3.1, 3.2 and 3.3",
    controls=_LLAMA,
    templates=("93c0e9aa3629", "d82792f95932", "7cde5c44cbbf", "191026db315d", "a58c27bec3b2", "eb0501a5a0b0"),
    switches={"date_string": str, "tools_in_user_message": FLAG},
    special_tokens={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    without_tools=Llama3,
)
LLAMA_4 = Alias(
    name="llama-4",
    models="Llama 4 Scout and Maverick, without images",
    controls=("<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>"),
    templates=("b926f153542c", "579516553b35", "fb76136a36a8"),
    switches={"tools_in_user_message": FLAG},
    special_tokens={"bos_token": "<|begin_of_text|>", "eos_token": "<|eot|>"},
)
GEMMA_3 = Alias(
    name="gemma-3",
    models="Gemma 3, without tools",
    controls=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    templates=("8d9e3a3c114f", "85f071443875", "85be955460e4"),
    special_tokens={"bos_token": "<bos>", "eos_token": "<eos>"},
    stop=("<end_of_turn>",),
)
GEMMA_4 = Alias(
    name="gemma-4",
    models="Gemma 4, without audio",
    controls=(
        "<bos>",
        "<|turn>",
        "<turn|>",
        "<|channel>",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|tool_response>",
        "<tool_response|>",
        '<|"|>',
    ),
    templates=(
        "33204f1acb5b",
        "55572b8d3c83",
        "781d10940fbc",
        "2f1b4d75d067",
        "603a42db292c",
        "1d35a24a2a63",
        "df900edd2fce",
        "6611d0818fc8",
        "df17f9c510b8",
        "75d660071586",
    ),
    switches={"enable_thinking": FLAG, "preserve_thinking": FLAG},
    special_tokens={"bos_token": "<bos>", "eos_token": "<turn|>"},
)
MISTRAL_3 = Alias(
    name="mistral-3",
    models="Mistral Small 3.2, Ministral 3, Magistral and Devstral, without images",
    controls=("<s>", "</s>", *_MISTRAL),
    templates=("d990bccdaaa2", "31b50c917746", "039a4710e2aa"),
    special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
)
NEMOTRON_3 = Alias(
    name="nemotron-3",
    models="Nemotron 3 Nano, Super and Ultra, and Nemotron 3.5 Lightning",
    controls=(*_CHATML, "<think>", "</think>"),
    templates=("43a92aacc2e1", "3b74d76d8b90", "82753bef5ced", "58933db77d30"),
    switches={
        "enable_thinking": FLAG,
        "truncate_history_thinking": FLAG,
        "low_effort": FLAG,
        "medium_effort": FLAG,
    },
    special_tokens={"bos_token": "<s>", "eos_token": "<|im_end|>"},
)
GRANITE_4 = Alias(
    name="granite-4",
    models="Granite 4.0 and 4.1",
    controls=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    templates=("9524df67b77a", "fed2756d2d24"),
    special_tokens={"eos_token": "<|end_of_text|>"},
)
SEED_OSS = Alias(
    name="seed-oss",
    models="Seed-OSS-36B",
    controls=("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
    templates=("3f9e0dc4adeb", "fbcca444c9d1"),
    switches={"thinking_budget": int},
    special_tokens={"bos_token": "<seed:bos>", "eos_token": "<seed:eos>"},
)
HUNYUAN = Alias(
    name="hunyuan",
    models="Hunyuan-A13B",
    controls=("<|startoftext|>", "<|extra_0|>", "<|extra_4|>", "<|eos|>"),
    templates=("c9635ab946bc",),
    switches={"enable_thinking": FLAG},
    special_tokens={"bos_token": "<|startoftext|>", "eos_token": "<|eos|>"},
)
HY_3 = Alias(
    name="hy3",
    models="Hy3 (Hunyuan 3)",
    controls=("<｜hy_eos:opensource｜>", "<｜hy_User:opensource｜>", "<｜hy_Assistant:opensource｜>"),
    templates=("84437b974642",),
    switches={"reasoning_effort": ("no_think", "low", "high"), "preserved_thinking": FLAG},
    special_tokens={"eos_token": "<｜hy_eos:opensource｜>"},
)
PHI_4 = Alias(
    name="phi-4",
    models="Phi-4 and Phi-4-reasoning, without tools",
    controls=(*_CHATML, "<|im_sep|>", "<|endoftext|>"),
    templates=("a41fb8727c4f", "5a4c7c0b12bd", "7a5d9e5b666f", "fe4120415a38"),
    special_tokens={"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"},
)
SMOLLM2 = Alias(
    name="smollm2",
    models="SmolLM2, without tools",
    controls=(*_CHATML, "<|endoftext|>"),
    templates=("872be49dbb63",),
    special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
)
SMOLLM3 = Alias(
    name="smollm3",
    models="SmolLM3, without tools",
    controls=_CHATML,
    templates=("cbc1d50f777e",),
    switches={"enable_thinking": FLAG},
    special_tokens={"eos_token": "<|im_end|>"},
)
OLMO_3 = Alias(
    name="olmo-3",
    models="Olmo 3 and 3.1",
    controls=(*_CHATML, "<|endoftext|>"),
    templates=("597a300d5596", "eba6e269f669"),
    special_tokens={"eos_token": "<|im_end|>"},
)
GLM_4_6 = Alias(
    name="glm-4.6",
    models="GLM-4.6",
    controls=_GLM,
    templates=("e6e2ddfb13f8", "4a61b68faee7", "bbd2a3602822"),
    switches={"enable_thinking": FLAG},
    special_tokens={"eos_token": "<|endoftext|>"},
)
GLM_5 = Alias(
    name="glm-5",
    models="GLM-4.7, GLM-5, 5.1, 5.2 and 5.3",
    controls=_GLM,
    templates=("d63ad536c3c8", "03b1bbff2033", "dedbb4dae748", "a0006a72544a", "9bbf62473eb6"),
    switches={"enable_thinking": FLAG, "clear_thinking": FLAG, "reasoning_effort": ("low", "high", "max")},
    special_tokens={"eos_token": "<|endoftext|>"},
)
QWEN3_CODER = Alias(
    name="qwen3-coder",
    models="Qwen3-Coder",
    controls=_QWEN,
    templates=("eae48a330793", "2902a6768a1b", "ceede2b04032", "32bf2564d224"),
    special_tokens={"eos_token": "<|im_end|>"},
)
QWEN2_5_VL = Alias(
    name="qwen2.5-vl",
    models="Qwen2.5-VL, without tools",
    controls=(*_CHATML, "<|endoftext|>", *_QWEN_VISION),
    templates=("a0bc6f6fc7a2",),
    special_tokens={"eos_token": "<|im_end|>"},
)
QWEN3_VL = Alias(
    name="qwen3-vl",
    models="Qwen3-VL Instruct and Thinking",
    controls=_QWEN,
    templates=("9d879ef91075", "84ed326ccec3"),
    special_tokens={"eos_token": "<|im_end|>"},
)

ALIASES: Mapping[str, Alias] = {alias.name: alias for alias in [*globals().values()] if isinstance(alias, Alias)}
"""All aliases of this module by their names."""
