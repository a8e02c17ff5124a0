"""The default renderer of environments whose messages have images, for use without a model.

It is our own chat template on the embedded vocabulary, with the image processor of Qwen3-VL, so that an environment
with images can be made, checked and played offline. For a real model, give its tokenizer.
"""

from collections.abc import Mapping
from typing import Any

TEMPLATE = """\
{%- macro written(content) %}
{%- if content is string %}{{ content }}
{%- else %}
{%- for part in content %}
{%- if part.type == 'text' %}{{ part.text }}
{%- else %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- endmacro %}
{%- set has_system = messages[0].role == 'system' %}
{%- if tools or has_system %}
{{- '<|im_start|>system\\n' }}
{%- if has_system %}{{ written(messages[0].content) }}{% endif %}
{%- if tools %}
{{- '\\n\\n' if has_system }}
{{- 'You can call these tools:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools>\\n\\nCall a tool with a JSON object:\\n<tool_call>\\n' }}
{{- '{"name": "the tool", "arguments": {"parameter": "value"}}\\n</tool_call>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- written(message.content or '') }}
{%- for call in message.tool_calls or [] %}
{{- '\\n' if message.content or not loop.first }}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user' if loop.first or messages[loop.index0 - 1].role != 'tool' }}
{{- '\\n<tool_response>\\n' + written(message.content) + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' if loop.last or messages[loop.index0 + 1].role != 'tool' }}
{%- elif not (loop.first and has_system) %}
{{- '<|im_start|>' + message.role + '\\n' + written(message.content) + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""ChatML with tools and images: one placeholder for each image, which the renderer replaces with a run of them."""

EMBEDDED_VISION: Mapping[str, Any] = {
    "name": "fixed_base",
    "template": TEMPLATE,
    "stop": ["<|im_end|>"],
    "processor": {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16, "merge_size": 2},
}
"""The renderer of an environment with `shows_images` that is made with neither `renderer=` nor a model's tokenizer. An
image has a placeholder for every 32 x 32 pixels."""
