"""Which of two answers a language model prefers."""
