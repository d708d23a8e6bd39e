"""jsonschema's import without its grammar: the same verdicts, and the grammar only when needed."""

import json

import pytest
from fakes.needs import packages
from fakes.processes import run_python

IRIS = ["http://example.org/\u00fc", "http://[", "a b", "\u00fc", "//", ""]
OURS = "from envkit.json_schema import jsonschema; library = jsonschema()"
PLAIN = "import jsonschema as library"
VERDICTS = f"""
import json
checker = library.FormatChecker()
def valid(kind, text):
    validator = library.Draft202012Validator({{"format": kind}}, format_checker=checker)
    return [error.message for error in validator.iter_errors(text)]
print(json.dumps([valid(kind, text) for kind in sorted(checker.checkers) for text in {IRIS!r}]))
"""
TOOL = """
import sys
from envkit.tools import ToolSpec
spec = ToolSpec(name="go", description="Go.", parameters={"properties": {"to": {"enum": ["a"]}}})
print(spec.validate({"to": "b"}))
print("lark" in sys.modules, "rfc3987_syntax" in sys.modules)
"""


@pytest.mark.slow  # the plain import takes five seconds
def test_formats_get_the_verdicts_of_a_plain_import() -> None:
    packages("rfc3987_syntax").require()
    ours, plain = (json.loads(run_python("-c", code + VERDICTS)) for code in (OURS, PLAIN))
    assert ours == plain
    assert any(ours)


def test_tool_calls_are_validated_without_the_grammar() -> None:
    said, imported = run_python("-c", TOOL).splitlines()
    assert "'b' is not one of ['a']" in said
    assert imported == "False False"
