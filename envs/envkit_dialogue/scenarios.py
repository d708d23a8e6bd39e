"""Procedural scenarios: an endless task source with four levels."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, get_args

from envkit.seeds import derive_seed
from envkit.tasks import Task
from envkit_dialogue import goods
from envkit_dialogue.desk import CancelReason, RefundTo
from envkit_dialogue.rules import forbids
from envkit_dialogue.scenario import (
    OrderBy,
    Request,
    RequestKind,
    Scenario,
    Temper,
    Topic,
)
from envkit_dialogue.shop import Order, Shop, Status, draw_address, make_shop, money

LEVELS: Final = (1, 2, 3, 4)
_SHOPS: Final = 2**31
_TRIES: Final = 200
_WRITES: Final = (
    RequestKind.CANCEL,
    RequestKind.ADDRESS,
    RequestKind.EXCHANGE,
    RequestKind.RETURN,
)
_RECENT, _OLD, _PROCESSING, _SHIPPED = "recent", "old", "processing", "shipped"
_ALLOWED: Final = {
    RequestKind.CANCEL: (_PROCESSING,),
    RequestKind.ADDRESS: (_PROCESSING,),
    RequestKind.EXCHANGE: (_PROCESSING, _RECENT),
    RequestKind.RETURN: (_RECENT,),
}
_FORBIDDEN: Final = {
    RequestKind.CANCEL: (_SHIPPED,),
    RequestKind.ADDRESS: (_SHIPPED,),
    RequestKind.EXCHANGE: (_OLD, _RECENT, _SHIPPED),
    RequestKind.RETURN: (_OLD, _RECENT),
}


class DialogueTasks:
    """Endless scenarios of some levels: index n has level `levels[n % len(levels)]`."""

    size: int | None = None
    """None: there is a task for every index."""

    def __init__(self, levels: Sequence[int], split: str) -> None:
        self._levels, self._split = tuple(levels), split

    def task(self, index: int) -> Task:
        """Return the scenario at this index."""
        level = self._levels[index % len(self._levels)]
        return draw_scenario(level, f"{self._split}/{index}").to_json()


def draw_scenario(level: int, name: str) -> Scenario:
    """Return the scenario of a level and a name; the same name gives the same scenario."""
    rng = random.Random(f"dialogue scenario {level} {name}")
    for attempt in range(_TRIES):
        seed = derive_seed("dialogue", level, name, attempt) % _SHOPS
        drawn = _Draw(rng, make_shop(seed)).requests(level)
        if drawn is None:
            continue
        customer, requests = drawn
        return Scenario(
            id=f"{name}/level{level}",
            level=level,
            shop=seed,
            customer=customer,
            knows_email=level == 1 or rng.random() < 0.5,
            order_by=OrderBy.NUMBER if level == 1 else rng.choice(list(OrderBy)),
            temper=rng.choice(list(Temper)),
            requests=requests,
            told=_told(make_shop(seed), requests),
        )
    raise AssertionError(f"no shop in {_TRIES} has a scenario of level {level}")


class _Draw:
    """Draws the requests of one customer. They concern different orders."""

    def __init__(self, rng: random.Random, shop: Shop) -> None:
        self._rng, self._shop = rng, shop
        self._customer = rng.choice(shop.customers).customer_id
        self._left = {place: self._order(place) for place in _PLACES}

    def requests(self, level: int) -> tuple[str, tuple[Request, ...]] | None:
        """Return the customer and the requests; None if this shop has none of this kind."""
        rng = self._rng
        first = self._write(rng.choice(_WRITES), is_allowed=True)
        if first is None:
            return None
        if level == 1:
            return self._customer, (first,)
        if level == 4:
            second = self._write(rng.choice(_WRITES), is_allowed=False)
        elif rng.random() < 0.5:
            second = self._question()
        else:
            second = self._write(rng.choice(_WRITES), is_allowed=True) or self._question()
        if second is None:
            return None
        if level == 3:
            first = self._changed(first)
            if first is None:
                return None
        pair = (first, second)
        return self._customer, pair if level != 4 or rng.random() < 0.5 else pair[::-1]

    def _order(self, place: str) -> Order:
        if place in (_PROCESSING, _SHIPPED):
            return self._shop.orders_of(self._customer, Status(place))[0]
        delivered = self._shop.orders_of(self._customer, Status.DELIVERED)
        delivered.sort(key=lambda order: order.due_on)
        return delivered[0 if place == _OLD else -1]

    def _write(self, kind: RequestKind, *, is_allowed: bool) -> Request | None:
        table = _ALLOWED if is_allowed else _FORBIDDEN
        places = [place for place in table[kind] if place in self._left]
        if not places:
            return None
        place = self._rng.choice(places)
        order = self._left[place]
        for item in self._rng.sample(order.items, len(order.items)):
            request = self._fill(Request(kind=kind, order=order.order_id, item=item))
            if request is None:
                continue
            rule = forbids(self._shop, request)
            if (not rule) is is_allowed:
                del self._left[place]
                return replace(request, refusal=rule)
        return None

    def _fill(self, request: Request) -> Request | None:
        rng = self._rng
        match request.kind:
            case RequestKind.CANCEL:
                return replace(request, reason=rng.choice(get_args(CancelReason)))
            case RequestKind.ADDRESS:
                return replace(request, address=draw_address(rng))
            case RequestKind.EXCHANGE:
                others = self._options(request.item)
                return replace(request, new_item=rng.choice(others)) if others else None
            case _:
                return self._fill_return(request)

    def _fill_return(self, request: Request) -> Request:
        rng = self._rng
        request = replace(request, refund_to=rng.choice(get_args(RefundTo)))
        if rng.random() < 0.5:
            return replace(
                request,
                reason="arrived damaged",
                damage=rng.choice(goods.DAMAGES),
                photo_code=f"{rng.choice('KLMNP')}{rng.randint(1000, 9999)}",
            )
        has_size = self._shop.item(request.item).option in goods.SIZES
        return replace(request, reason=rng.choice(("changed mind", "does not fit")[: 1 + has_size]))

    def _options(self, item_id: str) -> list[str]:
        """Return the other options of an item's product that are in stock."""
        product = self._shop.item(item_id).product
        return [
            item.item_id
            for item in self._shop.items
            if item.product == product and item.item_id != item_id and item.stock
        ]

    def _question(self) -> Request | None:
        topic = self._rng.choice(list(Topic))
        place = _SHIPPED if topic is Topic.ARRIVAL else self._rng.choice(sorted(self._left))
        if place not in self._left:
            return None
        order = self._left.pop(place)
        item = self._rng.choice(order.items)
        return Request(kind=RequestKind.QUESTION, order=order.order_id, item=item, topic=topic)

    def _changed(self, request: Request) -> Request | None:
        """Return the request with what the customer asks for before changing their mind."""
        rng = self._rng
        match request.kind:
            case RequestKind.CANCEL:
                earlier = replace(
                    request, kind=RequestKind.ADDRESS, reason="", address=draw_address(rng)
                )
            case RequestKind.ADDRESS:
                earlier = replace(request, address=draw_address(rng))
            case RequestKind.EXCHANGE:
                others = [one for one in self._options(request.item) if one != request.new_item]
                if not others:
                    return None
                earlier = replace(request, new_item=rng.choice(others))
            case _:
                other = next(one for one in get_args(RefundTo) if one != request.refund_to)
                earlier = replace(request, refund_to=other)
        return replace(request, earlier=earlier)


_PLACES: Final = (_PROCESSING, _SHIPPED, _RECENT, _OLD)


def _told(shop: Shop, requests: Sequence[Request]) -> str:
    for request in requests:
        order = shop.order(request.order)
        match request.topic:
            case Topic.ARRIVAL:
                return order.due_on.isoformat()
            case Topic.TOTAL:
                return money(shop.total(order))
            case Topic.PRICE:
                return money(shop.item(request.item).price)
            case None:
                pass
    return ""
