"""Photos that customers send: a receipt and a damaged item, drawn, each with a text twin."""

import random
from typing import Final

from PIL import Image as PilImage
from PIL import ImageDraw

from envkit.fonts import sans
from envkit.images import Image
from envkit_dialogue.scenario import Request
from envkit_dialogue.shop import Shop, money

_SIZE: Final = (448, 336)
_INK: Final = (35, 35, 40)
_PAPER: Final = (250, 249, 243)
_TABLE: Final = (176, 148, 118)
_FILLS: Final = {
    "black": (45, 45, 48),
    "white": (236, 236, 236),
    "green": (72, 140, 84),
    "blue": (66, 104, 176),
    "red": (186, 62, 58),
    "grey": (134, 136, 140),
    "oak": (200, 164, 110),
    "walnut": (112, 78, 56),
    "pine": (222, 190, 138),
    "bamboo": (206, 196, 130),
}
_CLOTH: Final = (104, 128, 152)


def draw_receipt(shop: Shop, request: Request) -> Image:
    """Return the photo of the receipt of a request's order."""
    picture = PilImage.new("RGB", _SIZE, _TABLE)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((64, 12, 384, 324), fill=_PAPER)
    for place, (left, right) in enumerate(_receipt(shop, request)):
        y = 28 + 36 * place
        draw.text((84, y), left, fill=_INK, font=sans(20))
        draw.text((364, y), right, fill=_INK, font=sans(20), anchor="ra")
    return Image.from_pil(picture)


def receipt_text(shop: Shop, request: Request) -> str:
    """Return in words what the photo of the receipt shows."""
    lines = (" ".join(filter(None, line)) for line in _receipt(shop, request))
    return "Photo of a receipt: " + "; ".join(lines) + "."


def draw_damage(shop: Shop, request: Request) -> Image:
    """Return the photo of a damaged item with the code on its label."""
    rng = random.Random(f"dialogue photo {request.photo_code}")
    option = shop.item(request.item).option
    picture = PilImage.new("RGB", _SIZE, _TABLE)
    draw = ImageDraw.Draw(picture)
    fill = _FILLS.get(option, _CLOTH)
    draw.rounded_rectangle((40, 40, 408, 220), radius=28, fill=fill, outline=_INK, width=3)
    mark = (20, 20, 20) if sum(fill) > 300 else (240, 240, 240)
    x, y = rng.randint(90, 300), rng.randint(80, 160)
    match request.damage:
        case "stain":
            draw.ellipse((x, y, x + 70, y + 48), fill=(120, 84, 30))
        case "dent":
            draw.arc((x, y - 20, x + 80, y + 60), 20, 160, fill=mark, width=6)
        case "scratch":
            for step in range(3):
                draw.line((x, y + 9 * step, x + 80, y - 16 + 9 * step), fill=mark, width=2)
        case _:
            points = [(x + 16 * step, y + rng.randint(-14, 14)) for step in range(6)]
            draw.line(points, fill=mark, width=5)
    draw.rectangle((124, 244, 324, 316), fill=_PAPER, outline=_INK, width=2)
    draw.text((224, 262), "LABEL", fill=_INK, font=sans(16), anchor="mm")
    draw.text((224, 292), request.photo_code, fill=_INK, font=sans(30), anchor="mm")
    return Image.from_pil(picture)


def damage_text(shop: Shop, request: Request) -> str:
    """Return in words what the photo of the damaged item shows."""
    item = shop.item(request.item)
    return (
        f"Photo of a {item.product}, {item.option}, with a {request.damage}. "
        f"The label reads {request.photo_code}."
    )


def _receipt(shop: Shop, request: Request) -> list[tuple[str, str]]:
    order = shop.order(request.order)
    items = [shop.item(item_id) for item_id in order.items]
    return [
        ("RECEIPT", ""),
        ("Order", order.order_id),
        ("Date", order.ordered_on.isoformat()),
        *((item.product, money(item.price)) for item in items),
        ("Total", money(shop.total(order))),
    ]
