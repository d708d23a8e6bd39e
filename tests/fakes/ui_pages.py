"""What tests ask of a page of the viewer."""

import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    from playwright.sync_api import Page

T = TypeVar("T")
Open = Callable[..., "Page"]
Scheme = Literal["light", "dark"]


_WAIT_S: Final = 60.0
_PAUSE_MS: Final = 20
_IS_COMPLETE: Final = """async () => {
  await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
  return document.querySelector("main")?.className && !document.querySelector("[aria-busy=true]");
}"""
"""Whether a page is complete, once what was set off before has begun."""


def until(page: "Page", condition: str, value: Any = None) -> None:
    """Wait for a condition; `wait_for_function` would need a policy that lets text run as code."""
    end = time.monotonic() + _WAIT_S
    while time.monotonic() < end:
        if page.evaluate(condition, value):
            return
        page.wait_for_timeout(_PAUSE_MS)
    raise AssertionError(condition)


def eventually(read: Callable[[], T], expected: T) -> None:
    """Wait until what is read is what is expected."""
    end = time.monotonic() + _WAIT_S
    while (found := read()) != expected and time.monotonic() < end:
        time.sleep(_PAUSE_MS / 1000)
    assert found == expected


def settled(page: "Page") -> None:
    """Wait until the page has fetched and drawn everything that its address shows."""
    until(page, _IS_COMPLETE)


def go(page: "Page", place: str) -> None:
    """Go to another place of the page, and wait until it is complete."""
    page.evaluate(
        """place => new Promise(done => {
            addEventListener("hashchange", done, { once: true });
            history.replaceState(null, "", "#/-");  // the same place is drawn again, too
            location.hash = place;
        })""",
        place,
    )
    settled(page)


def in_address(page: "Page", part: str) -> None:
    """Wait until the address has a part."""
    until(page, "part => location.href.includes(part)", part)


def overflow(page: "Page") -> int:
    return page.evaluate("document.documentElement.scrollWidth - innerWidth")


def axe_faults(
    page: "Page", where: str = "html", *, schemes: Sequence[Scheme] = ()
) -> list[tuple[str, list[str]]]:
    """Return the rules of axe-core that a part of the page breaks, with some of the elements.

    The page's context needs `bypass_csp`.

    Args:
        page: It is left in the last of the schemes.
        where: Selects the part.
        schemes: Colour schemes to look at, instead of the present one. All rules are tried in the
            first, and those about colours in the others.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found = list[tuple[str, list[str]]]()
    for number, scheme in enumerate(schemes or [None]):
        if scheme is not None:
            page.emulate_media(color_scheme=scheme)
        options = {"runOnly": _ABOUT_COLOURS} if number else {}
        violations = page.evaluate(_AXE, [where, options])
        found += [(one["id"], [n["html"][:90] for n in one["nodes"][:3]]) for one in violations]
    return found


_ABOUT_COLOURS: Final = ["color-contrast", "link-in-text-block"]
_AXE: Final = "([where, options]) => axe.run(where, options).then(one => one.violations)"
_STOPS = """() => {
  const names = "a[href], button, input, select, textarea, summary, [tabindex='0']";
  window.ring = one => { const s = getComputedStyle(one);
    return [s.outlineStyle, s.outlineWidth, s.outlineColor, s.boxShadow].join(" "); };
  const scope = document.querySelector("dialog[open]") ?? document;
  window.stops = [...scope.querySelectorAll(names)].filter(one => !one.disabled
    && one.checkVisibility({ checkVisibilityCSS: true }) && !one.classList.contains("skip"));
  window.rings = new Map(stops.map(one => [one, ring(one)]));
}"""
_REACHED = """() => {
  const one = document.activeElement, box = one.getBoundingClientRect(), rings = window.rings;
  if (!rings.has(one)) return null;
  const isRinged = rings.get(one) !== ring(one);
  rings.delete(one);
  const isIn = (x, y) => { const top = document.elementFromPoint(x, y);
    return one.contains(top) || top?.contains(one) || (one.closest("label")?.contains(top)); };
  const at = k => [box.left + box.width * k, Math.min(box.top + 8, box.top + box.height / 2)];
  const isSeen = [.1, .5, .9].some(k => isIn(...at(k)));
  return { html: one.outerHTML.slice(0, 100), isRinged, isSeen };
}"""


def walk_by_tab(page: "Page") -> list[str]:
    """Press Tab through a page; return the elements missed, without a ring, or covered."""
    page.evaluate("document.activeElement.blur()")
    page.evaluate(_STOPS)
    faults, idle = list[str](), 0
    while idle < 30 and page.evaluate("rings.size"):
        page.keyboard.press("Tab")
        reached = page.evaluate(_REACHED)
        idle = 0 if reached else idle + 1
        if reached and not reached["isRinged"]:
            faults.append(f"no ring: {reached['html']}")
        if reached and not reached["isSeen"]:
            faults.append(f"covered: {reached['html']}")
    missed = page.evaluate("[...rings.keys()].map(one => one.outerHTML.slice(0, 100))")
    return [*faults, *(f"missed: {html}" for html in missed)]
