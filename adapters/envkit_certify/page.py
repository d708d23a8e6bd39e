"""A certification as one HTML file without network access or scripts."""

from pathlib import Path
from typing import Final

from envkit.files import replace_file
from envkit.viewer.bundle import asset, policy_hash
from envkit.viewer.markup import safe_html
from envkit_certify.lines import CertificateLine, CertifyReport

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
content="default-src 'none'; style-src '{digest}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header class="page"><h1 dir="auto">{title}</h1><p class="muted">{subtitle}</p></header>
<main><div class="scroll"><table class="grid">
<thead><tr><th scope="col">line</th><th scope="col">verdict</th>
<th class="n" scope="col">number</th>
<th scope="col">of what, and the evidence</th></tr></thead>
<tbody>{rows}</tbody>
</table></div></main>
</body>
</html>
"""


def write_page(report: CertifyReport, path: Path) -> None:
    """Write a report as HTML, atomically.

    Raises:
        StorageError: It cannot be written.
    """
    style = asset("style.css")
    subtitle = f"{report.summary}; {report.episodes} episodes per policy, seed {report.seed}"
    page = _PAGE.format(
        digest=policy_hash(style),
        style=style,
        title=safe_html(f"Certification: {report.target}"),
        subtitle=safe_html(subtitle if report.is_complete else f"{subtitle}; interrupted"),
        rows="".join(_row(line) for line in report.lines),
    )
    replace_file(path, page.encode("utf-8", "replace"))


def _row(line: CertificateLine) -> str:
    number = "" if line.value is None else f"{line.value:.4g}"
    listed = "".join(f"<li dir='auto'>{safe_html(entry)}</li>" for entry in line.evidence)
    return (
        f"<tr><th scope='row'>{safe_html(line.name)}</th><td>{line.verdict.value}</td>"
        f"<td class='n'>{number}</td><td>{safe_html(line.detail)}"
        f"{f'<ul>{listed}</ul>' if listed else ''}</td></tr>"
    )
