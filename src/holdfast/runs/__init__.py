"""A request becomes a run: configuration, folder, measuring before and after, launching, cost."""
