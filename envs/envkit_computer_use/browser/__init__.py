"""A real browser, driven over the DevTools protocol: pages, input, screenshots, faults, a pool."""

from envkit_computer_use.browser.binary import find_browser
from envkit_computer_use.browser.browser import Browser
from envkit_computer_use.browser.events import Dialog, PageEvent, PageEvents
from envkit_computer_use.browser.page import Page, PageOptions
from envkit_computer_use.browser.performing import Hands
from envkit_computer_use.browser.pool import BrowserPool, PoolOptions, join_pool, leave_pool
from envkit_computer_use.browser.site import ORIGIN, Site
from envkit_computer_use.browser.trouble import BrowserFault, Trouble

__all__ = [
    "ORIGIN",
    "Browser",
    "BrowserFault",
    "BrowserPool",
    "Dialog",
    "Hands",
    "Page",
    "PageEvent",
    "PageEvents",
    "PageOptions",
    "PoolOptions",
    "Site",
    "Trouble",
    "find_browser",
    "join_pool",
    "leave_pool",
]
