"""What a modification costs the checkpoints of a ladder, and whether retention changes it
(Overtrained Language Models)."""
