"""A study opens in Optuna's dashboard."""

from __future__ import annotations

import sys
from wsgiref.util import setup_testing_defaults

import pytest

from holdfast.studies.engine.storage import Storage
from holdfast.studies.sweep.study import StudyConfig


def test_the_study_opens_in_optunas_dashboard(asked):
    dashboard = pytest.importorskip("optuna_dashboard")
    config = StudyConfig.read(asked, check=False)
    storage = Storage(config.storage)
    study = storage.open_study(config)
    storage.finish(study, storage.take(study, "x|1:1:1"), values=[0.5, -0.1])
    app = dashboard.wsgi(config.storage)
    seen: dict = {}

    def begin(status, headers, error=None) -> None:
        seen.update(status=status)

    def get(path: str) -> str:
        environ = {"PATH_INFO": path, "wsgi.errors": sys.stderr}
        setup_testing_defaults(environ)
        return b"".join(app(environ, begin)).decode()

    listed = get("/api/studies")
    assert seen["status"] == "200 OK"
    assert '"tiny"' in listed
    shown = get(f"/api/studies/{study._study_id}")
    assert seen["status"] == "200 OK"
    assert '"learn gain"' in shown
    assert "direct" in shown
