"""The stages of forgetting: the claims of the paper and their reproduction."""
