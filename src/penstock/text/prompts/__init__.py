"""Prompts: records to tokens and labels, through text templates or chat templates."""

from penstock.text.prompts.chat import ChatTemplate
from penstock.text.prompts.engine import PromptEngine
from penstock.text.prompts.templates import TextTemplate

__all__ = ["ChatTemplate", "PromptEngine", "TextTemplate"]
