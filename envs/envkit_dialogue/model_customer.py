"""A customer played by a model at a chat endpoint, with the facts of a scenario.

The model may word everything freely, but it may neither tell what was not asked nor invent facts,
nor agree to what it does not want. Each of its messages is checked; one that does so is a fault.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from envkit.errors import ConfigurationError, EngineFault, EnvFault, FaultKind
from envkit.secrets import restored
from envkit_chat import ChatClient
from envkit_chat.reply import read_reply
from envkit_dialogue import photos
from envkit_dialogue.customer import Said
from envkit_dialogue.desk import Write, WriteKind
from envkit_dialogue.hearing import Act, hear
from envkit_dialogue.proposal import Match, judge
from envkit_dialogue.scenario import OrderBy, Request, RequestKind, Scenario, later
from envkit_dialogue.shop import Shop
from envkit_dialogue.speech import Speech
from envkit_dialogue.values import values_in

_ADVICE: Final[Mapping[int, str]] = {
    401: "the key was refused: check user['api_key']",
    404: "the address or the model is unknown: check user['base_url'] and user['model']",
}
_FIELDS: Final = frozenset(("base_url", "model", "api_key"))
_MOST_TOKENS: Final = 400
_VALUE: Final = re.compile(
    r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|\b[wi]\d{4,6}\b|\b[klmnp]\d{4}\b|\b[a-z]\d{2} ?\d[a-z]{2}\b"
)
"""E-mail addresses, numbers of orders and items, codes of labels, and postcodes."""
_INSTRUCTIONS: Final = """\
You play a customer who writes to an online shop. The other side is the shop's agent. Stay in your
part, write one or two short sentences, and follow these rules:
- Raise your wishes one after another, the first one now, roughly and without details. Raise the
  next one when the agent says that the last one is done or refused, or asks what else you need.
- Tell a fact only when the agent asks for it. Never invent a fact. If a fact is not listed, say
  that you do not know.
- Say yes only to a proposal that is exactly what you want, and correct one that is wrong.
Answer with JSON only: {"say": "your message", "agrees": true or false, "photo": "none", "receipt"
or "damage"}. "agrees" is true only if you say yes to a proposal of the agent in this message."""


class PlayerModel:
    """A model at a chat endpoint."""

    def __init__(self, user: Mapping[str, Any]) -> None:
        """Describe the endpoint; the first request opens a connection.

        Args:
            user: `base_url`, the address with its version; `model`; and optionally `api_key`.

        Raises:
            ConfigurationError: A field is missing or unknown, or the address is not HTTP.
        """
        if set(user) - _FIELDS or not {"base_url", "model"} <= set(user):
            raise ConfigurationError(
                f"user must have 'base_url' and 'model', and may have 'api_key', got {sorted(user)}"
            )
        settings: dict[str, Any] = restored(dict(user))
        self._model: str = settings["model"]
        self._client = ChatClient(
            settings["base_url"], api_key=settings.get("api_key"), advice=_ADVICE
        )

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the model's next message.

        Raises:
            EnvFault: The endpoint failed.
        """
        fields = {"model": self._model, "temperature": 0.7, "max_tokens": _MOST_TOKENS}
        try:
            return read_reply(await self._client.complete(fields, messages)).text
        except EngineFault as fault:
            raise EnvFault(
                f"the model that plays the customer failed: {fault}", kind=fault.kind
            ) from fault

    async def aclose(self) -> None:
        """Close the connections; safe to call twice."""
        await self._client.aclose()


