"""What every room may need and no model has: files, environment, progress, locks, native builds,
endpoints, cache folders."""
