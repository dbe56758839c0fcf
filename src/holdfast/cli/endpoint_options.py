"""What the commands share that ask a language model behind an endpoint: where it is, how it is asked, and where the key
comes from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar
from urllib.parse import urlsplit

from holdfast.cli.request import Request
from holdfast.config.declare import Meta

if TYPE_CHECKING:
    from holdfast.support.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """Options of an endpoint; a command names the option of the key's variable itself."""

    settings_group: ClassVar[str] = "the endpoint"

    base_url: Annotated[str, Meta(metavar="URL")]
    """The endpoint, such as http://localhost:8000/v1 or https://api.openai.com/v1."""
    workers: Annotated[int, Meta(ge=1)] = 4
    """Requests at once."""
    timeout: Annotated[float, Meta(gt=0, metavar="SECONDS")] = 120.0
    """For one attempt."""
    attempts: Annotated[int, Meta(ge=1)] = 6
    """For one request, with growing pauses between."""
    longest_wait: Annotated[float, Meta(ge=0, metavar="SECONDS")] = 120.0
    """Longest of these pauses, and of what the server asks for by Retry-After."""

    def endpoint(self, named: str | None) -> Endpoint:
        """The endpoint, with the key of the variable that was named."""
        from holdfast.support.endpoint import Endpoint

        variable, key = key_from(named, self.base_url)
        return Endpoint(
            base_url=self.base_url,
            api_key=key,
            key_variable=variable,
            workers=self.workers,
            timeout=self.timeout,
            attempts=self.attempts,
            longest_wait=self.longest_wait,
        )


def key_from(named: str | None, base_url: str) -> tuple[str, str | None]:
    """(variable, key): the variable that is named, or OpenAI's own for OpenAI's own endpoint, so that no key goes where
    it was not meant to go.

    Args:
        named: the environment variable; None: none was named.
        base_url: the endpoint.
    """
    from holdfast.support.endpoint import DEFAULT_KEY_VARIABLE

    if named is not None:
        return named, os.environ.get(named, "").strip() or None
    if urlsplit(base_url).hostname == "api.openai.com":
        return DEFAULT_KEY_VARIABLE, os.environ.get(DEFAULT_KEY_VARIABLE, "").strip() or None
    return DEFAULT_KEY_VARIABLE, None


def key_problems(named: str | None) -> list[str]:
    """A sentence where the variable that is named holds no key."""
    if named is None or os.environ.get(named, "").strip():
        return []
    state = "is not set" if named not in os.environ else "is empty"
    # somebody may have put the key itself there
    shown = named if re.fullmatch(r"[A-Z_][A-Z0-9_]*", named) else "the one given"
    return [f"expected the name of an environment variable that holds the key; {shown} {state}"]


def key_of(request: Request, base_url: str, option: str) -> tuple[str, str | None]:
    """`key_from` for a command that reads a `Request`, whose problems are added to."""
    named = request.text(option, None)
    request.problems += [f"--{option}: {problem}" for problem in key_problems(named)]
    return key_from(named, base_url)
