"""The scripted customer: hidden goals and facts, told only as far as the agent asks.

The customer wants one thing after another. They answer what is asked about the current request,
say yes to a proposal that is right, correct one that is wrong, and ask back if they understand
nothing. A customer with an earlier wish changes their mind at the first proposal. One whose request
the rules forbid insists once before giving in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from envkit.images import Image
from envkit_dialogue import photos
from envkit_dialogue.desk import Write, WriteKind
from envkit_dialogue.hearing import Act, hear
from envkit_dialogue.proposal import Judged, Match, judge
from envkit_dialogue.scenario import OrderBy, Request, RequestKind, Scenario
from envkit_dialogue.shop import Shop
from envkit_dialogue.speech import Speech
from envkit_dialogue.values import values_in

_END: Final = "That is all, thank you. Goodbye!"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of the customer."""

    text: str
    image: Image | None = None
    shows: str = ""
    """What the image shows, in words."""
    acts: tuple[str, ...] = ()
    """What the customer understood of the agent's message."""


class Customer(Protocol):
    """Who talks with the agent."""

    consents: list[Write]
    """The changes to which the customer said yes."""

    async def open(self) -> Said:
        """Return the first message."""
        ...

    async def answer(self, message: str) -> Said:
        """Return the answer to the agent's message."""
        ...


