"""The checks use the fixtures of the tests."""

pytest_plugins = ["shared_fixtures", "durations"]
