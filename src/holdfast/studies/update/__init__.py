"""An update (Balancing Continuous Pre-Training): continue the base on new text, add what
instruction tuning had changed, measure all of them."""
