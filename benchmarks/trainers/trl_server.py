"""The fake server of TRL's contest, with scripted replies; also an envkit engine."""

from contest import REPLY, Clock
from fakes.codecs import vision_codec

from envkit.rollout import FinishReason, GenerateRequest, Generation, LogprobKind


class Server:
    """Answers immediately with the same reply; counts placeholders, turns, images and its time."""

    def __init__(self) -> None:
        codec = vision_codec()
        self.clock = Clock()
        self.pad, self.ids = codec.media_ids[0], list(codec.encode_reply(REPLY))
        self.turns = self.images = 0

    def check(self, placeholders: int, images: int) -> None:
        """Count a request.

        Raises:
            ValueError: Placeholders and images differ.
        """
        if placeholders != images:
            raise ValueError(f"{placeholders} placeholders for {images} images")
        self.turns += 1
        self.images += images


class Replies:
    """The server as an envkit engine."""

    name = "replies"
    logprob_kind = LogprobKind.SAMPLED

    def __init__(self, server: Server) -> None:
        self.server = server

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer one turn."""
        with self.server.clock.running():
            self.server.check(request.wire_ids.count(self.server.pad), len(request.images))
        ids = tuple(self.server.ids)
        return Generation(
            token_ids=ids,
            logprobs=(-0.5,) * len(ids),
            finish_reason=FinishReason.STOP,
            prompt_tokens=request.train_length,
        )

    async def abort(self, request_id: str) -> None:
        """Do nothing: requests are short."""

    async def end_session(self, session_id: str) -> None:
        """Do nothing: nothing is kept."""

    async def aclose(self) -> None:
        """Do nothing."""
