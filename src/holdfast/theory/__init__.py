"""The papers' theories as computations: closed forms beside the iterations that reach them. Only numpy, in float64."""
