"""Log-likelihoods and replies on text: perplexity, options, classes, answer positions,
instructions."""
