"""Chat templates with which inference servers render conversations as a renderer does."""

from ..._arguments import explain_arguments
from ._export import ExportedHistory, ExportedTemplate, export_template

__all__ = ["ExportedHistory", "ExportedTemplate", "export_template"]

explain_arguments(globals())
