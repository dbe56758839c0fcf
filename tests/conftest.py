"""The fixtures that all tests share are in `shared_fixtures.py`, where the checks find them too."""

pytest_plugins = ["shared_fixtures", "durations", "scratch"]
