"""What the adapters of several trainers share: their engine's client, rows, settings and tasks.

A trainer's own adapter then reads the trainer's configuration and renames the fields of a row.
"""
