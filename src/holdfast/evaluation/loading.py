"""How models are loaded to be measured, and how those behind servers are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from holdfast.config.declare import Meta


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """How models are loaded to be measured."""

    settings_group: ClassVar[str] = "where"
    settings_section: ClassVar[str] = "loading"

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype of the weights; auto: the saved dtype."""
    device: str | None = None
    """Device, such as cpu or cuda:1 (default: the first accelerator, else the CPU)."""
    trust_remote_code: bool = False
    """Allow Python code that comes with a model."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """How models behind servers are asked (`evaluation.served`)."""

    settings_group: ClassVar[str] = "models behind a server"
    settings_section: ClassVar[str] = "server"

    tokenizer: Annotated[str | None, Meta(metavar="MODEL")] = None
    """Tokenizer of the served model: a folder or hub id (default: the folder that the server
    reports)."""
    context_length: Annotated[int | None, Meta(ge=2)] = None
    """Context length of the served model, in tokens (default: what the server reports)."""
    api_key_env: Annotated[str | None, Meta(metavar="NAME")] = None
    """Environment variable with the key (OPENAI_API_KEY for api.openai.com, else none)."""
    workers: Annotated[int, Meta(ge=1)] = 16
    """Concurrent requests."""


@dataclass(frozen=True, kw_only=True)
class ModelLoading(LoadSettings):
    """How the models of one evaluation are loaded, or reached behind a server."""

    device_map: str | None = None
    """Spread each model over several devices (see `holdfast.models.load`). None: use one device."""
    server: ServerSettings = ServerSettings()
    """Settings for models behind servers."""
