"""The pages of the documentation, as tests read them."""

import re
from pathlib import Path


def python_blocks(page: Path) -> list[str]:
    """The Python examples of a page, in order."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
