"""`envsdk export-template`: write a chat template that renders as a renderer does."""

from pathlib import Path
from typing import Annotated, cast

import typer

from ..rendering.exporting import ExportedHistory, export_template
from ._options import SPECIFICATION, TOKENIZER, renderer_from
from ._output import print_text


def export_template_(
    out: Annotated[Path, typer.Option(help="The file to write.")],
    renderer: Annotated[str, typer.Option(help=SPECIFICATION)] = "qwen3",
    tokenizer: Annotated[str, typer.Option(help=TOKENIZER)] = "embedded",
    history: Annotated[str, typer.Option(help="The history policy to express: keep or strip.")] = "keep",
) -> None:
    """Write a chat template with which a server renders prompts as a renderer does, and print the server's flags."""
    exported = export_template(renderer_from(renderer, tokenizer), cast("ExportedHistory", history))
    exported.save(out)
    print_text(f"wrote {out}, which renders {len(exported.conversations)} conversations as {renderer} does")
    print_text(f"vllm serve MODEL {' '.join(exported.vllm_flags(out))}")
    print_text(f"python -m sglang.launch_server --model-path MODEL {' '.join(exported.sglang_flags(out))}")
