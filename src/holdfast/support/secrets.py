"""What is secret in a request stays out of every file: keys that hold secrets, variables of the
environment that look like one, and values that a pickle leaves out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SECRET = {
    "hub_token",
    "aws_access_key_id",
    "aws_secret_access_key",
    "token",
    "use_auth_token",
    "api_key",
    "password",
}
"""Keys whose values are never written down."""
_NAME = re.compile(
    r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH|COOKIE|WEBHOOK|DSN|(^|_)PAT($|_)", re.IGNORECASE
)
_VALUE = re.compile(
    r"@|^(hf_|sk-|gh[a-z]_|github_pat_|glpat-|xox|AKIA|eyJ)|^(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+=-]{20,}$"
)
"""An address with a user in it, the beginnings of well-known tokens, long words of letters and
digits."""


def is_secret(name: str, value: Any) -> bool:
    """Whether a variable of the environment looks like a secret, by its name or by its value."""
    return bool(_NAME.search(name) or _VALUE.search(str(value)))


class Withheld(str):
    """A secret that is itself for everybody in this process, and empty in a pickle."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, ("",)

    def __copy__(self) -> Withheld:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Withheld:
        return self


def withheld(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with every secret among them, also inside mappings, as one that pickles leave
    out."""
    safe = dict(values)
    for name, value in values.items():
        if isinstance(value, str) and name in SECRET:
            safe[name] = Withheld(value)
        elif isinstance(value, dict):
            safe[name] = withheld(value)
    return safe


def without_secrets(value: Any) -> Any:
    """Plain data without the secrets in it: what is written down of a request."""
    if isinstance(value, (list, tuple)):
        return [without_secrets(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    public = {}
    for name, item in value.items():
        if name == "env" and isinstance(item, Mapping):
            public[name] = {
                key: text for key, text in item.items() if not is_secret(str(key), text)
            }
        elif name not in SECRET or isinstance(item, (Mapping, list)):
            public[name] = without_secrets(item)
    return public
