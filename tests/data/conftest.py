"""Tests of holdfast.data keep their caches to themselves and touch no network."""

import datasets
import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("hf-cache")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return folder
