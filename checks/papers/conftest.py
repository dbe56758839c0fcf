"""A base, an instruct model that was tuned from it, and some dated news."""

from update_fixtures import news, pair, request_of, training

__all__ = ["news", "pair", "request_of", "training"]
