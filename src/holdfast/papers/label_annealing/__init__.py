"""Label annealing (Memory Retaining Finetuning): claims, the rules that judge them,
reproduction."""