class ModelCustomer:
    """A customer whose words a model writes."""

    def __init__(self, scenario: Scenario, shop: Shop, player: PlayerModel) -> None:
        """Describe the customer.

        Args:
            scenario: The hidden goals and facts.
            shop: Where they are from.
            player: Who writes the words.
        """
        self.scenario, self._shop, self._player = scenario, shop, player
        self.consents: list[Write] = []
        self._messages: list[dict[str, str]] = []
        self._asked: set[Act] = set()

    async def open(self) -> Said:
        """Return the first message."""
        return await self._say("(The chat begins. Write your first message.)", ())

    async def answer(self, message: str) -> Said:
        """Return the answer to the agent's message.

        Raises:
            EnvFault: The endpoint failed, or the model broke a rule.
        """
        acts = hear(message)
        self._asked |= set(acts)
        return await self._say(message, acts)

    def get_state(self) -> dict[str, Any]:
        """Return the state of the conversation as JSON data."""
        return {
            "consents": [[w.kind.value, w.order, w.item] for w in self.consents],
            "messages": self._messages,
            "asked": sorted(act.value for act in self._asked),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `get_state` returned."""
        self.consents = [Write(kind=WriteKind(k), order=o, item=i) for k, o, i in state["consents"]]
        self._messages = list(state["messages"])
        self._asked = {Act(value) for value in state["asked"]}

    async def _say(self, message: str, acts: tuple[Act, ...]) -> Said:
        asked = [*self._messages, {"role": "user", "content": message}]
        system = {"role": "system", "content": f"{_INSTRUCTIONS}\n\n{self._facts()}"}
        raw = await self._player.complete([system, *asked])
        say, agrees, photo = _parsed(raw)
        self._check(say, message, acts)
        consents = self._agreed(message) if agrees else []
        self._messages = [*asked, {"role": "assistant", "content": raw}]
        self.consents += consents
        heard = tuple(act.value for act in acts)
        return self._shown(photo, say, heard)

    def _facts(self) -> str:
        """Return what the model knows. Codes of labels stay out: they stand only in photos."""
        speech = Speech(self.scenario, self._shop)
        lines = ["Your facts:", speech.email(), speech.name(), speech.postcode()]
        for number, request in enumerate(self.scenario.requests, start=1):
            lines.append(f"Wish {number}: {speech.goal(request)}")
            if request.earlier is not None:
                lines.append(f"At first you want this: {_details(speech, request.earlier)}")
                lines.append("At the agent's first proposal you change your mind to this:")
            lines.append(_details(speech, later(request)))
            if request.photo_code:
                lines.append('If asked, you send a photo of it: "photo": "damage".')
        if self.scenario.order_by is OrderBy.RECEIPT:
            lines.append('If asked for an order number, you send the receipt: "photo": "receipt".')
        return "\n".join(lines)

    def _check(self, say: str, message: str, acts: tuple[Act, ...]) -> None:
        """Refuse a message with a fact that is invented, or that was not asked for.

        Raises:
            EnvFault: It has one.
        """
        facts = self._fact_acts()
        heard = " ".join([message, *(m["content"] for m in self._messages)]).lower()
        values = {*_VALUE.findall(say.lower()), *values_in(say)}
        known = {*facts, *_VALUE.findall(heard), *values_in(heard)}
        if invented := sorted(values - known):
            raise _broke(f"it invented {invented[0]!r}")
        if self._messages and not acts:
            return  # what was asked is not known
        correcting = {Act.ORDER, Act.ADDRESS} if Act.CONSENT in self._asked else set[Act]()
        for fact, act in facts.items():
            if fact in say.lower() and fact not in heard and act not in self._asked | correcting:
                raise _broke(f"it told {fact!r}, which the agent had not asked for")

    def _fact_acts(self) -> dict[str, Act]:
        """Return the facts that can be recognised in text, and which question they answer."""
        customer = self._shop.customer(self.scenario.customer)
        facts = {customer.name: Act.NAME, customer.address.postcode: Act.ZIP}
        if self.scenario.knows_email:
            facts[customer.email] = Act.EMAIL
        for request in self.scenario.requests:
            if self.scenario.order_by is OrderBy.NUMBER:
                facts[request.order] = Act.ORDER
            for version in filter(None, (request, request.earlier)):
                if version.address is not None:
                    facts[version.address.street] = facts[version.address.postcode] = Act.ADDRESS
        return {fact.lower(): act for fact, act in facts.items()}

    def _agreed(self, message: str) -> list[Write]:
        """Return the changes to which a yes agrees.

        Raises:
            EnvFault: The proposal is something that the customer does not want.
        """
        wanted = [request for request in self.scenario.requests if request.write is not None]
        judged = [(judge(message, request, self._shop).match, request) for request in wanted]
        agreed = [r.write for match, r in judged if match is Match.RIGHT and r.write is not None]
        if not agreed and any(match is Match.WRONG for match, _ in judged):
            raise _broke("it agreed to what it does not want")
        return agreed

    def _shown(self, photo: str, say: str, heard: tuple[str, ...]) -> Said:
        """Return the message with the photo, if there is one of this kind."""
        shop, requests = self._shop, self.scenario.requests
        if photo == "damage":
            damaged = next((request for request in requests if request.photo_code), None)
            if damaged is not None:
                image = photos.draw_damage(shop, damaged)
                return Said(
                    text=say, image=image, shows=photos.damage_text(shop, damaged), acts=heard
                )
        if photo == "receipt" and self.scenario.order_by is OrderBy.RECEIPT:
            done = {write.order for write in self.consents}
            request = next((r for r in requests if r.order not in done), requests[0])
            image = photos.draw_receipt(shop, request)
            return Said(text=say, image=image, shows=photos.receipt_text(shop, request), acts=heard)
        return Said(text=say, acts=heard)


def _details(speech: Speech, request: Request) -> str:
    lines = [speech.order(request), speech.item(request)]
    if request.kind is RequestKind.EXCHANGE:
        lines.append(speech.option(request))
    if request.kind is RequestKind.ADDRESS:
        lines.append(speech.address(request))
    if request.kind is RequestKind.RETURN:
        lines.append(speech.refund(request))
    if request.kind is not RequestKind.QUESTION:
        lines.append(speech.reason(request))
    return " ".join(lines)


def _parsed(raw: str) -> tuple[str, bool, str]:
    """Return what the model says, whether it agrees, and its photo.

    Raises:
        EnvFault: The reply is not the JSON that was asked for; another sample may be.
    """
    start = raw.find("{")
    try:
        data: Any = json.JSONDecoder().raw_decode(raw[start:])[0] if start >= 0 else None
    except (ValueError, RecursionError):
        data = None
    say: Any = data.get("say") if isinstance(data, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # foreign JSON
    if not isinstance(say, str) or not say.strip():
        raise EnvFault(
            "the model that plays the customer must answer with JSON that has a text 'say', got "
            f"{raw[:200]!r}",
            kind=FaultKind.TRANSIENT,
        )
    agrees, photo = data.get("agrees") is True, str(data.get("photo", "none"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]  # as above
    return say.strip(), agrees, photo


def _broke(what: str) -> EnvFault:
    return EnvFault(f"the model that plays the customer broke a rule: {what}")
