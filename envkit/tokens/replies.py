"""Write replies as the model would sample them."""

from functools import cached_property

from envkit.tokens.rules import Calibration
from envkit.tokens.template import ChatTemplate
from envkit.tokens.texts import TextPolicy


class ReplyEncoder:
    """Encodes scripted replies of one template."""

    def __init__(self, template: ChatTemplate, calibration: Calibration, texts: TextPolicy) -> None:
        """Set what is known about the template."""
        self._template, self._calibration, self._texts = template, calibration, texts

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of a reply, with the stop token that ends it."""
        anchor, head, closer = self._frame
        first, *others = self._texts.spoken_pieces(text)
        whole = self._template.encode(anchor + first)
        ids = whole[len(head) :] if whole[: len(head)] == head else self._template.encode(first)
        for piece in others:  # a placeholder spelled out in the text, which cannot be sampled
            ids += self._template.encode(piece)
        return (*ids, closer)

    @cached_property
    def _frame(self) -> tuple[str, list[int], int]:
        """Text and ids before a reply, and the id that ends it."""
        rule = self._calibration.rules["user"]
        anchor = self._calibration.generation_prompt or rule.closer
        closer = self._calibration.stop_ids[0]
        if rule.closer_id in self._calibration.stop_ids:
            closer = rule.closer_id
        elif rule.stand_in:
            closer = self._template.encode(rule.stand_in)[0]
        return anchor, self._template.encode(anchor), closer
