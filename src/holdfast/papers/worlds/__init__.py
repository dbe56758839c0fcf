"""What is at hand offline: the embedded corpus, a small world of facts, small base models and what
is tuned of them."""
