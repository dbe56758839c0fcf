"""The five papers: claims, theories and toy worlds. Nothing outside imports this except cli/, by name."""
