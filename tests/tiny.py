"""The model and tokenizer of `holdfast.training.tiny`, under the name that tests and their worker processes use."""

from __future__ import annotations

from holdfast.training.tiny import SENTENCES, build_model, build_tokenizer

__all__ = ["SENTENCES", "build_model", "build_tokenizer"]
