"""Formats of other tools: trainers' debug dumps in, Inspect logs out."""

from envkit_exchange.dump_slime import SlimeOptions, read_slime_dump
from envkit_exchange.dump_texts import read_skyrl_dump, read_trl_dump, read_verl_dump
from envkit_exchange.dumps import DumpFormat, read_dump
from envkit_exchange.inspect_log import export_inspect

__all__ = [
    "DumpFormat",
    "SlimeOptions",
    "export_inspect",
    "read_dump",
    "read_skyrl_dump",
    "read_slime_dump",
    "read_trl_dump",
    "read_verl_dump",
]
