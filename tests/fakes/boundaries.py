"""Numbers at a limit, where an error by one shows."""

from hypothesis import strategies as st


def at_limit(limit: int, *, least: int = 0) -> st.SearchStrategy[int]:
    """Draw 0, `limit` - 1, `limit` or `limit` + 1, as far as they are at least `least`.

    A uniform integer rarely equals a limit, so a `<` in place of a `<=` goes unnoticed.
    """
    values = sorted({value for value in (0, limit - 1, limit, limit + 1) if value >= least})
    return st.sampled_from(values)
