"""Print the last text of opencode's events, or fail with its error; the texts before are notes.

Usage: `last_text.py FILE`.
"""

import json
import sys
from pathlib import Path

events = [json.loads(line) for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]
errors = [event for event in events if event["type"] == "error"]
if errors:
    raise SystemExit(json.dumps(errors[-1]["error"]))
texts = [event["part"]["text"] for event in events if event["type"] == "text"]
print(texts[-1] if texts else "")  # noqa: T201