class ScriptedCustomer:
    """A customer who follows a script."""

    def __init__(self, scenario: Scenario, shop: Shop) -> None:
        self.scenario, self._shop = scenario, shop
        self._speech = Speech(scenario, shop)
        self.consents: list[Write] = []
        self.current = 0
        """Index of the request that the conversation is about."""
        self.is_done = False
        """Whether the customer wants nothing more."""
        self._changed: set[int] = set()
        self._insisted: set[int] = set()
        self._turns = 0
        self._photo: Callable[[], Said] | None = None

    @property
    def request(self) -> Request:
        """The current request, as the customer wants it now."""
        return self._version(self.current)

    async def open(self) -> Said:
        """Return the first message."""
        return Said(text=self._speech.greeting(self.request))

    async def answer(self, message: str) -> Said:
        """Return the answer to the agent's message."""
        self._turns += 1
        self._photo = None
        acts = hear(message)
        if self.request.kind is RequestKind.QUESTION and self._is_answered(message, acts):
            texts = [f"Good to know, thank you. {self._next()}"]
        else:
            texts = self._answers(message, acts)
        text = " ".join(dict.fromkeys(texts)) or self._speech.unclear(self._turns)
        said = Said(text=text) if self._photo is None else self._photo()
        self._photo = None
        return Said(
            text=text, image=said.image, shows=said.shows, acts=tuple(a.value for a in acts)
        )

    def get_state(self) -> dict[str, Any]:
        """Return the state of the conversation as JSON data."""
        return {
            "consents": [[w.kind.value, w.order, w.item] for w in self.consents],
            "current": self.current,
            "done": self.is_done,
            "changed": sorted(self._changed),
            "insisted": sorted(self._insisted),
            "turns": self._turns,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.consents = [
            Write(kind=WriteKind(kind), order=order, item=item)
            for kind, order, item in state["consents"]
        ]
        self.current, self.is_done = state["current"], state["done"]
        self._changed, self._insisted = set(state["changed"]), set(state["insisted"])
        self._turns = state["turns"]

    def _version(self, index: int) -> Request:
        request = self.scenario.requests[index]
        return request if request.earlier is None or index in self._changed else request.earlier

    def _is_answered(self, message: str, acts: tuple[Act, ...]) -> bool:
        asks = set(acts) - {Act.ELSE, Act.DONE, Act.BYE, Act.CHAT, Act.WAIT}
        return not self.is_done and bool(values_in(message)) and not asks

    def _answers(self, message: str, acts: tuple[Act, ...]) -> list[str]:
        """Return one sentence per act; acts that move on come last, and only once."""
        texts = [self._fact(act) for act in acts if act in _FACTS]
        if Act.CONSENT in acts:
            texts.append(self._consent(message))
        elif {Act.REFUSE, Act.OFFER} & set(acts):
            texts.append(self._refused(is_offer=Act.REFUSE not in acts))
        elif {Act.DONE, Act.ELSE, Act.BYE} & set(acts):
            texts.append(self._move_on(has_more=Act.BYE not in acts))
        elif Act.CHAT in acts:
            texts.append("Well. Could we get back to what I need?")
        elif Act.WAIT in acts and not texts:
            texts.append("Sure, take your time.")
        if texts and acts[0] in _FACTS:
            texts[0] = self._speech.styled(texts[0], self._turns)
        return texts

    def _fact(self, act: Act) -> str:
        if self.is_done and act is Act.GOAL:
            return _END
        speech, request = self._speech, self.request
        match act:
            case Act.GOAL:
                return speech.goal(request)
            case Act.EMAIL:
                return speech.email()
            case Act.NAME:
                return speech.name()
            case Act.ZIP:
                return speech.postcode()
            case Act.PHONE:
                return "I have no phone number on my account."
            case Act.ORDER:
                if self.scenario.order_by is OrderBy.RECEIPT:
                    self._photo = self._receipt
                return speech.order(request)
            case Act.PICTURE:
                return self._picture()
            case _:
                return _DETAILS[act](speech, request)

    def _picture(self) -> str:
        if self.request.photo_code:
            self._photo = self._damage
            return "Here is a photo of it, with the label."
        if self.scenario.order_by is OrderBy.RECEIPT:
            self._photo = self._receipt
            return "Here is a photo of the receipt."
        return "I have no photo that would help, sorry."

    def _receipt(self) -> Said:
        image = photos.draw_receipt(self._shop, self.request)
        return Said(text="", image=image, shows=photos.receipt_text(self._shop, self.request))

    def _damage(self) -> Said:
        image = photos.draw_damage(self._shop, self.request)
        return Said(text="", image=image, shows=photos.damage_text(self._shop, self.request))

    def _consent(self, message: str) -> str:
        """Return the answer to a proposal; a yes is remembered."""
        if self.is_done:
            return _END
        judged: Judged | None = None
        for index in range(self.current, -1, -1):
            request = self._version(index)
            if request.write is None:
                continue
            found = judge(message, request, self._shop)
            judged = judged or found
            earlier = self.scenario.requests[index].earlier
            is_about = found.match in (Match.RIGHT, Match.WRONG)
            if is_about and earlier is not None and index not in self._changed:
                self._changed.add(index)
                return self._speech.changed(self._version(index), earlier)
            if found.match is Match.RIGHT:
                self.consents.append(request.write)
                return "Yes, please go ahead."
            if found.match is Match.WRONG and index == self.current:
                return self._speech.correction(request, found.field)
        match judged.match if judged else Match.OTHER:
            case Match.VAGUE:
                return "Go ahead with what exactly? Please tell me what you will do."
            case Match.NO_TARGET:
                return "With which order or item? Please tell me exactly what you will do."
            case _:
                return f"No, that is not what I asked for. {self._speech.goal(self.request)}"

    def _refused(self, *, is_offer: bool) -> str:
        if self.is_done:
            return _END
        if self.request.is_allowed:
            if is_offer:
                return f"No, thank you. {self._speech.goal(self.request)}"
            return "I think that should be possible. Could you please check again?"
        if self.current not in self._insisted:
            self._insisted.add(self.current)
            return "Can you not make an exception for me, just this once?"
        return f"That is a pity. Then I will leave it. {self._next()}"

    def _move_on(self, *, has_more: bool) -> str:
        if self.is_done:
            return _END if has_more else "Goodbye!"
        if self.request.write not in self.consents:
            return f"I am still waiting. {self._speech.goal(self.request)}"
        return f"Thank you. {self._next()}"

    def _next(self) -> str:
        """Go to the next request and say it, or say goodbye."""
        if self.current + 1 < len(self.scenario.requests):
            self.current += 1
            return f"There is one more thing. {self._speech.goal(self.request)}"
        self.is_done = True
        return _END


_DETAILS: Final[Mapping[Act, Callable[[Speech, Request], str]]] = {
    Act.ITEM: Speech.item,
    Act.OPTION: Speech.option,
    Act.REASON: Speech.reason,
    Act.REFUND: Speech.refund,
    Act.ADDRESS: Speech.address,
}
_FACTS: Final = frozenset(
    (*_DETAILS, Act.GOAL, Act.EMAIL, Act.NAME, Act.ZIP, Act.PHONE, Act.ORDER, Act.PICTURE)
)
