"""What the commands share that ask a language model behind an endpoint: where the key comes from."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

from holdfast.cli.request import Request
from holdfast.support.endpoint import DEFAULT_KEY_VARIABLE


def key_of(request: Request, base_url: str, option: str) -> tuple[str, str | None]:
    """(variable, key): the variable that is named, or OpenAI's own for OpenAI's own endpoint, so that no key goes where
    it was not meant to go.

    Args:
        request: its problems are added to where the variable that is named holds no key.
        base_url: the endpoint.
        option: that names the variable, without dashes.
    """
    named = request.text(option, None)
    if named is not None:
        key = os.environ.get(named, "").strip()
        if not key:
            state = "is not set" if named not in os.environ else "is empty"
            shown = (
                named if re.fullmatch(r"[A-Z_][A-Z0-9_]*", named) else "the one given"
            )  # somebody may have put the key itself there
            request.problems.append(
                f"--{option}: expected the name of an environment variable that holds the key; {shown} {state}"
            )
        return named, key or None
    if urlsplit(base_url).hostname == "api.openai.com":
        return DEFAULT_KEY_VARIABLE, os.environ.get(DEFAULT_KEY_VARIABLE, "").strip() or None
    return DEFAULT_KEY_VARIABLE, None
