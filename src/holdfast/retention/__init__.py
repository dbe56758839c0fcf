"""How memory is kept while training: one file a method (see `method` for the protocol, `registry`
for the list)."""
