"""holdfast: fine-tune open-weight language models without losing what they know; measure what was lost; understand why."""

__version__ = "0.1.0"
