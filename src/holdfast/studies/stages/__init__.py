"""The stages study (paper 001): has a fine-tuned model forgotten, or does it only not show what it knows?"""
