"""The stages study (Pattern Shifting or Knowledge Losing): has a fine-tuned model forgotten, or
does it only not show what it knows?"""
