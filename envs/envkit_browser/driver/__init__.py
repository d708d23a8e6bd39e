"""A real browser, driven over the DevTools protocol: pages, input, screenshots, faults, a pool."""

from envkit_browser.driver.binary import find_browser
from envkit_browser.driver.browser import Browser
from envkit_browser.driver.page import Dialog, Page, PageEvent, PageEvents, PageOptions
from envkit_browser.driver.performing import PageInput
from envkit_browser.driver.pool import BrowserPool, PoolOptions, join_pool, leave_pool
from envkit_browser.driver.site import ORIGIN, Site
from envkit_browser.driver.trouble import BrowserFault, Trouble

__all__ = [
    "ORIGIN",
    "Browser",
    "BrowserFault",
    "BrowserPool",
    "Dialog",
    "Page",
    "PageEvent",
    "PageEvents",
    "PageInput",
    "PageOptions",
    "PoolOptions",
    "Site",
    "Trouble",
    "find_browser",
    "join_pool",
    "leave_pool",
]
