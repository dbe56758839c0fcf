"""How claims are judged: rules, the registry of papers, reproductions, outcomes and their page."""
