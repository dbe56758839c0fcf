"""Safetensors folders as data: reading, hashing, distances."""
