"""The papers' theories as computations: closed forms beside the iterations that reach them. numpy alone, float64."""
