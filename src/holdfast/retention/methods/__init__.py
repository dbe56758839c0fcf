"""The retention methods, one file a method."""
