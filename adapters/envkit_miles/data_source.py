"""A data source over an environment's own tasks: `--data-source-path envkit_miles.DataSource`."""

from envkit_slime import data_source


class DataSource(data_source.DataSource):
    """Like `envkit_slime.DataSource`, with miles' samples."""

    trainer = "miles"
