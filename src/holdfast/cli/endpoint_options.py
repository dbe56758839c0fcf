"""What commands share that ask a language model behind an endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from holdfast.config.declare import Meta, settings_of

if TYPE_CHECKING:
    from holdfast.support.endpoint import Endpoint


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """Where the model is, and how often it is asked again; a command names the option of the key's variable itself."""

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

    def endpoint(self, variable: str | None) -> Endpoint:
        """The endpoint, with the key of the environment variable that was named (see `find_key`)."""
        from holdfast.support.endpoint import Endpoint, find_key

        name, key, _ = find_key(self.base_url, variable)
        shared = {s.name: getattr(self, s.name) for s in settings_of(EndpointSettings)}
        return Endpoint(api_key=key, key_variable=name, **shared)
