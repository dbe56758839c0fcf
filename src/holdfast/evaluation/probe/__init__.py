"""How fragile a checkpoint is: what noise, few bits, pruning and steps in other directions cost it
(Overtrained Language Models)."""
