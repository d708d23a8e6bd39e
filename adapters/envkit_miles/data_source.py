"""A data source over an environment's own tasks: `--data-source-path envkit_miles.DataSource`."""

import envkit_slime


class DataSource(envkit_slime.DataSource):
    """Like `envkit_slime.DataSource`, with miles' samples."""

    trainer = "miles"
