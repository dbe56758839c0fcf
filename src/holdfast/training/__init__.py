"""The only place that knows Trainer, TRL, PEFT and accelerate."""
