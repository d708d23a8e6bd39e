"""Show whether an environment is fit for training: one report with a verdict for each line."""
