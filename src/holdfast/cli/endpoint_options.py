"""What commands share that ask a language model behind an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from holdfast.cli.request import Request
from holdfast.config.declare import Meta
from holdfast.support.endpoint import find_key


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """Where the model is, and how often it is asked again; the fields are those of `support.endpoint.Endpoint`."""

    settings_group: ClassVar[str] = "the endpoint"

    base_url: Annotated[str, Meta(metavar="URL")]
    """Its address, such as http://localhost:8000/v1 or https://api.openai.com/v1."""
    workers: Annotated[int, Meta(ge=1)] = 4
    """Requests at once."""
    timeout: Annotated[float, Meta(gt=0, metavar="SECONDS")] = 120.0
    """For one attempt, all in all."""
    attempts: Annotated[int, Meta(ge=1)] = 6
    """For one request, with growing pauses between; then it has failed."""
    longest_wait: Annotated[float, Meta(ge=0, metavar="SECONDS")] = 120.0
    """Longest of these pauses; also of what the server asks for by Retry-After."""


def key_of(request: Request, base_url: str, option: str) -> tuple[str, str | None]:
    """(variable, key), see `holdfast.support.endpoint.find_key`; what is wrong is added to the request's problems."""
    variable, key, problem = find_key(base_url, request.text(option, None))
    if problem:
        request.problems.append(f"--{option}: {problem}")
    return variable, key
