"""A real browser: its driver, MiniWoB++, and any local page as an environment."""
