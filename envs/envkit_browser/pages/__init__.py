"""Your own page in a real browser: the environment `computer-use-page-v0`."""

from envkit.registration import EnvSpec
from envkit_browser.pages.env import PageEnv
from envkit_browser.pages.source import DEMOS, PageTasks, read_rows

SPEC = EnvSpec(
    id="computer-use-page-v0",
    entry_point="envkit_browser.pages:PageEnv",
    description="Use your own web page in a real browser, by mouse and keyboard.",
)

__all__ = ["DEMOS", "SPEC", "PageEnv", "PageTasks", "read_rows"]
