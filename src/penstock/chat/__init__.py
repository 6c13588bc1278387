"""Prompts: records to tokens and labels, through text templates or chat templates."""

from penstock.chat.chat_template import ChatTemplate
from penstock.chat.engine import PromptEngine
from penstock.chat.text_template import TextTemplate

__all__ = ["ChatTemplate", "PromptEngine", "TextTemplate"]
