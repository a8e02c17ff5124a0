"""Chat templates with which inference servers render conversations as a renderer does."""

from .export import ExportedHistory, ExportedTemplate, export_template

__all__ = ["ExportedHistory", "ExportedTemplate", "export_template"]
