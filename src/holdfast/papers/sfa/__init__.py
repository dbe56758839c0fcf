"""Sequential fine-tuning with averaging (Soup to Go): its claims and their reproduction."""
