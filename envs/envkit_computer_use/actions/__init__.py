"""Actions: the canonical one and how each model family writes it."""
