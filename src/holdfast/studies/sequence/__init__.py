"""Tasks learnt one after another: what each way of training keeps of the earlier ones (Soup to
Go)."""
